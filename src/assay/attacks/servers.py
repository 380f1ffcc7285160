"""Servers of the kit: stock vLLM with the plugin, V1, on loopback, one thread each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from assay.attacks.catalogue import Executor
from assay.attacks.models import served_folder
from assay.demo.server import DemoServer
from assay.errors import ReplayError
from assay.replay.client import HttpEngineClient
from assay.settings import ClientSettings

SERVED_NAME = "SmolLM2-135M-Instruct"

_FLAGS = (
    *("--served-model-name", SERVED_NAME),
    *("--max-model-len", "2048"),
    *("--max-num-seqs", "16"),
    # Comparisons with other detectors read the top 50 of a prefill.
    *("--max-logprobs", "64"),
    "--enforce-eager",
)
ENVIRONMENT: Mapping[str, str] = {
    # V2 interprets its kernels on a CPU: a second a step at this vocabulary.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Two servers on two cores spin at each other's barriers with more (tests/support/specs.py).
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@asynccontextmanager
async def serving(
    executor: Executor,
    model: Path,
    environment: Mapping[str, str],
    logs: Path,
    settings: ClientSettings,
) -> AsyncIterator[HttpEngineClient]:
    """A client of a server that runs ``executor``; the server ends with the block.

    ``model`` is the honest folder, ``logs`` a folder that exists. Raises ReplayError with the end of the
    server's log when it does not start, and for an fp8 KV cache on a CPU that vLLM has no
    kernel for.
    """
    log = logs / f"{executor.name}.log"
    folder = served_folder(model, executor.weights)
    flags = [*_FLAGS, *executor.flags()]
    with DemoServer(folder, flags, {**environment, **ENVIRONMENT}, log) as server:
        try:
            server.wait()
        except ReplayError as error:
            if "FP8 KV cache" in log.read_text(encoding="utf-8", errors="replace"):
                raise ReplayError(
                    "stock vLLM has no fp8 KV cache for this CPU (it needs AVX-512 or AMX); run"
                    " the attack kv-fp8 on another machine",
                    blame="validator",
                    code="validator_unusable",
                ) from error
            raise
        async with HttpEngineClient(server.url, settings) as client:
            yield client
