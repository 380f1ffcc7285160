"""Run by ``test_general.py``: load vLLM's plugins here, in forks and in a spawned child, and report.

Prints one JSON object: process kind -> what was found there, change -> how the process ended.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def depth(function: Callable[..., Any]) -> int:
    """How many times a function was wrapped by us."""
    wrapped = 0
    while hasattr(function, "assay_stock"):
        function, wrapped = function.assay_stock, wrapped + 1
    return wrapped


def names() -> dict[str, Any]:
    """The places the plugin changes."""
    v1 = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    v2 = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
    structured = importlib.import_module("vllm.v1.structured_output")
    rings = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    return {
        "v1": v1.Sampler,
        "v2": v2.Sampler,
        "build": v1.build_logitsprocs,
        "check_stop": scheduler.check_stop,
        "grammar": structured.StructuredOutputManager._create_grammar,
        "ring": rings.ShmRingBuffer.__init__,
    }


def report(model: str) -> dict[str, Any]:
    """Load the plugins as every vLLM process does, then look; then register once more and compare."""
    import torch
    from vllm.config import ModelConfig, VllmConfig
    from vllm.plugins import load_general_plugins

    from assay.plugin.general import register
    from assay.plugin.sampler_v1 import RowBook

    load_general_plugins()
    found = names()
    register()
    again = names()
    config = VllmConfig(model_config=ModelConfig(model=model, dtype="float32", max_model_len=64))
    processors = found["build"](config, torch.device("cpu"), False, False, ())
    return {
        "pid": os.getpid(),
        "v1_sampler": f"{found['v1'].__module__}.{found['v1'].__qualname__}",
        "v2_sampler": f"{found['v2'].__module__}.{found['v2'].__qualname__}",
        "row_books": sum(isinstance(p, RowBook) for p in processors.all),
        "check_stop_wrapped": depth(found["check_stop"]),
        "grammar_wrapped": depth(found["grammar"]),
        "ring_wrapped": depth(found["ring"]),
        "again_changed": [name for name in found if found[name] is not again[name]],
    }


def child(model: str, answers: Any) -> None:
    answers.put(report(model))


def unknown_version() -> None:
    import vllm

    vllm.__version__ = "0.34.0"


def missing_surface() -> None:
    del importlib.import_module("vllm.v1.core.sched.scheduler").check_stop


def bad_setting() -> None:
    os.environ["VLLM_MQ_MAX_CHUNKS"] = "many"


def start_with(change: Callable[[], None], errors: Path) -> None:
    """What a process of a server does first, on an engine that was changed before."""
    from vllm.plugins import load_general_plugins

    os.dup2(os.open(errors, os.O_WRONLY), 2)
    change()
    load_general_plugins()


def refusal(change: Callable[[], None]) -> dict[str, Any]:
    """Exit code and error output of a process that was forked before anything was installed."""
    with tempfile.NamedTemporaryFile() as errors:
        process = multiprocessing.get_context("fork").Process(
            target=start_with, args=(change, Path(errors.name))
        )
        process.start()
        process.join(timeout=200)
        return {"exit": process.exitcode, "errors": Path(errors.name).read_text()}


def main(model: str) -> None:
    names()  # imported once, so that forks have it
    changes = (unknown_version, missing_surface, bad_setting, names)
    reports = {change.__name__: refusal(change) for change in changes}
    reports["parent"] = report(model)
    for kind in ("fork", "spawn"):
        context = multiprocessing.get_context(kind)
        answers = context.Queue()
        process = context.Process(target=child, args=(model, answers))
        process.start()
        reports[kind] = answers.get(timeout=200)
        process.join()
    print(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1])
