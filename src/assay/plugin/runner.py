"""Which of vLLM's two model runners an object is."""

from __future__ import annotations

from typing import Any


def runner_name(model_runner: Any) -> str:
    """``v1``, ``v2`` or ``unknown``, by descent: platforms subclass both."""
    modules = {base.__module__ for base in type(model_runner).__mro__}
    if "vllm.v1.worker.gpu.model_runner" in modules:
        return "v2"
    return "v1" if "vllm.v1.worker.gpu_model_runner" in modules else "unknown"
