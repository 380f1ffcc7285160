"""Entry point ``vllm.general_plugins``: vLLM calls :func:`register` in every process it starts.

API server, engine core and workers all load it, under fork and spawn, possibly more than once; it
checks the engine first and then puts our classes and functions in place of the few stock names
listed in ``surfaces.py``. Any doubt raises, and the server does not start.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import vllm
import vllm.envs

from assay import __version__
from assay.plugin import surfaces
from assay.plugin.constants import RING_CHUNKS_SETTING, TRACE_ARG
from assay.plugin.ring import MIB, parse_chunks, sized_ring

logger = logging.getLogger("vllm.assay")


def register() -> None:
    """Check every surface, then install. Idempotent."""
    surfaces.check_version(vllm.__version__)
    stock = {surface.path: surfaces.resolve(surface) for surface in surfaces.SURFACES}
    _install_v1(stock)
    _install_v2(stock)
    _install_stopping(stock)
    _install_grammar(stock)
    _install_ring(stock)
    # One line a process: who reads the log sees that none was left out (case 37).
    logger.info("assay %s installed in process %d", __version__, os.getpid())


def _install_v1(stock: dict[str, Any]) -> None:
    from assay.plugin.sampler_v1 import AssaySamplerV1, RowBook

    runner = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    build = stock["vllm.v1.worker.gpu_model_runner.build_logitsprocs"]
    if runner.Sampler is AssaySamplerV1:
        return

    def build_logitsprocs(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        processors = build(vllm_config, *args, **kwargs)
        if vllm_config.model_config.runner_type != "pooling":
            book = RowBook(vllm_config.model_config.get_vocab_size())
            processors.argmax_invariant.append(book)
        return processors

    runner.Sampler = AssaySamplerV1
    runner.build_logitsprocs = build_logitsprocs


def _install_v2(stock: dict[str, Any]) -> None:
    from assay.plugin.sampler_v2 import AssaySamplerV2

    runner = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    runner.Sampler = AssaySamplerV2


def _install_stopping(stock: dict[str, Any]) -> None:
    from assay.plugin.stopping import tolerant

    check_stop = stock["vllm.v1.core.sched.scheduler.check_stop"]
    if not hasattr(check_stop, "assay_stock"):
        scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
        scheduler.check_stop = tolerant(check_stop)


def _install_grammar(stock: dict[str, Any]) -> None:
    from assay.plugin.grammar import degrading

    manager = stock["vllm.v1.structured_output.StructuredOutputManager"]
    if not hasattr(manager._create_grammar, "assay_stock"):
        manager._create_grammar = degrading(manager._create_grammar, is_replay)


def _install_ring(stock: dict[str, Any]) -> None:
    # vLLM's own settings are environment variables and this one sits beside them
    # (VLLM_MQ_MAX_CHUNK_BYTES_MB): every process of the engine must see the same value.
    chunks = parse_chunks(os.environ.get(RING_CHUNKS_SETTING))
    ring = stock["vllm.distributed.device_communicators.shm_broadcast.ShmRingBuffer"]
    if chunks is not None and not hasattr(ring.__init__, "assay_stock"):
        ring.__init__ = sized_ring(ring, chunks, vllm.envs.VLLM_MQ_MAX_CHUNK_BYTES_MB * MIB)


def is_replay(request: Any) -> bool:
    """Whether an engine request carries a trace of ours."""
    params = request.sampling_params
    return bool(params is not None and params.extra_args and TRACE_ARG in params.extra_args)
