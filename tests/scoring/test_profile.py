"""Profiles as files: reading, merging, attacks, and which conditions fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.scoring.sides import claim_of, positions, replay_of
from tests.scoring.simulated import (
    ENGINE,
    HONEST,
    INT4,
    INT8,
    Law,
    draws,
    group,
    key,
    measurement,
    profile,
)

from assay.claims.claim import Claim, EngineIdentity, Replay
from assay.errors import ProfileError
from assay.scoring.constants import LADDER
from assay.scoring.nulls import Null, Sample
from assay.scoring.profile import Profile, find_profile, read_profile
from assay.scoring.samples import record_of

# --- files


def test_a_profile_reads_back_the_same(tmp_path: Path) -> None:
    made = profile(draws(HONEST, 30, 0)).with_attack("int4", draws(INT4, 5, 1))
    made.write(tmp_path / "sub" / "p.json")
    read = read_profile(tmp_path / "sub" / "p.json")
    assert read == made
    assert read.id == made.id
    assert read.to_json() == made.to_json()
    claim = draws(INT8, 1, 2)[0].series["value_distance"]
    assert read.nulls["value_distance"].p_upper(claim) == made.nulls["value_distance"].p_upper(
        claim
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version is 2"),
        ({"path": "prefill"}, "path and mode"),
        ({"ladder": [8, 16]}, "ladder"),
        ({"groups": []}, "groups"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_file_that_is_no_profile_of_this_version(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    value = json.loads(profile(draws(HONEST, 20, 0)).to_json()) | change
    (tmp_path / "p.json").write_text(json.dumps(value))
    with pytest.raises(ProfileError, match=message):
        read_profile(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"schema_version": 1}', "\xff"])
def test_other_files_are_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text, encoding="latin-1")
    with pytest.raises(ProfileError, match=r"p\.json"):
        read_profile(tmp_path / "p.json")


def test_a_number_that_is_none_is_refused_in_a_file(tmp_path: Path) -> None:
    text = profile(draws(HONEST, 20, 0)).to_json()
    first = json.loads(text)["groups"][0]["records"][0]["series"]["value_distance"]["values"][0]
    (tmp_path / "p.json").write_text(text.replace(f"{first}", "NaN", 1))
    with pytest.raises(ProfileError, match="finite"):
        read_profile(tmp_path / "p.json")


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read"):
        read_profile(tmp_path / "none.json")


# --- merging


def test_merging_keeps_hardware_pairs_apart_and_counts_a_claim_once() -> None:
    one, two = draws(HONEST, 30, 0), draws(HONEST, 40, 1)
    merged = profile(one, "A").merged(profile(two, "B")).merged(profile(one[:10], "A"))
    assert merged.claims == 70
    assert [len(g.records) for g in merged.groups] == [30, 40]
    grown = profile(one, "A").merged(profile(two, "A"))
    assert [len(g.records) for g in grown.groups] == [70]


def test_merging_joins_attacks_and_baseline() -> None:
    one = profile(draws(HONEST, 20, 0)).with_attack("int4", draws(INT4, 4, 1))
    two = profile(draws(HONEST, 20, 2)).with_attack("int4", draws(INT4, 4, 3))
    two = two.with_attack("int8", draws(INT8, 2, 4))
    merged = one.merged(two)
    assert {name: len(records) for name, records in merged.attacks.items()} == {
        "int4": 8,
        "int8": 2,
    }


def test_other_paths_modes_and_models_do_not_merge() -> None:
    ours = profile(draws(HONEST, 20, 0))
    forward = [m.model_copy(update={"path": "prefill"}) for m in draws(HONEST, 20, 0)]
    with pytest.raises(ProfileError, match="another path"):
        ours.merged(profile(forward))
    other_key = ours.groups[0].key.model_copy(
        update={"validator": ours.groups[0].key.validator.model_copy(update={"model": "n"})}
    )
    other = Profile(
        name="n",
        path="decode",
        mode="raw_logprobs",
        groups=(ours.groups[0].model_copy(update={"key": other_key}),),
    )
    with pytest.raises(ProfileError, match="another model"):
        ours.merged(other)


def test_an_attack_of_another_path_is_refused() -> None:
    ours = profile(draws(HONEST, 20, 0))
    forward = [m.model_copy(update={"path": "prefill"}) for m in draws(INT4, 2, 0)]
    with pytest.raises(ProfileError, match="by path prefill"):
        ours.with_attack("int4", forward)
    with pytest.raises(ProfileError, match="no claim"):
        ours.with_attack("int4", [])
    with pytest.raises(ProfileError, match="baseline"):
        ours.with_attack("zero-knowledge", draws(INT4, 2, 0))


def test_an_unknown_attack_lists_those_known() -> None:
    ours = profile(draws(HONEST, 20, 0)).with_attack("int4", draws(INT4, 4, 1))
    with pytest.raises(ProfileError, match="known: int4"):
        ours.measured("fp8")
    assert len(ours.measured("int4")) == 4


def test_a_changed_copy_has_its_own_nulls_and_id() -> None:
    ours = profile(draws(HONEST, 30, 0))
    before = ours.id, len(ours.nulls["value_distance"].samples[0])
    grown = ours.merged(profile(draws(HONEST, 30, 1)))
    assert grown.id != before[0]
    assert len(grown.nulls["value_distance"].samples[0]) == 60


# --- which profile fits


def pair(engine: EngineIdentity, path: str = "decode") -> tuple[Claim, Replay]:
    held = positions(20)
    validator = ENGINE.model_copy(update={"hardware": "A"})
    claim = claim_of(held, engine=engine)
    return claim, replay_of(held, engine=validator, path=path)


A = ENGINE.model_copy(update={"hardware": "A"})


def test_the_profile_of_the_same_conditions_fits() -> None:
    ours = profile(draws(HONEST, 30, 0))
    match = find_profile([ours], *pair(A))
    assert match.profile is not None
    assert match.profile.id == ours.id
    # Neither side knows these: listed, not passed over.
    assert "the executor's attention backend" in match.unknown
    assert "the executor's attention backend" in match.reason


def test_the_part_that_fits_is_made_once_for_all_claims() -> None:
    ours = profile(draws(HONEST, 30, 0))
    parts = [find_profile([ours], *pair(A)).profile for _ in range(2)]
    assert parts[0] is parts[1] is not None


def test_a_profile_of_another_path_is_refused() -> None:
    """Each path has its own null; a verdict never mixes them."""
    match = find_profile([profile(draws(HONEST, 30, 0))], *pair(A, "prefill"))
    assert match.profile is None
    assert "path is prefill, the profile's decode" in match.reason


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("dtype", "float32", "dtype is float32, the profile's bfloat16"),
        ("engine_version", "0.33.0", "engine version"),
        ("runner", "v2", "runner"),
        ("hardware", "B", "hardware is B, the profile's A"),
        ("model", "other", "model is other, the profile's m"),
    ],
)
def test_a_field_that_differs_refuses(field: str, value: str, word: str) -> None:
    match = find_profile(
        [profile(draws(HONEST, 30, 0))], *pair(A.model_copy(update={field: value}))
    )
    assert match.profile is None
    assert word in match.reason
    assert "executor" in match.reason


@pytest.mark.parametrize("field", ["dtype", "hardware", "runner", "engine_version"])
def test_an_unknown_field_never_matches_silently(field: str) -> None:
    engine = A.model_copy(update={field: None})
    ours = profile(draws(HONEST, 30, 0))
    refused = find_profile([ours], *pair(engine))
    assert refused.profile is None
    assert field.replace("_", " ") in refused.reason
    allowed = find_profile([ours], *pair(engine), allow_unknown=True)
    assert allowed.profile is not None
    assert any(field.replace("_", " ") in name for name in allowed.unknown)


def test_a_field_the_profile_does_not_know_is_no_match_either() -> None:
    ours = profile(draws(HONEST, 30, 0), hardware=None)
    assert "hardware" in find_profile([ours], *pair(A)).reason
    assert find_profile([ours], *pair(A)).profile is None


def test_unknown_hardware_is_held_to_the_noisiest_pair_that_may_be_its() -> None:
    calm, noisy = draws(HONEST, 100, 0), draws(Law(distance=0.03), 100, 1)
    merged = Profile(
        name="m",
        path="decode",
        mode="raw_logprobs",
        groups=(
            group(calm, "A"),
            group(noisy, "A").model_copy(
                update={
                    "key": key().model_copy(
                        update={"executor": key(hardware="B").executor},
                    )
                }
            ),
        ),
    )
    values = [0.03] * 64
    known = find_profile([merged], *pair(A)).profile
    unknown = find_profile(
        [merged], *pair(A.model_copy(update={"hardware": None})), allow_unknown=True
    ).profile
    assert known is not None
    assert unknown is not None
    strict = known.nulls["value_distance"].p_upper(values)
    wide = unknown.nulls["value_distance"].p_upper(values)
    assert strict is not None
    assert wide is not None
    assert strict < 1e-3
    assert wide > 0.1


def test_a_digest_decides_over_names() -> None:
    """A served alias is the same model when the weights' digests agree."""
    engine = A.model_copy(update={"model_digest": "d" * 64})
    named = engine.model_copy(update={"model": "folder/alias"})
    held = positions(20)
    claim, replay = claim_of(held, engine=engine), replay_of(held, engine=engine)
    k = key().model_copy(
        update={
            side: key().executor.model_copy(update={"model_digest": "d" * 64})
            for side in ("executor", "validator")
        }
    )
    ours = Profile(
        name="m",
        path="decode",
        mode="raw_logprobs",
        groups=(group(draws(HONEST, 30, 0)).model_copy(update={"key": k}),),
    )
    assert find_profile([ours], claim, replay).profile is not None
    assert find_profile([ours], claim.model_copy(update={"engine": named}), replay).profile
    other = engine.model_copy(update={"model_digest": "e" * 64})
    refused = find_profile([ours], claim.model_copy(update={"engine": other}), replay)
    assert refused.profile is None


def test_of_several_that_fit_the_larger_is_taken_and_none_says_why() -> None:
    small, large = profile(draws(HONEST, 25, 0)), profile(draws(HONEST, 50, 1), name="large")
    match = find_profile([small, large], *pair(A))
    assert match.profile is not None
    assert match.profile.id == large.id
    assert find_profile([], *pair(A)).reason == "no profile was given"


def test_a_null_without_samples_says_so() -> None:
    empty = Null("value_distance", (Sample(np.empty((0, len(LADDER))), np.empty(0)),))
    assert empty.p_upper([0.1] * 64) is None
    assert empty.p_lower([0.1] * 64) is None


def test_a_record_leaves_out_what_is_too_short() -> None:
    short = measurement("c", {"value_distance": np.ones(7), "choice_mismatch": np.ones(8)})
    assert list(record_of(short).series) == ["choice_mismatch"]
