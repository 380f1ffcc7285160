"""Test helper: turns async scheduling back on, which vLLM's CPU platform switches off.

Loaded as a vLLM general plugin (``tests/engine/plugins.py`` makes it one). The scheduler, the -1
placeholders in the output lists and the output thread are vLLM's own and need no GPU; only the
streams and events around the copy to the host do, and vLLM ships stand-ins for those itself, for
Model Runner V2 on a CPU. Checked on vLLM 0.32.0.
"""

from __future__ import annotations

import importlib
from typing import Any


def register() -> None:
    """Wrap the platform's last word on the configuration; idempotent."""
    importlib.import_module("vllm.v1.worker.cpu.shm")  # streams and events that do nothing
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    stock = platform.check_and_update_config.__func__
    if hasattr(stock, "asks_for_async"):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    check_and_update_config.asks_for_async = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)
