"""``assay verify --profile``: calibrated verdicts and the evidence of an executor's claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_engine import FakeEngine

from assay.claims.jsonl import read_claims, write_claims
from assay.cli.main import run
from assay.store.results_file import read_results

TOKENS = 24
HONEST = 0.02
"""Noise (in logits) between two honest engines."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of 48 honest claims, and other claims by an honest and a cheaper engine."""
    made = tmp_path_factory.mktemp("profile")
    for name, engine, count in (
        ("known", FakeEngine(), 48),
        ("honest", FakeEngine(), 16),
        ("cheap", FakeEngine(noise=0.3), 16),
    ):
        prompts = made / f"{name}.txt"
        prompts.write_text("".join(f"{name} {index}\n" for index in range(count)))
        with engine.serving() as url:
            arguments = ["--server", url, "--prompts", str(prompts)]
            claims = str(made / f"{name}.jsonl")
            assert run(["record", *arguments, "-o", claims, "--max-tokens", str(TOKENS)]) == 0
    with FakeEngine(noise=HONEST).serving() as url:
        run(["verify", str(made / "known.jsonl"), "--server", url, "--store", ""])
    results = made / "known.results.jsonl"
    assert run(["calibrate", str(results), "-o", str(made / "p.json")]) == 0
    return made


def verified(
    claims: Path, *arguments: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    with FakeEngine(noise=HONEST).serving() as url:
        code = run(["verify", str(claims), "--server", url, "--store", "", "--json", *arguments])
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return code, value


def test_honest_claims_pass_by_the_profile_of_their_kind(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", str(folder / "p.json"), "-o", str(tmp_path / "r.jsonl")]
    _, printed = verified(folder / "honest.jsonl", *arguments, capsys=capsys)
    assert printed["counts"]["fail"] == 0
    assert printed["counts"]["pass"] > 0
    assert printed["executor"]["outcome"] == "not_shown"
    assert printed["executor"]["claims"] == 16
    assert printed["executor"]["fpr"] == 1e-3
    assert printed["executor"]["share"]["low"] == 0.0
    for result in printed["results"]:
        assert result["profile"].startswith("p@")
        assert 0 < result["p_value"] <= 1
        assert {channel["name"] for channel in result["channels"]} >= {"value", "account"}
    kept = read_results(tmp_path / "r.jsonl")
    assert kept[0].verdict.profile == printed["results"][0]["profile"]
    assert kept[0].verdict.fpr == 1e-3


def test_a_cheaper_engine_fails_as_an_executor(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", str(folder / "p.json"), "-o", str(tmp_path / "r.jsonl")]
    code, printed = verified(folder / "cheap.jsonl", *arguments, capsys=capsys)
    assert code == 2
    assert printed["verdict"] == "fail"
    assert printed["executor"]["outcome"] == "convicted"
    assert printed["executor"]["share"]["low"] > 0.5


def test_a_mixture_of_30_percent_fails_as_an_executor(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 honest claims and 7 cheap ones among them; a profile of 48 claims can say 1 in 20."""
    honest, cheap = read_claims(folder / "honest.jsonl"), read_claims(folder / "cheap.jsonl")
    mixed = list(honest)
    for index in range(7):
        mixed.insert(3 * index + 2, cheap[index])
    write_claims(tmp_path / "mixed.jsonl", mixed)
    arguments = ["--profile", str(folder / "p.json"), "--fpr", "0.05"]
    code, printed = verified(tmp_path / "mixed.jsonl", *arguments, capsys=capsys)
    assert code == 2
    assert printed["executor"]["outcome"] == "convicted"
    share = printed["executor"]["share"]
    assert 0 < share["low"] <= 7 / 23 <= share["high"]


def test_the_executor_is_printed_for_people(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEngine(noise=HONEST).serving() as url:
        arguments = ["--server", url, "--store", "", "-o", str(tmp_path / "r.jsonl")]
        run(
            ["verify", str(folder / "cheap.jsonl"), *arguments, "--profile", str(folder / "p.json")]
        )
    printed = capsys.readouterr().out
    assert "executor: fails by the claims together" in printed
    assert "estimated" in printed


def test_a_profile_of_other_conditions_is_not_used_and_says_why(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published thresholds then decide, marked as not calibrated."""
    claims = [
        claim.model_copy(update={"engine": claim.engine.model_copy(update={"dtype": "float16"})})
        for claim in read_claims(folder / "honest.jsonl")
    ]
    write_claims(tmp_path / "c.jsonl", claims)
    arguments = ["--profile", str(folder / "p.json")]
    _, printed = verified(tmp_path / "c.jsonl", *arguments, capsys=capsys)
    first = printed["results"][0]
    assert first["profile"] is None
    assert "dtype is float16, the profile's float32" in first["calibration"]
    assert "not calibrated" in first["calibration"]
    assert printed["executor"]["outcome"] == "not_available"
    with FakeEngine(noise=HONEST).serving() as url:
        run(["verify", str(tmp_path / "c.jsonl"), "--server", url, "--store", "", *arguments])
    assert "claims without a profile" in capsys.readouterr().out


def test_a_claim_that_does_not_say_its_engine_needs_consent(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = [
        claim.model_copy(update={"engine": claim.engine.model_copy(update={"dtype": None})})
        for claim in read_claims(folder / "honest.jsonl")
    ]
    write_claims(tmp_path / "c.jsonl", claims)
    arguments = ["--profile", str(folder / "p.json")]
    _, refused = verified(tmp_path / "c.jsonl", *arguments, capsys=capsys)
    assert "executor's dtype" in refused["results"][0]["calibration"]
    _, allowed = verified(tmp_path / "c.jsonl", *arguments, "--allow-unknown", capsys=capsys)
    assert allowed["results"][0]["profile"].startswith("p@")
    assert "executor's dtype" in allowed["results"][0]["calibration"]


def test_without_a_profile_there_is_no_executor_verdict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed = verified(folder / "honest.jsonl", "-o", str(tmp_path / "r.jsonl"), capsys=capsys)
    assert printed["executor"] is None
    assert printed["results"][0]["profile"] is None


def test_another_rate_or_profile_is_another_verdict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results decided under other options are not taken for these."""
    out = ["-o", str(tmp_path / "r.jsonl")]
    profile = ["--profile", str(folder / "p.json")]
    _, first = verified(folder / "honest.jsonl", *out, *profile, capsys=capsys)
    _, again = verified(folder / "honest.jsonl", *out, *profile, capsys=capsys)
    _, other = verified(folder / "honest.jsonl", *out, *profile, "--fpr", "0.05", capsys=capsys)
    decided = [printed["decided_before"] for printed in (first, again, other)]
    assert decided == [0, 16, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fpr", "0"], "false-positive rate"),
        (["--fpr", "nan"], "false-positive rate"),
        (["--profile", "none.json"], "cannot read profile"),
    ],
)
def test_what_cannot_be_used_is_an_error_before_anything_is_replayed(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = str(folder / "honest.jsonl")
    assert run(["verify", claims, "--server", "http://127.0.0.1:9", *arguments]) == 1
    assert message in capsys.readouterr().err
