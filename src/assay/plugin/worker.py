"""Worker extension: what the API server may ask a worker over ``collective_rpc``.

Named by ``--worker-extension-cls assay.plugin.worker.AssayWorker``. Takes and returns plain
numbers, strings, lists and dicts only, so it needs no insecure serialisation (case 39).
"""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms import current_platform

from assay.plugin.poc.worker import PocWorker
from assay.plugin.runner import runner_name


class AssayWorker(PocWorker):
    """Mixed into vLLM's worker class; ``model_runner`` and ``rank`` are the worker's own."""

    model_runner: Any
    rank: int

    def assay_status(self) -> dict[str, Any]:
        """Which runner and sampler this worker has; ``sampler`` is ``assay``, ``none`` or a class name."""
        sampler = getattr(self.model_runner, "sampler", None)
        ours = hasattr(sampler, "assay_evidence")
        return {
            "pid": os.getpid(),
            "rank": int(self.rank),
            "runner": runner_name(self.model_runner),
            "sampler": "none" if sampler is None else "assay" if ours else type(sampler).__name__,
            "open_replays": len(sampler.assay_evidence) if ours else 0,
            "tape": self._tape(),
            "hardware": current_platform.get_device_name(),
        }

    def assay_take_evidence(self, key: str) -> dict[str, Any] | None:
        """Hand over and forget the evidence of one replay; ``None`` where this worker has none."""
        sampler = getattr(self.model_runner, "sampler", None)
        evidence = sampler.assay_evidence.take(key) if hasattr(sampler, "assay_evidence") else None
        if evidence is None:
            return None
        return {**evidence, "runner": runner_name(self.model_runner), "tape": self._tape()}

    def _tape(self) -> dict[str, Any] | None:
        """What turns a request's seed into draws here; ``None`` where it cannot be repeated, as with
        speculative decoding, which accepts and rejects drafts by randomness of its own."""
        if getattr(self.model_runner, "speculative_config", None) is not None:
            return None
        sampler = getattr(self.model_runner, "sampler", None)
        generation = sampler.assay_generation if hasattr(sampler, "assay_evidence") else None
        if generation is None:
            return None
        return {
            "runner": runner_name(self.model_runner),
            "generation": generation,
            "fp64": bool(sampler.use_fp64_gumbel),
            "device": current_platform.device_type,
        }

    def assay_drop_evidence(self, key: str) -> None:
        """Forget one replay: its client went away or its request was aborted."""
        sampler = getattr(self.model_runner, "sampler", None)
        if hasattr(sampler, "assay_evidence"):
            sampler.assay_evidence.drop(key)
