"""``assay poc calibrate`` and ``assay poc compare --profile``: files in, verdict and exit code out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.poc.challenges import HIDDEN
from tests.poc.honest_engines import CHEAT, engine, only
from typer.testing import CliRunner

from assay.cli.poc import app
from assay.cli.poc_profile import load_profile
from assay.errors import AssayError
from assay.poc import encode_vector


def _write(folder: Path, name: str, made, **extra) -> str:
    challenge = made.challenge
    body = {
        "block_hash": challenge.block_hash,
        "public_key": challenge.public_key,
        "seq_len": challenge.seq_len,
        "model": challenge.model,
        "profile": dict(made.profile),
        "artifacts": [
            {"nonce": nonce, "vector_b64": encode_vector(row)}
            for nonce, row in made.vectors.items()
        ],
        **extra,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(body))
    return str(path)


def _run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("poc")
    for gpu in ("A100", "H100", "H200", "B200"):
        _write(folder, gpu, engine(gpu))
    _write(folder, "cheat", engine("B200", scale=CHEAT, seed=77))
    _write(folder, "few", only(engine("B200"), 20))
    _write(folder, "nameless", engine("H200"), profile={})
    other = {"block_hash": "other", "model": "another"}
    _write(folder, "other", engine("B200"), **other)
    _write(folder, "other-validator", engine("A100"), **other)
    made = _run(
        "calibrate",
        *(str(folder / f"{gpu}.json") for gpu in ("A100", "H100", "H200")),
        *("--hidden-size", str(HIDDEN), "--output", str(folder / "profile.json"), "--json"),
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["records"] == 3
    return folder


def _compare(folder: Path, claimed: str, computed: str = "A100", *more: str):
    return _run(
        "compare",
        str(folder / f"{claimed}.json"),
        str(folder / f"{computed}.json"),
        *("--profile", str(folder / "profile.json"), *more),
    )


@pytest.mark.parametrize(
    ("claimed", "outcome", "reason", "basis"),
    [
        ("B200", ("pass", 0), "as_far_as_honest", "configuration"),
        ("H100", ("pass", 0), "as_far_as_honest", "pair"),
        ("cheat", ("fail", 2), "farther_than_honest", "configuration"),
        ("few", ("inconclusive", 3), "too_many_excluded", "configuration"),
    ],
)
def test_verdict_reason_and_exit_code(folder, claimed, outcome, reason, basis):
    result = _compare(folder, claimed, "A100", "--json", "--hidden-size", str(HIDDEN))
    body = json.loads(result.stdout)
    assert (body["verdict"], result.exit_code) == outcome
    assert body["basis"] == basis
    assert body["reasons"][0]["code"] == reason
    assert body["settings_source"] == "profile"


def test_words_for_a_person(folder):
    result = _compare(folder, "cheat")
    assert result.exit_code == 2 and "verdict: fail" in result.stdout
    assert "bulk: " in result.stdout and "degrees of freedom" in result.stdout
    assert "own: not measured, the model's hidden_size is not known" in result.stdout


def test_hardware_on_the_command_line_is_what_the_claim_is_judged_as(folder):
    flags = ("--claimed-hardware", "H100", "--hardware", "A100", "--json")
    assert json.loads(_compare(folder, "B200", "A100", *flags).stdout)["basis"] == "pair"


def test_without_a_fitting_profile_the_published_thresholds_stand_in_and_it_is_said(folder):
    result = _compare(folder, "other", "other-validator", "--json")
    body = json.loads(result.stdout)
    assert body["settings_source"] == "published thresholds"
    assert "no honest engines of model another" in body["no_fitting_profile"]
    assert body["settings"]["dist_threshold"] == 0.4
    plain = _compare(folder, "other", "other-validator")
    assert "not calibrated for this model" in plain.stdout


def test_alpha_goes_with_a_profile_and_thresholds_do_not(folder):
    result = _compare(folder, "B200", "A100", "--alpha", "0.9", "--json")
    assert json.loads(result.stdout)["alpha"] == 0.9
    refused = _compare(folder, "B200", "A100", "--dist-threshold", "0.4")
    assert isinstance(refused.exception, AssayError) and "only --alpha" in str(refused.exception)


def test_profiles_of_two_sites_merge(folder, tmp_path):
    pair = [str(folder / f"{gpu}.json") for gpu in ("B200", "A100")]
    out = tmp_path / "merged.json"
    result = _run(
        *("calibrate", *pair, "-o", str(out), "--hidden-size", str(HIDDEN)),
        *("--merge", str(folder / "profile.json")),
    )
    assert result.exit_code == 0 and "1 pairs recorded, 4 in" in result.stdout
    assert len(load_profile(out).records) == 4


def test_equal_files_calibrate_nothing_and_it_is_said(folder, tmp_path):
    same = str(folder / "A100.json")
    out = str(tmp_path / "p.json")
    result = _run("calibrate", same, same, "-o", out)
    assert "equal bit by bit" in result.stdout and "judges nothing" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("A100", "nameless"), "names no hardware"),
        (("A100", "H100", "--hardware", "A100"), "1 given for 2 files"),
        (("A100",), "no two of the sets"),
        (("A100", "other"), "no two of the sets"),
        (("A100", "H100", "--merge", "A100"), "not a profile"),
        (("A100", "H100", "--merge", "absent"), "cannot be read"),
    ],
)
def test_calibration_that_cannot_be_is_refused(folder, tmp_path, arguments, message):
    paths = [
        word
        if word.startswith("--") or arguments[place - 1] == "--hardware"
        else str(folder / f"{word}.json")
        for place, word in enumerate(arguments)
    ]
    result = _run("calibrate", *paths, "-o", str(tmp_path / "p.json"))
    assert isinstance(result.exception, AssayError)
    with pytest.raises(AssayError, match=message):
        raise result.exception


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "assay-poc-profile"}'])
def test_a_profile_that_is_none_is_refused(folder, tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(AssayError, match=r"bad\.json"):
        load_profile(path)
