"""Calls from the API server to the workers, over vLLM's ``collective_rpc``."""

from __future__ import annotations

from typing import Any

from vllm.engine.protocol import EngineClient


async def ask_workers(engine: EngineClient, method: str, *args: str) -> list[Any]:
    """One answer per worker of every data-parallel engine.

    ``EngineClient.collective_rpc`` returns only the first engine's answers under data parallelism,
    and a replay may have run on any of them; vLLM's client asks all and returns all under the name
    ``call_utility_all_async`` (see ``surfaces.py``), used only there.
    """
    if engine.vllm_config.parallel_config.data_parallel_size > 1:
        core = getattr(engine, "engine_core", None)
        ask_all = getattr(core, "call_utility_all_async", None)
        if ask_all is not None:
            answers = await ask_all("collective_rpc", method, None, args, {})
            return [answer for engine_answers in answers for answer in engine_answers]
    return list(await engine.collective_rpc(method, args=args))
