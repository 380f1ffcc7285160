"""``talk``: a client of one real server, chosen by the test's parameter.

The tests are put in the order of their servers, so that each is started once and ended before the
next one starts: never more than one of these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine import servers
from tests.engine.talk import Talk
from tests.support.server import Server, ServerSpec

HERE = Path(__file__).parent
SERVERS = ("v1", "v1-async", "v1-tp2", "v1-ngram", "v2", "v2-async", "real")


def _server(item: pytest.Item) -> int:
    """Where the test's server comes in the order; tests that start their own come last."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("talk") if callspec is not None else None
    return len(SERVERS) if name is None else SERVERS.index(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest itself groups by the index of a parameter, which differs from test to test."""
    places = [at for at, item in enumerate(items) if item.path.is_relative_to(HERE)]
    ordered = sorted((items[at] for at in places), key=_server)
    for at, item in zip(places, ordered, strict=True):
        items[at] = item


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
