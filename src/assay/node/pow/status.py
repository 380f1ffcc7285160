"""One status from those of all backends."""

from __future__ import annotations

import asyncio
from typing import Any

from assay.node.node import Node
from assay.node.pow.jobs import Jobs
from assay.node.pow.mining import Mining
from assay.node.pow.secrecy import is_ours, without_secrets
from assay.node.state import activity, one_word, pow_status


async def merged(node: Node, mining: Mining, jobs: Jobs) -> dict[str, Any]:
    """The answer of ``/pow/status``: one word, each backend's own answer, and the round.

    ``stats`` add up over the backends: vectors and nonces per second.
    """
    healthy = node.pool.healthy()
    answers = await asyncio.gather(*(pow_status(node, backend) for backend in healthy))
    words = [
        activity(answer, jobs.at_work(backend.port), mining.mines(backend.port))
        for backend, answer in zip(healthy, answers, strict=True)
    ]
    active = mining.active
    receiver = None if active is None else active.request.url
    stats = [one["stats"] for one in answers if isinstance(one.get("stats"), dict)]
    return {
        "status": one_word(words),
        "backends": [
            {"port": backend.port, **_shown(answer, receiver)}
            for backend, answer in zip(healthy, answers, strict=True)
        ],
        "stats": {
            "total_processed": sum(int(one.get("total_processed", 0)) for one in stats),
            "nonces_per_second": sum(float(one.get("nonces_per_second", 0)) for one in stats),
        }
        if stats
        else None,
        "round": await mining.report(),
    }


def _shown(answer: dict[str, Any], receiver: str | None) -> dict[str, Any]:
    """A backend's answer with the client's own receiver in place of where the node listens."""
    config = answer.get("config")
    if isinstance(config, dict) and is_ours(config.get("url")):
        answer = {**answer, "config": {**config, "url": receiver}}
    shown: dict[str, Any] = without_secrets(answer)
    return shown
