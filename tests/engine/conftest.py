"""``talk``: a client of one real server, chosen by the test's parameter.

The fixture is parametrised with session scope, so pytest groups the tests of one server and ends
it before the next one starts: never more than one of these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine import servers
from tests.engine.talk import Talk
from tests.support.server import Server, ServerSpec


@pytest.fixture(scope="session")
def spec_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], ServerSpec]:
    """The specification of a server by its short name."""

    def make(name: str) -> ServerSpec:
        tiny: Path = request.getfixturevalue("tiny_path")
        if name.startswith("v2"):
            spec = servers.tight_v2(tiny, request.getfixturevalue("cpu_triton"))
        else:
            spec = servers.tight_v1(tiny)
        change = name.partition("-")[2]
        if change == "async":
            return servers.with_async(spec, tmp_path_factory.mktemp("async"))
        if change == "tp2":
            return servers.with_flags(spec, "--tensor-parallel-size", "2")
        if change == "ngram":
            return servers.with_flags(spec, *servers.NGRAM)
        assert not change, name
        return spec

    return make


@pytest.fixture(scope="session")
def talk(
    request: pytest.FixtureRequest,
    spec_of: Callable[[str], ServerSpec],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Talk]:
    """A client of the server named by the parameter; ``real`` is V1 with SmolLM2."""
    if request.param == "real":
        shared = Talk(request.getfixturevalue("v1_server"))
        yield shared
        shared.close()
        return
    log = tmp_path_factory.mktemp("engine") / f"{request.param}.log"
    with Server(spec_of(request.param), log) as server:
        client = Talk(server)
        yield client
        client.close()


@pytest.fixture
def runner(talk: Talk) -> str:
    """Model runner of the server under test, as its workers report it."""
    name = talk.status()["runner"]
    assert name in ("v1", "v2")
    return str(name)
