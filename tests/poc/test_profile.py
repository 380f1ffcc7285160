"""Profiles for vectors: what calibration records, how they merge, what files are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from tests.poc.challenges import HIDDEN
from tests.poc.honest_engines import CHEAT, ENGINE, KEY, NEXT, engine, only, profile_of

from assay.errors import ClaimError, SettingsError
from assay.poc.calibrate import calibrate, pair_record
from assay.poc.nulls import nulls_for
from assay.poc.profile import (
    from_records,
    hardware_of,
    is_vector_profile,
    key_of,
    merge,
    parse_profile,
    set_digest,
    width_of,
    write_profile,
)

PROFILE = profile_of("A100", "H100", "H200")


def test_every_pair_is_a_record_with_its_hardware_its_statistics_and_the_forger():
    assert len(PROFILE.records) == 3
    record = PROFILE.records[0]
    assert record.hardware == ("A100", "H100") and record.key == KEY and record.n == 400
    assert set(record.statistics) == {"bulk", "tail", "own"}
    assert record.identical == 0
    assert record.zero_knowledge is not None
    assert record.zero_knowledge.bulk - record.statistics["bulk"].value > 1
    assert record.statistics["own"].value < -1


def test_without_hidden_size_there_is_no_own_part_and_no_forger():
    record = profile_of("A100", "H100", hidden_size=None).records[0]
    assert set(record.statistics) == {"bulk", "tail"} and record.zero_knowledge is None


def test_the_order_of_the_files_does_not_matter():
    one, other = engine("A100"), engine("H100")
    forth = calibrate([one, other], [KEY, KEY], ["A100", "H100"], HIDDEN)
    back = calibrate([other, one], [KEY, KEY], ["H100", "A100"], HIDDEN)
    assert forth == back


def test_profiles_of_other_pairs_merge_and_repeats_count_once():
    left, right = profile_of("A100", "H100"), profile_of("H100", "H200")
    both = merge([left, right, left])
    assert {record.hardware for record in both.records} == {("A100", "H100"), ("H100", "H200")}
    assert merge([right, left]) == both
    assert both.digest != left.digest


def test_two_results_for_one_pair_of_recordings_are_refused():
    record = PROFILE.records[0]
    other = record.model_copy(update={"n": record.n - 1})
    with pytest.raises(SettingsError, match="there twice with different results"):
        from_records([record, other])


def test_a_profile_is_frozen_and_survives_its_file(tmp_path):
    path = tmp_path / "profile.json"
    write_profile(PROFILE, path)
    body = json.loads(path.read_text())
    assert is_vector_profile(body) and parse_profile(body, "p") == PROFILE
    with pytest.raises(ValidationError):
        PROFILE.records[0].n = 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(version=2), "version 2"),
        (lambda b: b.update(extra=1), "extra"),
        (lambda b: b["records"][0].update(n=-1), r"records\.0\.n"),
        (lambda b: b["records"][0]["log_quantiles"].pop(), r"records\.0\.log_quantiles"),
        (lambda b: b["records"][0]["statistics"]["bulk"].update(value=None), "bulk"),
        (lambda b: b["records"][0]["statistics"]["bulk"].update(value=float("nan")), "bulk"),
        (lambda b: b["records"][0]["statistics"].update(magic={"value": 1}), "magic"),
        (lambda b: b["records"][0].update(hardware=["A100"]), "hardware"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_the_field(change, message):
    body = json.loads(PROFILE.model_dump_json())
    change(body)
    with pytest.raises(SettingsError, match=message):
        parse_profile(body, "p.json")


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(SettingsError, match="cannot be written"):
        write_profile(PROFILE, tmp_path / "none" / "p.json")


def test_sets_of_two_challenges_or_two_configurations_make_no_pair():
    one, other = engine("A100"), engine("H100", challenge=NEXT)
    with pytest.raises(SettingsError, match="no two of the sets"):
        calibrate([one, other], [KEY, KEY], ["A100", "H100"])
    fp8 = replace(engine("H100"), profile={**ENGINE, "kv_cache_dtype": "fp8"})
    with pytest.raises(SettingsError, match="no two of the sets"):
        calibrate([one, fp8], [key_of(one), key_of(fp8)], ["A100", "H100"])


def test_too_few_nonces_or_vectors_that_are_none_are_no_calibration():
    one, other = engine("A100"), engine("H100")
    assert pair_record((only(one, 99), other), KEY, ("A100", "H100")) is None
    broken = {n: v if n < 99 else np.zeros(12) for n, v in other.vectors.items()}
    assert pair_record((one, replace(other, vectors=broken)), KEY, ("A100", "H100")) is None
    assert pair_record((only(one, 100), other), KEY, ("A100", "H100")) is not None


def test_the_key_takes_what_the_file_says_and_needs_a_model():
    assert KEY.model == "made-up" and KEY.kv_cache_dtype == "auto" and KEY.seq_len == 16
    silent = replace(engine("A100"), challenge=replace(NEXT, model=None))
    with pytest.raises(ClaimError, match="model"):
        key_of(silent)
    assert key_of(silent, "other").model == "other"
    assert hardware_of(engine("A100")) == "A100"
    layers = {**ENGINE, "n_layers": 30, "hidden_size": 576, "vocab_size": 9}
    assert width_of(replace(engine("A100"), profile=layers)) == 576
    for unusable in (11, "576", True, None):
        one = replace(engine("A100"), profile={"hidden_size": unusable})
        assert width_of(one) is None
    said = key_of(replace(engine("A100"), profile=layers)).architecture
    assert said == "n_layers 30, hidden_size 576, vocab_size 9"


def test_a_digest_is_of_the_vectors_and_the_challenge():
    one = engine("A100")
    backwards = replace(one, vectors=dict(reversed(one.vectors.items())))
    assert set_digest(one) == set_digest(backwards)
    assert set_digest(one) != set_digest(engine("H100"))
    assert set_digest(one) != set_digest(replace(one, challenge=NEXT))


# --- nulls -------------------------------------------------------------------------------------


def test_the_narrowest_records_are_taken():
    assert nulls_for(PROFILE, KEY, ("h100", "A100")).basis == "pair"
    assert nulls_for(PROFILE, KEY, ("B200", "A100")).basis == "configuration"
    assert nulls_for(PROFILE, KEY, (None, None)).basis == "configuration"
    other = KEY.model_copy(update={"engine_version": "0.33.0"})
    assert nulls_for(PROFILE, other, ("A100", "H100")).basis == "model"
    assert nulls_for(PROFILE, KEY.model_copy(update={"model": "x"}), ("A100", "H100")) is None


def test_another_model_of_the_same_architecture_is_the_last_resort():
    known = [
        r.model_copy(update={"key": KEY.model_copy(update={"architecture": "a"})})
        for r in PROFILE.records
    ]
    wanted = KEY.model_copy(update={"model": "x", "architecture": "a"})
    assert nulls_for(from_records(known), wanted, (None, None)).basis == "architecture"


def test_a_wider_basis_is_never_sharper():
    """Less is known of a new pair than of a recorded one, and less of a new configuration."""
    other = KEY.model_copy(update={"engine_version": "0.33.0"})
    p = [
        float(nulls_for(PROFILE, key, pair).statistics["bulk"].p_upper(-0.6, 200))
        for key, pair in ((KEY, ("A100", "H100")), (KEY, ("B200", "A100")), (other, (None, None)))
    ]
    assert p[0] < p[1] < p[2]


def test_more_nonces_do_not_make_the_spread_between_pairs_smaller():
    null = nulls_for(PROFILE, KEY, ("B200", "A100")).statistics["bulk"]
    value = null.centre + 2 * null.spread
    assert 0.01 < float(null.p_upper(value, 10**6)) < float(null.p_upper(value, 50))


def test_engines_equal_bit_by_bit_calibrate_nothing():
    one = engine("A100")
    twin = replace(one, name="twin.json")
    profile = calibrate([one, twin], [KEY, KEY], ["A100", "A100"], HIDDEN)
    assert profile.records[0].identical == 1 and not profile.records[0].informative
    assert nulls_for(profile, KEY, ("A100", "A100")) is None
    more = merge([profile, PROFILE])
    assert nulls_for(more, KEY, ("A100", "A100")).basis == "configuration"


def test_recordings_that_repeat_another_bit_by_bit_count_once():
    """H100 and H200 with the same vectors are one engine, not two that agree on a spread."""
    one, other = engine("A100"), engine("H100")
    twin = replace(other, name="H200.json")
    few = calibrate([one, other], [KEY] * 2, ["A100", "H100"])
    more = calibrate([one, other, twin], [KEY] * 3, ["A100", "H100", "H200"])
    left, right = (nulls_for(p, KEY, ("B200", "A100")).statistics["bulk"] for p in (few, more))
    assert left == right


def test_p_values_are_honest_on_fresh_engines():
    """Twenty fresh honest engines at n = 50: no small p-value; a cheat always has one."""
    null = nulls_for(PROFILE, KEY, ("B200", "A100")).statistics["bulk"]
    validator = engine("A100")
    p = {}
    for scale in (0.05, CHEAT):
        values = []
        for seed in range(20):
            record = pair_record(
                (only(engine("B200", scale=scale, seed=50 + seed), 100), validator),
                KEY,
                ("B200", "A100"),
            )
            values.append(float(null.p_upper(record.statistics["bulk"].value, 50)))
        p[scale] = values
    assert min(p[0.05]) > 0.02 and max(p[CHEAT]) < 0.01
