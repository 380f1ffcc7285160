"""``assay record`` and ``assay verify`` against a loopback server: files, resuming, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_engine import FakeEngine, error

from assay.claims.jsonl import read_claims, write_claims
from assay.cli.main import run
from assay.store.database import Store
from assay.store.results_file import read_results


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\nthree\nfour\n")
    return file


def record(engine: FakeEngine, prompts: Path, name: str, *more: str) -> Path:
    claims = prompts.with_name(name)
    with engine.serving() as url:
        arguments = ["--server", url, "--prompts", str(prompts), "-o", str(claims)]
        assert run(["record", *arguments, "--max-tokens", "40", *more]) == 0
    return claims


def verify(engine: FakeEngine, claims: Path, *more: str) -> int:
    with engine.serving() as url:
        return run(["verify", str(claims), "--server", url, *more])


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def test_honest_claims_exit_0_and_leave_everything(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    capsys.readouterr()
    assert verify(FakeEngine(), claims, "--json") == 0
    printed = last_json(capsys)
    assert printed["verdict"] == "pass"
    assert printed["counts"] == {"pass": 4, "fail": 0, "inconclusive": 0}
    assert printed["results"][0]["reasons"] == []
    results = read_results(claims.with_suffix(".results.jsonl"))
    assert {result.label for result in results} == {"a"}
    with Store(prompts.with_name("assay.db")) as store:
        assert sorted(r.claim.id for r in store.results()) == sorted(r.claim.id for r in results)


def test_any_fail_exits_2_and_says_why(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = record(FakeEngine(noise=3.0), prompts, "a.jsonl")
    assert verify(FakeEngine(), claims) == 2
    printed = capsys.readouterr().out
    assert "0 pass, 4 fail, 0 inconclusive" in printed
    assert "mean distance" in printed


def test_fail_outranks_inconclusive(prompts: Path) -> None:
    good = read_claims(record(FakeEngine(), prompts, "a.jsonl"))
    bad = read_claims(record(FakeEngine(noise=3.0), prompts, "b.jsonl"))
    foreign = good[0].model_copy(update={"request": good[0].request | {"model": "other"}})
    both = prompts.with_name("both.jsonl")
    write_claims(both, [foreign, bad[1]])
    assert verify(FakeEngine(), both) == 2
    write_claims(both, [foreign, good[1]])
    assert verify(FakeEngine(), both) == 3


def test_nothing_verified_is_never_a_pass(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert verify(FakeEngine(), empty) == 3


def test_an_outage_exits_3_and_the_next_run_settles_it(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    shaky = FakeEngine(fail_with=[error(500, "out of memory")])
    assert verify(shaky, claims) == 3
    capsys.readouterr()
    engine = FakeEngine()
    assert verify(engine, claims, "--json") == 0
    assert last_json(capsys)["decided_before"] == 3
    assert len(engine.requests) == 1


def test_a_crash_midway_loses_only_the_half_written_line(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(), claims) == 0
    results = claims.with_suffix(".results.jsonl")
    results.write_bytes(results.read_bytes()[:-100])
    capsys.readouterr()
    engine = FakeEngine()
    assert verify(engine, claims, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["decided_before"] == 3
    assert "half-written line" in printed.err
    assert len(engine.requests) == 1
    assert len(read_results(results)) == 4


def test_another_threshold_is_another_question(prompts: Path) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    engine = FakeEngine()
    assert verify(engine, claims) == 0
    assert verify(engine, claims, "--threshold", "0.9") == 0
    assert len(engine.requests) == 8


def test_a_server_without_the_plugin_is_an_error_and_no_verdict(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(plugin=False), claims) == 1
    assert "assay serve" in capsys.readouterr().err
    assert not claims.with_suffix(".results.jsonl").exists()


@pytest.mark.parametrize("path", ["prefill", "auto"])
def test_a_plain_server_judges_on_the_prefill_path(
    prompts: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = record(FakeEngine(), prompts, "a.jsonl")
    cheat = record(FakeEngine(noise=3.0), prompts, "b.jsonl")
    capsys.readouterr()
    assert verify(FakeEngine(plugin=False), honest, "--path", path, "--json") == 0
    assert {result["path"] for result in last_json(capsys)["results"]} == {"prefill"}
    assert verify(FakeEngine(plugin=False), cheat, "--path", path) == 2
    assert "4 fail, 0 inconclusive (prefill path)" in capsys.readouterr().out
    stored = read_results(honest.with_suffix(".results.jsonl"))
    assert {r.replay.path for r in stored if r.replay is not None} == {"prefill"}


def test_results_of_two_paths_are_not_mixed_and_each_is_resumed(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    for path in ("decode", "prefill"):
        capsys.readouterr()
        assert verify(FakeEngine(), claims, "--path", path, "--json") == 0
        assert last_json(capsys)["decided_before"] == 0
    for path in ("decode", "prefill"):
        engine = FakeEngine()
        assert verify(engine, claims, "--path", path, "--json") == 0
        printed = last_json(capsys)
        assert printed["decided_before"] == 4
        assert {result["path"] for result in printed["results"]} == {path}
        assert engine.requests == []


def test_auto_says_why_it_decoded(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [claim, *_] = read_claims(record(FakeEngine(), prompts, "a.jsonl"))
    held = claim.model_copy(
        update={"request": claim.request | {"response_format": {"type": "json_object"}}}
    )
    file = prompts.with_name("held.jsonl")
    write_claims(file, [held])
    capsys.readouterr()
    assert verify(FakeEngine(), file, "--path", "auto", "--json") == 0
    [result] = last_json(capsys)["results"]
    assert result["path"] == "decode"
    assert result["notes"][0]["code"] == "path_decode"
    assert "grammar" in result["notes"][0]["message"]
    assert verify(FakeEngine(), file, "--path", "prefill", "--json") == 3
    [result] = last_json(capsys)["results"]
    assert result["failure"] == "prefill_not_available"


def test_an_unknown_path_is_refused_by_name(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(), claims, "--path", "fast") == 1
    assert "decode, prefill, auto" in capsys.readouterr().err


def test_a_dying_server_exits_1_and_the_next_run_goes_on(
    prompts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_RETRIES", "0")
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(dead_after=2), claims, "--concurrency", "1") == 1
    assert "run the same command again" in capsys.readouterr().err
    engine = FakeEngine()
    assert verify(engine, claims) == 0
    assert len(engine.requests) == 2


def test_the_store_can_be_another_or_none(prompts: Path) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(), claims, "--store", "") == 0
    assert not prompts.with_name("assay.db").exists()
    other = prompts.with_name("other.db")
    assert verify(FakeEngine(), claims, "--store", str(other), "-o", str(other) + ".jsonl") == 0
    with Store(other) as store:
        assert len(store.results("a")) == 4


@pytest.mark.parametrize("content", ["{broken\n", '{"schema_version": 9}\n'])
def test_a_claims_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = tmp_path / "bad.jsonl"
    claims.write_text(content)
    assert verify(FakeEngine(), claims) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "bad.jsonl line 1" in errors


def test_a_missing_claims_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(FakeEngine(), tmp_path / "none.jsonl") == 1
    assert "cannot read claims" in capsys.readouterr().err


def test_hostile_ids_reach_the_terminal_as_text(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [claim, *_] = read_claims(record(FakeEngine(), prompts, "a.jsonl"))
    evil = prompts.with_name("evil.jsonl")
    write_claims(evil, [claim.model_copy(update={"id": "\x1b[31m[red]x[/red]"})])
    assert verify(FakeEngine(), evil) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[red]x[/red]" in printed


@pytest.mark.parametrize("more", [("--stream",), ("--logprobs-mode", "raw_logprobs")])
def test_record_writes_claims_that_verify(prompts: Path, more: tuple[str, ...]) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl", *more)
    assert len(read_claims(claims)) == 4
    assert verify(FakeEngine(), claims) == 0


def test_case_20_record_names_answers_without_ids(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEngine(token_ids=False).serving() as url:
        code = run(["record", "--server", url, "--prompts", str(prompts), "-o", "x.jsonl"])
    assert code == 1
    errors = capsys.readouterr().err
    assert "prompt line 1: cannot build a claim" in errors
    assert "none of 4 answers" in errors


def test_record_json(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(FakeEngine(), prompts, "a.jsonl", "--json")
    printed = last_json(capsys)
    assert (printed["claims"], printed["tokens"], printed["refused"]) == (4, 160, [])
    assert printed["engine"]["engine_version"] == "0.32.0"


def test_a_wrong_mode_is_refused_by_name(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = record(FakeEngine(), prompts, "a.jsonl")
    assert verify(FakeEngine(), claims, "--logprobs-mode", "raw") == 1
    assert "raw_logprobs, processed_logprobs" in capsys.readouterr().err
