"""``assay calibrate`` and ``assay power`` on results of real verifications (loopback server)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.scoring.simulated import HONEST, INT4, Law, draws, profile
from tests.support.fake_engine import FakeEngine
from tests.support.results import make_result

from assay.claims.account import Check
from assay.claims.positions import Position
from assay.cli.main import run
from assay.scoring.calibrate import NOT_ONE_CONDITION
from assay.scoring.profile import read_profile
from assay.scoring.result import Reason
from assay.store.result import VerifyResult, claim_digest
from assay.store.results_file import read_results

COUNT = 24


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[VerifyResult]:
    """24 claims by one engine, replayed on another that computes a little differently."""
    folder = tmp_path_factory.mktemp("honest")
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"question {index}\n" for index in range(COUNT)))
    claims = folder / "honest.jsonl"
    with FakeEngine().serving() as url:
        arguments = ["--server", url, "--prompts", str(prompts), "-o", str(claims)]
        assert run(["record", *arguments, "--max-tokens", "24"]) == 0
    with FakeEngine(noise=0.02).serving() as url:
        run(["verify", str(claims), "--server", url, "--store", ""])
    found = read_results(folder / "honest.results.jsonl")
    assert len(found) == COUNT
    return found


def write(path: Path, results: list[VerifyResult]) -> Path:
    path.write_text("".join(f"{result.model_dump_json()}\n" for result in results))
    return path


def changed(result: VerifyResult, **claim: Any) -> VerifyResult:
    """The same result of a claim with other fields."""
    other = result.claim.model_copy(update=claim)
    return result.model_copy(update={"claim": other, "claim_digest": claim_digest(other)})


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def test_honest_results_become_a_profile(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, out = write(tmp_path / "r.jsonl", honest), tmp_path / "p.json"
    capsys.readouterr()
    assert run(["calibrate", str(results), "-o", str(out), "--json"]) == 0
    printed = answer(capsys)
    made = read_profile(out)
    assert printed["id"] == made.id
    assert printed["claims"] == made.claims == COUNT
    assert printed["path"] == "decode"
    value = printed["statistics"]["value_distance"]
    assert value["claims"] == COUNT
    assert "conformal" in value["tail"]
    # Numbers of another prompt are much farther than those of another honest engine.
    assert value["zero_knowledge"] > 3 * value["largest"]
    key = printed["groups"][0]["key"]
    assert key["executor"]["dtype"] == key["validator"]["dtype"] == "float32"
    assert made.groups[0].key.validator.attention_backend == "FAKE"
    assert len(made.baseline) == COUNT


def test_what_it_holds_is_printed_for_people(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, out = write(tmp_path / "r.jsonl", honest), tmp_path / "p.json"
    assert run(["calibrate", str(results), "-o", str(out), "--name", "fake"]) == 0
    printed = capsys.readouterr().out
    assert "fake@" in printed
    assert "24 claims" in printed
    assert "value_distance" in printed
    assert str(out) in printed


def test_two_files_and_a_merge_are_one_profile(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same claim in two files counts once; other hardware is a group of its own."""
    results = write(tmp_path / "r.jsonl", honest)
    again = write(tmp_path / "again.jsonl", honest[:5])
    first = tmp_path / "p.json"
    assert run(["calibrate", str(results), str(again), "-o", str(first), "--pool"]) == 0
    assert read_profile(first).claims == COUNT
    elsewhere = [
        changed(r, engine=r.claim.engine.model_copy(update={"hardware": "B"})) for r in honest
    ]
    other = write(tmp_path / "b.jsonl", elsewhere)
    merged = tmp_path / "merged.json"
    capsys.readouterr()
    assert run(["calibrate", str(other), "-o", str(merged), "--merge", str(first), "--json"]) == 0
    assert answer(capsys)["claims"] == 2 * COUNT
    assert [len(group.records) for group in read_profile(merged).groups] == [COUNT, COUNT]


