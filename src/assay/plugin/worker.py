"""Worker extension: what the API server may ask a worker over ``collective_rpc``.

Named by ``--worker-extension-cls assay.plugin.worker.AssayWorker``. Takes and returns plain
numbers, strings, lists and dicts only, so it needs no insecure serialisation (case 39).
"""

from __future__ import annotations

import os
from typing import Any

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
        }

    def assay_take_evidence(self, key: str) -> dict[str, Any] | None:
        """Hand over and forget the evidence of one replay; ``None`` where this worker has none."""
        sampler = getattr(self.model_runner, "sampler", None)
        evidence = sampler.assay_evidence.take(key) if hasattr(sampler, "assay_evidence") else None
        return None if evidence is None else {**evidence, "runner": runner_name(self.model_runner)}

    def assay_drop_evidence(self, key: str) -> None:
        """Forget one replay: its client went away or its request was aborted."""
        sampler = getattr(self.model_runner, "sampler", None)
        if hasattr(sampler, "assay_evidence"):
            sampler.assay_evidence.drop(key)
