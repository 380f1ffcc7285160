"""Calls from the API server to the workers, over vLLM's ``collective_rpc``."""

from __future__ import annotations

import asyncio
from typing import Any

from vllm.engine.protocol import EngineClient


async def ask_workers(engine: EngineClient, method: str, *args: str) -> list[Any]:
    """One answer per worker of every data-parallel engine.

    ``EngineClient.collective_rpc`` returns only the first engine's answers under data parallelism,
    and a replay may have run on any of them: there each engine is asked by itself, through the
    client's own method (see ``surfaces.py``).
    """
    if engine.vllm_config.parallel_config.data_parallel_size > 1:
        core: Any = getattr(engine, "engine_core", None)
        engines = getattr(core, "core_engines", None)
        if engines:
            answers = await asyncio.gather(
                *(
                    core._call_utility_async(
                        "collective_rpc", method, None, args, {}, engine=identity
                    )
                    for identity in engines
                )
            )
            return [answer for engine_answers in answers for answer in engine_answers]
    return list(await engine.collective_rpc(method, args=args))
