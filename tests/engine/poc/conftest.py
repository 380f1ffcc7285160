"""``engine``: an engine in a process of its own, one at a time, on the runner the parameter names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.engine.plugins import general_plugin
from tests.engine.poc.process import EngineProcess
from tests.engine.servers import ASYNC_HELPER
from tests.support import specs

NO_CORE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The engine in the driver's own process, so that it can be stepped."""


@dataclass
class Engines:
    """Starts engines on one runner; keeps the one that runs while the same one is asked for."""

    runner: str
    process: EngineProcess
    asynchronous: bool
    _loaded: tuple[Any, ...] = field(default=())

    def load(self, model: Path, **options: Any) -> EngineProcess:
        """An engine with ``model``; fails the test when it does not start."""
        if self.asynchronous:
            options["async_scheduling"] = True
        wanted = (str(model), repr(sorted(options.items())))
        if self._loaded != wanted:
            self._loaded = ()
            started = self.process.start(model, **options)
            assert started == {"async": self.asynchronous}, started
            self._loaded = wanted
        return self.process

    def refuses(self, model: Path, **options: Any) -> str:
        """Why an engine with ``model`` does not start."""
        self._loaded = ()
        return str(self.process.start(model, **options)["refused"])


@pytest.fixture(scope="session")
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, str]]:
    """The environment of an engine on ``v1`` or ``v2``, with ``-async`` for async scheduling."""

    def of(name: str) -> dict[str, str]:
        runner, _, scheduling = name.partition("-")
        tiny: Path = request.getfixturevalue("tiny_path")
        if runner == "v1":
            spec = specs.v1(tiny, plugin=True, max_model_len=512)
        else:
            site: Path = request.getfixturevalue("cpu_triton")
            spec = specs.v2(tiny, site, plugin=True, max_model_len=512)
        env = {**spec.env, **NO_CORE_PROCESS}
        if scheduling:
            folder = tmp_path_factory.mktemp("async-poc")
            general_plugin(folder, "async_cpu", ASYNC_HELPER.stem, ASYNC_HELPER.read_text())
            env["VLLM_PLUGINS"] += ",async_cpu"
            env["PYTHONPATH"] = ":".join(filter(None, (str(folder), env.get("PYTHONPATH"))))
        return env

    return of


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest,
    environment: Callable[[str], dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engines]:
    """Engines on the runner of the parameter. pytest groups the tests of one parameter."""
    name: str = request.param
    log = tmp_path_factory.mktemp("poc") / f"{name}.log"
    with EngineProcess(environment(name), log) as process:
        yield Engines(name.partition("-")[0], process, name.endswith("-async"))


@pytest.fixture
def engine(engines: Engines, tiny_path: Path) -> EngineProcess:
    """The tiny Llama on the runner of the parameter."""
    return engines.load(tiny_path)
