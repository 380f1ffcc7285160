"""The demo's judgement of itself, its prompts and its servers; the whole demo is ``make demo``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.results import make_result

from assay.demo.poc import EXPECTED, PocOutcome
from assay.demo.prompts import demo_names, demo_prompts
from assay.demo.run import AT_LEAST_CAUGHT, DemoOutcome
from assay.demo.server import DemoServer, start_session, stop_session
from assay.errors import ReplayError
from assay.scoring.result import Outcome
from assay.store.result import VerifyResult


def results(*verdicts: tuple[Outcome, int]) -> tuple[VerifyResult, ...]:
    names = [(verdict, i) for verdict, count in verdicts for i in range(count)]
    return tuple(make_result(f"{verdict}-{i}", verdict=verdict) for verdict, i in names)


def proof(*, mined: int = 4, chat_tokens: int = 32, **verdicts: str) -> PocOutcome:
    """A proof part that holds, but for what is named (``honest="fail"`` changes one verdict)."""
    bodies = {
        name: {
            "verdict": verdicts.get(name.split()[0], expected),
            "n_mismatch": 0,
            "n_total": 24,
        }
        for name, expected in EXPECTED.items()
    }
    return PocOutcome(bodies, mined, chat_tokens)


def problems(
    honest: tuple[VerifyResult, ...],
    cheat: tuple[VerifyResult, ...],
    poc: PocOutcome | None = None,
) -> list[str]:
    return DemoOutcome(honest, cheat, Path("report.html"), poc or proof()).problems


@pytest.mark.parametrize(
    "poc",
    [
        proof(honest="fail"),
        proof(honest="inconclusive"),
        proof(int4="pass"),
        proof(another="pass"),
        proof(mined=0),
        proof(chat_tokens=0),
    ],
)
def test_a_proof_that_does_not_come_out_is_a_problem(poc: PocOutcome) -> None:
    assert problems(results(("pass", 12)), results(("fail", 12)), poc)


def test_all_honest_pass_and_the_cheat_is_caught() -> None:
    assert problems(results(("pass", 12)), results(("fail", 12))) == []
    assert problems(results(("pass", 12)), results(("fail", 10), ("inconclusive", 2))) == []


@pytest.mark.parametrize(
    ("honest", "cheat"),
    [
        (results(("pass", 11), ("fail", 1)), results(("fail", 12))),
        (results(("pass", 11), ("inconclusive", 1)), results(("fail", 12))),
        (results(("pass", 12)), results(("fail", 11), ("pass", 1))),
        (results(("pass", 12)), results(("fail", 9), ("inconclusive", 3))),
        (results(("pass", 12)), results(("fail", 11))),
        ((), ()),
    ],
)
def test_anything_else_is_a_problem(
    honest: tuple[VerifyResult, ...], cheat: tuple[VerifyResult, ...]
) -> None:
    assert problems(honest, cheat)


def test_twelve_prompts_several_languages_a_schema_and_a_conversation() -> None:
    prompts = demo_prompts()
    assert len(prompts) == len(demo_names()) == 12 > AT_LEAST_CAUGHT
    assert len({prompt.body["seed"] for prompt in prompts}) == 12
    assert [p.line for p in prompts if "response_format" in p.body] == [11]
    turns = [message["role"] for message in prompts[-1].body["messages"]]
    assert turns == ["system", "user", "assistant", "user"]
    assert {prompt.body["logprobs_mode"] for prompt in prompts} == {"raw_logprobs"}


def test_a_server_that_cannot_start_is_one_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    empty = tmp_path / "no-model"
    empty.mkdir()
    with (
        DemoServer(empty, [], os.environ, tmp_path / "log") as server,
        pytest.raises(ReplayError, match=r"ended with code 1.*config\.json"),
    ):
        server.wait(limit_s=60)


def test_stopping_ends_a_stubborn_server_and_what_it_started(tmp_path: Path) -> None:
    """A stand-in for the server: a shell that ignores SIGTERM and has a child."""
    pids = tmp_path / "pids"
    script = tmp_path / "model.sh"
    script.write_text(f"trap '' TERM\nsleep 300 &\necho $$ $! > {pids}\nwait\n")
    process = start_session(["sh", str(script)], os.environ, tmp_path / "log")
    while not (pids.exists() and pids.read_text().strip()):
        time.sleep(0.05)
    stop_session(process, limit_s=0.5)
    left = [int(pid) for pid in pids.read_text().split()]
    for _ in range(200):  # the kernel needs a moment to end a killed process
        left = [pid for pid in left if _alive(pid)]
        if not left:
            break
        time.sleep(0.05)
    assert left == []


def _alive(pid: int) -> bool:
    """False for a process that is gone or only waits to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"