def test_files_are_runs_of_their_own_unless_pooled(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", honest)
    two = write(tmp_path / "two.jsonl", [changed(r, id=f"{r.claim.id}-again") for r in honest])
    out = tmp_path / "p.json"
    capsys.readouterr()
    assert run(["calibrate", str(one), str(two), "-o", str(out), "--json"]) == 0
    assert [group["run"] for group in answer(capsys)["groups"]] == ["one", "two"]
    assert len(read_profile(out).nulls["value_distance"].samples) == 2
    assert run(["calibrate", str(one), str(two), "-o", str(out), "--json", "--pool"]) == 0
    assert [group["claims"] for group in answer(capsys)["groups"]] == [2 * COUNT]
    few = write(tmp_path / "few.jsonl", honest[:5])
    assert run(["calibrate", str(one), str(few), "-o", str(out)]) == 1
    assert "run few: 5 claims" in capsys.readouterr().err


def refused(results: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    out = tmp_path / "p.json"
    capsys.readouterr()
    assert run(["calibrate", str(write(tmp_path / "r.jsonl", results)), "-o", str(out)]) == 1
    assert not out.exists()
    return capsys.readouterr().err


def test_too_few_claims_state_the_minimum(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(honest[:19], tmp_path, capsys)
    assert "19 claims" in error
    assert "at least 20" in error


def test_no_results_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no results" in refused([], tmp_path, capsys)


def test_mixed_paths_are_refused(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each path has its own null."""
    replay = honest[0].replay
    assert replay is not None
    one = honest[0].model_copy(update={"replay": replay.model_copy(update={"path": "prefill"})})
    assert "replay paths (decode, prefill)" in refused([one, *honest[1:]], tmp_path, capsys)


def test_mixed_modes_are_refused(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mode = "processed_logprobs"
    replay = honest[0].replay
    assert replay is not None
    one = changed(honest[0], logprobs_mode=mode)
    one = one.model_copy(update={"replay": replay.model_copy(update={"logprobs_mode": mode})})
    assert "log probability modes" in refused([one, *honest[1:]], tmp_path, capsys)


@pytest.mark.parametrize("code", sorted(NOT_ONE_CONDITION))
def test_runs_that_are_not_of_one_condition_are_refused(
    code: str, honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = Reason(code=code, message="so it was")
    verdict = honest[3].verdict.model_copy(update={"reasons": (reason,)})
    one = honest[3].model_copy(update={"verdict": verdict})
    error = refused([*honest[:3], one, *honest[4:]], tmp_path, capsys)
    assert f"1 of {COUNT} results" in error
    assert code in error
    assert honest[3].claim.id in error


def test_a_claim_that_contradicts_itself_is_refused(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Check(name="output_count", outcome="fail", reason="no", code="position_gap")
    verdict = honest[0].verdict.model_copy(update={"account": (check,)})
    one = honest[0].model_copy(update={"verdict": verdict})
    assert "position_gap" in refused([one, *honest[1:]], tmp_path, capsys)


def test_a_claim_that_was_never_replayed_is_refused(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unreplayed = make_result("u", blame="validator")
    assert "no_replay" in refused([unreplayed, *honest], tmp_path, capsys)


def test_honest_distances_above_the_default_threshold_are_learned(
    honest: list[VerifyResult], tmp_path: Path
) -> None:
    """That hand-set thresholds convict honest hardware is what a profile is for."""
    reason = Reason(code="similarity_below", message="too far for the default")
    far = [
        r.model_copy(
            update={
                "verdict": r.verdict.model_copy(update={"verdict": "fail", "reasons": (reason,)})
            }
        )
        for r in honest
    ]
    results = write(tmp_path / "r.jsonl", far)
    assert run(["calibrate", str(results), "-o", str(tmp_path / "p.json")]) == 0


def test_bit_equal_runs_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The claim and the replay of ``make_result`` are the same numbers."""
    twins = [make_result(f"t{index}", tokens=20) for index in range(COUNT)]
    results = write(tmp_path / "r.jsonl", twins)
    capsys.readouterr()
    assert run(["calibrate", str(results), "-o", str(tmp_path / "p.json"), "--json"]) == 0
    warnings = answer(capsys)["warnings"]
    assert any("every value distance is 0" in warning for warning in warnings)


def test_a_claim_that_stands_out_is_named(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cheat among honest claims would widen the null for all cheats: the honest ones under
    three names, one with numbers of a cheaper copy."""
    copies = [changed(r, id=f"{r.claim.id}-{k}") for k in range(3) for r in honest]
    held = copies[0].claim.positions
    assert held is not None
    off = tuple(
        p.model_copy(
            update={
                "top": tuple(
                    e.model_copy(update={"logprob": e.logprob * 1.5 if e.logprob else -0.1})
                    for e in p.top
                )
            }
        )
        for p in held
    )
    copies[0] = changed(copies[0], positions=off)
    results = write(tmp_path / "r.jsonl", copies)
    capsys.readouterr()
    assert run(["calibrate", str(results), "-o", str(tmp_path / "p.json"), "--json"]) == 0
    named = [w for w in answer(capsys)["warnings"] if "stands out" in w]
    assert named
    assert all(claim_digest(copies[0].claim)[:16] in warning for warning in named)


def test_a_profile_cannot_be_written_where_a_file_is(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    results = write(tmp_path / "r.jsonl", honest)
    assert run(["calibrate", str(results), "-o", str(tmp_path / "file" / "p.json")]) == 1
    assert "cannot write" in capsys.readouterr().err


# --- assay power


@pytest.fixture
def power(tmp_path: Path) -> Callable[..., int]:
    file = tmp_path / "p.json"
    profile(draws(HONEST, 60, 0)).with_attack("int4", draws(INT4, 16, 1)).write(file)
    return partial(_power, file)


def _power(file: Path, *arguments: str) -> int:
    return run(["power", "--profile", str(file), *arguments])


def test_power_says_tokens_and_claims(
    power: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert power("--attack", "int4", "--fpr", "1e-2", "--json") == 0
    printed = answer(capsys)
    assert printed["tokens"] in (8, 12, 16, 24, 32, 48, 64)
    assert 1 <= printed["executor_claims"] <= 20
    assert printed["detection"][0]["tokens"] == 8
    assert power("--attack", "int4", "--fpr", "1e-2") == 0
    text = capsys.readouterr().out
    assert f"{printed['tokens']} tokens is enough" in text
    assert "one executor" in text


def test_power_answers_for_each_set_of_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against honest engines that differ more, an attack is harder to tell; against an executor that
    may be either, as hard as against those."""
    wide = Law(distance=0.06, mismatch=0.3)
    known = profile(draws(HONEST, 60, 0), "A").merged(profile(draws(wide, 60, 1), "B"))
    file = tmp_path / "p.json"
    known.with_attack("int4", draws(INT4, 16, 1)).write(file)
    arguments = ["--profile", str(file), "--attack", "int4", "--fpr", "1e-2"]
    assert run(["power", *arguments, "--json"]) == 0
    printed = answer(capsys)
    near, far = printed["conditions"].values()
    assert near["tokens"] is not None
    assert far["tokens"] is None
    assert printed["tokens"] is None
    assert run(["power", *arguments]) == 0
    text = capsys.readouterr().out
    assert "an executor of unknown conditions" in text
    assert all(name in text for name in printed["conditions"])


def test_power_of_an_unknown_attack_lists_those_known(
    power: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert power("--attack", "fp8") == 1
    assert "known: int4" in capsys.readouterr().err


def test_attacks_come_into_a_profile_by_name(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The honest claims under a stranger's numbers, as results of a verification."""
    held = [result.claim.positions for result in honest]
    foreign = [
        changed(result, positions=other)
        for result, other in zip(honest, [*held[1:], held[0]], strict=True)
    ]
    cheats = write(tmp_path / "cheats.jsonl", foreign)
    results, out = write(tmp_path / "r.jsonl", honest), tmp_path / "p.json"
    arguments = ["calibrate", str(results), "-o", str(out)]
    assert run([*arguments, "--attack", f"copied={cheats}"]) == 1  # their tokens differ at once
    assert "attack copied: no claim" in capsys.readouterr().err
    doubled = [
        changed(result, positions=tuple(_doubled(p) for p in result.claim.positions or ()))
        for result in honest
    ]
    cheats = write(tmp_path / "doubled.jsonl", doubled)
    assert run([*arguments, "--attack", f"sharper={cheats}", "--json"]) == 0
    assert answer(capsys)["attacks"] == {"sharper": COUNT}
    assert run(["power", "--profile", str(out), "--attack", "sharper", "--fpr", "0.2"]) == 0
    assert "sharper against p@" in capsys.readouterr().out
    assert run([*arguments, "--attack", "nothing"]) == 1
    assert "NAME=RESULTS" in capsys.readouterr().err


def _doubled(position: Position) -> Position:
    top = tuple(e.model_copy(update={"logprob": 2 * e.logprob}) for e in position.top)
    return position.model_copy(update={"top": top})


def test_power_of_the_baseline(
    honest: list[VerifyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an executor without the model scores is an attack too."""
    out = tmp_path / "p.json"
    assert run(["calibrate", str(write(tmp_path / "r.jsonl", honest)), "-o", str(out)]) == 0
    capsys.readouterr()
    arguments = ["--profile", str(out), "--attack", "zero-knowledge", "--fpr", "0.2", "--json"]
    assert run(["power", *arguments]) == 0
    assert answer(capsys)["tokens"] is not None
