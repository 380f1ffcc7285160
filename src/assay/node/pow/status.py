"""One status from those of all backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from assay.node.node import Node
from assay.node.pow.jobs import Jobs
from assay.node.pow.mining import Mining
from assay.node.state import pow_status


def one_word(states: Iterable[str]) -> str:
    """The state all are in; ``MIXED`` when they differ, ``NO_BACKENDS`` when there is none."""
    found = set(states)
    if not found:
        return "NO_BACKENDS"
    return found.pop() if len(found) == 1 else "MIXED"


async def merged(node: Node, mining: Mining, jobs: Jobs) -> dict[str, Any]:
    """The answer of ``/pow/status``: one word, each backend's own answer, and the round.

    ``stats`` add up over the backends: vectors and nonces per second.
    """
    healthy = node.pool.healthy()
    answers = await asyncio.gather(*(pow_status(node, backend) for backend in healthy))
    backends = [
        {"port": backend.port, **answer, "status": _word(answer, jobs.at_work(backend.port))}
        for backend, answer in zip(healthy, answers, strict=True)
    ]
    stats = [one["stats"] for one in answers if isinstance(one.get("stats"), dict)]
    return {
        "status": one_word(one["status"] for one in backends),
        "backends": backends,
        "stats": {
            "total_processed": sum(int(one.get("total_processed", 0)) for one in stats),
            "nonces_per_second": sum(float(one.get("nonces_per_second", 0)) for one in stats),
        }
        if stats
        else None,
        "round": await mining.report(),
    }


def _word(answer: dict[str, Any], has_jobs: bool) -> str:
    status = str(answer.get("status"))
    return "VALIDATING" if status == "IDLE" and has_jobs else status
