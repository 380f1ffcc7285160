"""Loading, refusing to start, several workers, speculative decoding (cases 13, 37, 40, 41; F20)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.engine import servers
from tests.engine.answers import CLOSE, Answer, check_evidence, furthest
from tests.engine.plugins import general_plugin
from tests.engine.talk import Talk, chat, enforced, replay_of
from tests.support.server import Server, ServerError, ServerSpec

SpecOf = Callable[[str], ServerSpec]
EOS = 2
# A trace with an end in the middle: the engine core has to know the plugin, or it stops there.
TRACE = [*np.random.default_rng(37).integers(5, 512, size=10).tolist(), EOS, 17, 18, 19]
DELETES_A_NAME = """
import vllm.v1.core.sched.scheduler as scheduler

def register():
    if hasattr(scheduler, "check_stop"):
        del scheduler.check_stop
"""
CLAIMS_A_VERSION = """
import vllm

def register():
    vllm.__version__ = "0.30.1"
"""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Answer]:
    """The first answer; the same request on more workers must equal it."""
    return {}


@pytest.mark.parametrize("talk", ["v1", "v2", "v1-tp2"], indirect=True)
def test_case_37_every_process_has_the_plugin(
    talk: Talk, runner: str, recorded: dict[str, Answer]
) -> None:
    """Case 37: API server, engine core and each worker; two workers force what one forces."""
    status = talk.status()
    size = status["tensor_parallel_size"]
    assert [worker["rank"] for worker in status["workers"]] == list(range(size))
    assert {worker["sampler"] for worker in status["workers"]} == {"assay"}
    workers = {worker["pid"] for worker in status["workers"]}
    assert len(workers) == size
    log = talk.server.log_text()
    loaded = set(map(int, re.findall(r"assay \S+ installed in process (\d+)", log)))
    assert workers < loaded
    assert len(loaded) == size + 1  # the remaining one is the engine core
    assert loaded < set(talk.server.processes())
    # The API server loads plugins before it sets up logging; it shows by what it serves and says.
    assert f"(APIServer pid={talk.server.pid})" in log
    assert re.search(rf"APIServer pid={talk.server.pid}.*enforced tokens on runner {runner}", log)
    body = chat("hi", temperature=0.9, seed=37)
    answer = talk.ask(replay_of(body, TRACE))
    assert answer.ids == TRACE
    check_evidence(answer, runner=runner)
    first = recorded.setdefault(runner, answer)
    assert furthest(first, answer) <= CLOSE
    assert answer.assay is not None
    assert first.assay is not None
    assert answer.assay["drawn"] == first.assay["drawn"]


@pytest.mark.parametrize("talk", ["v1-ngram"], indirect=True)
def test_case_13_and_40_speculative_decoding_is_refused_with_the_fix(talk: Talk) -> None:
    """Cases 13 and 40: per request, naming flag and field; ordinary requests are served."""
    assert talk.status()["speculative"] is True
    ordinary = talk.ask(chat(max_tokens=6, temperature=0))
    assert len(ordinary.ids) == 6
    for fields, param in (
        ({"enforced_tokens": enforced([17])}, "enforced_tokens"),
        ({"enforced_str": "a"}, "enforced_str"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
    ):
        error = talk.refused(chat(**fields))
        assert error["param"] == param
        assert "--speculative-config" in error["message"]
    assert talk.ask(chat(max_tokens=6, temperature=0)).ids == ordinary.ids


def refusal(spec: ServerSpec, log: Path) -> str:
    """The log of a server that must not start."""
    server = Server(spec, log)
    with pytest.raises(ServerError, match="ended while starting"):
        server.start()
    return server.log_text()


def test_f20_a_missing_name_keeps_the_server_from_starting(spec_of: SpecOf, tmp_path: Path) -> None:
    """Fault 20: an unknown shape of the engine is named; nothing is ever answered unforced."""
    folder = general_plugin(tmp_path / "site", "breaks", "assay_test_breaks", DELETES_A_NAME)
    log = refusal(servers.with_plugin(spec_of("v1"), "breaks", folder), tmp_path / "log")
    assert "vllm.v1.core.sched.scheduler.check_stop" in log
    assert "vllm-assay cannot work with this vLLM" in log


def test_case_41_an_unsupported_version_is_refused_with_the_range(
    spec_of: SpecOf, tmp_path: Path
) -> None:
    """Case 41: found out at the start, with the versions that work."""
    folder = general_plugin(tmp_path / "site", "older", "assay_test_older", CLAIMS_A_VERSION)
    log = refusal(servers.with_plugin(spec_of("v1"), "older", folder), tmp_path / "log")
    assert "supports vLLM 0.31.x, 0.32.x, 0.33.x, but 0.30.1 is installed" in log


def test_f20_without_the_worker_extension_it_does_not_start(
    spec_of: SpecOf, tmp_path: Path
) -> None:
    """Fault 20: a half-configured server says which flag is missing instead of answering unforced."""
    log = refusal(servers.without_worker_extension(spec_of("v1")), tmp_path / "log")
    assert "--worker-extension-cls assay.plugin.worker.AssayWorker" in log
