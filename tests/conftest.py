"""Shared models and servers. Each is made when the first test asks for it, once a session.

Servers (a start takes about 30 s and 3 GB; two fit on a machine with 8 GB):

    v1_server        V1, SmolLM2, plugin        v1_plain_server   the same without the plugin
    v1_tiny_server   V1, tiny model, plugin     v2_server         V2, tiny model, plugin
    v2_plain_server  V2, tiny model, no plugin
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest
from tests.support import specs
from tests.support.cpu_triton_site import cpu_triton_site
from tests.support.server import Server, ServerSpec
from tests.support.tiny import tiny_llama

from assay.demo.models import rounded_copy, smollm2
from assay.demo.settings import CacheSettings

ROOT = Path(__file__).resolve().parent.parent
StartServer = Callable[[str, ServerSpec], Server]


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def pytest_configure() -> None:
    # `timeout` and CI runners end pytest with these; without a handler no fixture is torn down
    # and the servers outlive the run.
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGHUP, _interrupted)


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where models are kept between runs: ``ASSAY_CACHE_DIR``, else ``.cache`` of the checkout."""
    return CacheSettings().assay_cache_dir or ROOT / ".cache" / "assay"


@pytest.fixture(scope="session")
def smollm2_path(cache_dir: Path) -> Path:
    """SmolLM2-135M-Instruct; made on the first run of a machine (about 30 s)."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # transformers' own, none of ours to mend
        return smollm2(cache_dir)


@pytest.fixture(scope="session")
def int4_path(smollm2_path: Path) -> Path:
    """The same model with its weights rounded to int4: the default cheat."""
    return rounded_copy(smollm2_path, "int4")


@pytest.fixture(scope="session")
def tiny_path(cache_dir: Path) -> Path:
    """The tiny random Llama."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        return tiny_llama(cache_dir)


@pytest.fixture(scope="session")
def cpu_triton(cache_dir: Path) -> Path:
    """Folder for PYTHONPATH that lets Model Runner V2 run on the CPU."""
    return cpu_triton_site(cache_dir)


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start a server that lives until the end of the session: ``start_server(name, spec)``."""
    logs = tmp_path_factory.mktemp("servers")
    with ExitStack() as running:

        def start(name: str, spec: ServerSpec) -> Server:
            return running.enter_context(Server(spec, logs / f"{name}.log"))

        yield start


@pytest.fixture(scope="session")
def v1_server(start_server: StartServer, smollm2_path: Path) -> Server:
    spec = specs.v1(smollm2_path, plugin=True, max_model_len=specs.REAL_MODEL_LENGTH)
    return start_server("v1", spec)


@pytest.fixture(scope="session")
def v1_plain_server(start_server: StartServer, smollm2_path: Path) -> Server:
    spec = specs.v1(smollm2_path, plugin=False, max_model_len=specs.REAL_MODEL_LENGTH)
    return start_server("v1-plain", spec)


@pytest.fixture(scope="session")
def v1_tiny_server(start_server: StartServer, tiny_path: Path) -> Server:
    spec = specs.v1(tiny_path, plugin=True, max_model_len=specs.TINY_MODEL_LENGTH)
    return start_server("v1-tiny", spec)


@pytest.fixture(scope="session")
def v2_server(start_server: StartServer, tiny_path: Path, cpu_triton: Path) -> Server:
    spec = specs.v2(tiny_path, cpu_triton, plugin=True, max_model_len=specs.TINY_MODEL_LENGTH)
    return start_server("v2", spec)


@pytest.fixture(scope="session")
def v2_plain_server(start_server: StartServer, tiny_path: Path, cpu_triton: Path) -> Server:
    spec = specs.v2(tiny_path, cpu_triton, plugin=False, max_model_len=specs.TINY_MODEL_LENGTH)
    return start_server("v2-plain", spec)
