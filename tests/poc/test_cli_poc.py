"""``assay poc compare`` and ``assay poc table``: output, exit codes, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.poc.challenges import HIDDEN, noisy, states, vectors
from typer.testing import CliRunner

from assay.cli.poc import app
from assay.errors import AssayError
from assay.poc import encode_vector

CLEAN = states(60, shared=0.3)
REAL = vectors(CLEAN)


def _body(made, **extra) -> dict:
    artifacts = [
        {"nonce": nonce, "vector_b64": encode_vector(v)} for nonce, v in made.vectors.items()
    ]
    return {"block_hash": "block", "public_key": "key", "artifacts": artifacts, **extra}


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    other_key = replace(REAL.challenge, public_key="other")
    bodies = {
        "real": _body(REAL),
        "near": _body(vectors(noisy(CLEAN, 0.02))),
        "far": _body(vectors(noisy(CLEAN, 1.0))),
        "half": _body(replace(REAL, vectors={n: v for n, v in REAL.vectors.items() if n < 30})),
        "other": {**_body(vectors(CLEAN, challenge=other_key)), "public_key": "other"},
        "broken": {**_body(REAL), "artifacts": [{"nonce": 1, "vector_b64": "*"}]},
        "thresholds": {"dist_threshold": 1.9, "p_mismatch": 0.2, "alpha": 0.01},
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
    return {name: str(tmp_path / f"{name}.json") for name in bodies}


def _run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("claimed", "computed", "verdict", "code"),
    [
        ("real", "real", "pass", 0),
        ("near", "real", "pass", 0),
        ("far", "real", "fail", 2),
        ("half", "real", "inconclusive", 3),
        ("real", "half", "inconclusive", 3),
    ],
)
def test_exit_code_and_json(files, claimed, computed, verdict, code):
    result = _run("compare", files[claimed], files[computed], "--json")
    assert result.exit_code == code
    body = json.loads(result.stdout)
    assert body["verdict"] == verdict
    wanted = {"n_compared", "n_excluded", "mean_distance", "n_mismatch", "p_value", "reasons"}
    assert wanted <= set(body)
    assert body["n_compared"] + body["n_excluded"] == body["n_total"] == 60
    assert body["settings"] == {"dist_threshold": 0.4, "p_mismatch": 0.1, "alpha": 0.05}
    assert body["settings_source"] == "defaults"


def test_words_for_a_person(files):
    result = _run("compare", files["far"], files["real"], "--hidden-size", str(HIDDEN))
    assert result.exit_code == 2
    assert "verdict: fail" in result.stdout and "too_many_mismatches" in result.stdout
    assert "unexplained share" in result.stdout and "network defaults" in result.stdout


def test_options_and_profile_are_the_same_settings(files, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"dist_threshold": 1.9, "p_mismatch": 0.2, "alpha": 0.01}))
    by_profile = _run("compare", files["far"], files["real"], "--json", "--profile", str(profile))
    flags = ["--dist-threshold", "1.9", "--p-mismatch", "0.2", "--alpha", "0.01"]
    by_flags = _run("compare", files["far"], files["real"], "--json", *flags)
    assert by_profile.exit_code == by_flags.exit_code == 0
    left, right = json.loads(by_profile.stdout), json.loads(by_flags.stdout)
    assert (left.pop("settings_source"), right.pop("settings_source")) == ("profile", "options")
    assert left == right


def test_a_sample(files):
    assert _run("compare", files["real"], files["half"], "--sampled").exit_code == 0
    assert _run("compare", files["half"], files["real"], "--sampled").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("real", "other"), "public_key"),
        (("real", "broken"), r"artifacts\[0\].vector_b64"),
        (("real", "real", "--alpha", "2"), "alpha"),
        (("real", "real", "--dist-threshold", "0"), "dist_threshold"),
        (("real", "real", "--profile", "none.json"), "cannot be read"),
        (("real", "real", "--profile", "thresholds", "--alpha", "0.1"), "give one"),
    ],
)
def test_errors_conclude_nothing(files, arguments, message):
    paths = [files.get(argument, argument) for argument in arguments]
    result = _run("compare", *paths, "--json")
    assert result.stdout == ""
    assert isinstance(result.exception, AssayError)  # the main command prints it and exits 1
    with pytest.raises(AssayError, match=message):
        raise result.exception


def test_nan_in_a_file_is_a_mismatch_and_plain_json(files, tmp_path):
    rows = [[None] * 12 if n < 40 else v.tolist() for n, v in REAL.vectors.items()]
    body = {"block_hash": "block", "public_key": "key", "nonces": list(REAL.vectors)}
    path = tmp_path / "nan.json"
    path.write_text(json.dumps({**body, "vectors": rows}))
    result = _run("compare", str(path), files["real"], "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["n_mismatch"] == 40
    path.write_text(json.dumps({**body, "vectors": [[np.nan] * 12] * 60}))
    result = _run("compare", str(path), files["real"], "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["mean_distance"] is None


@pytest.fixture
def labelled(files, tmp_path) -> Path:
    header = "path,group,model,weights,label,gpu,block_hash,public_key,seq_len\n"
    rows = [
        "real.json,g,Qwen3-0.6B,fp8,honest,A,block,key,16",
        "near.json,g,Qwen3-0.6B,fp8,honest,B,block,key,16",
        "far.json,g,Qwen3-0.6B,int4,fraud,A,block,key,16",
    ]
    (tmp_path / "labels.csv").write_text(header + "\n".join(rows))
    return tmp_path


def test_table(labelled):
    result = _run("table", str(labelled))
    assert result.exit_code == 0
    assert "honest/cheat: 2 pairs" in result.stdout
    assert "zero-knowledge baseline" in result.stdout


def test_table_as_json(labelled):
    result = _run("table", str(labelled), "--json", "--dist-threshold", "0.4")
    body = json.loads(result.stdout)
    assert body["thresholds"] == [0.4]
    assert [pair["kind"] for pair in body["pairs"]] == [
        "honest/honest",
        "honest/cheat",
        "honest/cheat",
    ]
    assert body["pairs"][0]["mismatch_rates"] == [0.0]
    assert body["pairs"][1]["mismatch_rates"][0] > 0.5
    assert [entry["n"] for entry in body["zero_knowledge"]] == [60, 60, 60]
