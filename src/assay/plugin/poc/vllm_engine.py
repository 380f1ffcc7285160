"""The engine behind the routes: vLLM's ``EngineClient``, and the workers through it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from vllm.engine.protocol import EngineClient

from assay.plugin.poc.engine import Vectors, checked_vectors
from assay.plugin.poc.failures import AsleepError, EngineFaultError
from assay.poc.artifact_file import Challenge

FORWARD = "assay_poc_forward"
PROFILE = "assay_poc_profile"
LOOK_EVERY = 1.0
"""Seconds between looks at whether the engine still lives while a call is out."""
RESUME_WITHIN = 30.0
"""Seconds an abort that is no longer wanted may take to leave the engine as it was."""


class VllmPocEngine:
    """``PocEngine`` over a running vLLM.

    Uses public calls only, save under data parallelism, where each engine must be asked for its
    own part of the nonces (``AsyncMPClient._call_utility_async``, listed in ``surfaces.py``).
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        # Held from our own pause to its end, which nobody else may take for a sleeping engine.
        self._pausing = asyncio.Lock()

    @property
    def errored(self) -> bool:
        return bool(self._client.errored)

    async def forward(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        parts = split(nonces, len(self._engines()) or 1)
        answers = await asyncio.gather(
            *(
                self._ask(FORWARD, _arguments(challenge, part), engine)
                for part, engine in zip(parts, self._engines() or [None], strict=True)
            )
        )
        batches = [
            checked_vectors(part, challenge.k, _returned(answer))
            for part, answer in zip(parts, answers, strict=True)
        ]
        return merged(nonces, batches, challenge.k)

    async def profile(self) -> dict[str, Any]:
        """The first worker's profile with the smallest ``token_budget`` of all."""
        engines = self._engines() or [None]
        answers = await asyncio.gather(*(self._ask(PROFILE, (), engine) for engine in engines))
        workers = [worker for answer in answers for worker in answer if worker is not None]
        if not workers:
            raise EngineFaultError(
                "no worker knows its profile; is the assay worker extension loaded?"
            )
        budget = min(int(worker["token_budget"]) for worker in workers)
        return {**workers[0], "token_budget": budget}

    async def asleep(self) -> bool:
        async with self._pausing:
            return await self._is_sleeping()

    async def abort_all(self) -> None:
        """Abort in the engine itself, by nobody's ids: nothing can be missed, children of an
        ``n > 1`` request included (F35, F36), and no drain takes ``max_tokens`` (F37).

        Pausing drops what is running; resuming at once lets the next admitted request run. A
        pause that somebody else made is left alone.
        """
        both = asyncio.ensure_future(self._pause_and_resume())
        try:
            await asyncio.shield(both)
        except asyncio.CancelledError:
            # Cancelled between the two, the engine would stay paused; resumed later, it would
            # wake up under somebody who has put it to sleep meanwhile.
            await asyncio.wait({both}, timeout=RESUME_WITHIN)
            raise

    async def _pause_and_resume(self) -> None:
        async with self._pausing:
            if await self._is_sleeping():
                raise AsleepError
            try:
                await self._public(self._client.pause_generation(mode="abort", clear_cache=False))
            finally:
                await self._public(self._client.resume_generation())

    async def _is_sleeping(self) -> bool:
        # True as well while the scheduler is paused (sleep level 0, weight updates).
        return bool(await self._public(self._client.is_sleeping()))

    def _engines(self) -> list[Any]:
        """Identities of the data-parallel engines, empty without data parallelism."""
        parallel = self._client.vllm_config.parallel_config
        if parallel.data_parallel_size <= 1:
            return []
        core: Any = getattr(self._client, "engine_core", None)
        engines = list(getattr(core, "core_engines", ()))
        if len(engines) < parallel.data_parallel_size and self._client.model_config.is_moe:
            raise EngineFaultError(
                f"this API server reaches {len(engines)} of {parallel.data_parallel_size} "
                "data-parallel ranks, and a MoE forward needs all of them at once; start the "
                "ranks under one API server (no external or hybrid load balancing)"
            )
        return engines if len(engines) > 1 else []

    async def _ask(self, method: str, args: tuple[Any, ...], engine: Any) -> list[Any]:
        if engine is None:
            call = self._client.collective_rpc(method, args=args)
        else:
            core: Any = self._client.engine_core  # type: ignore[attr-defined]
            call = core._call_utility_async("collective_rpc", method, None, args, {}, engine=engine)
        return list(await self._public(call))

    async def _public(self, call: Awaitable[Any]) -> Any:
        """The answer of a call into the engine. vLLM leaves calls to an engine that ended
        unanswered, and whoever waited for one would keep the server from ending."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=LOOK_EVERY)
                if self.errored and not answer.done():
                    raise EngineFaultError("the engine ended before it answered")
        finally:
            answer.cancel()
        # vLLM raises bare Exception for what went wrong in a worker.
        try:
            return answer.result()
        except Exception as error:
            raise EngineFaultError(str(error) or type(error).__name__) from error


def split(nonces: Sequence[int], engines: int) -> list[list[int]]:
    """``nonces`` in one part an engine, all of one length.

    MoE ranks meet in collectives: each must run a forward of the same shape, so short parts
    repeat a nonce, whose second vector is dropped by :func:`merged`.
    """
    if engines == 1:
        return [list(nonces)]
    length = -(-len(nonces) // engines)
    parts = [list(nonces[i * length : (i + 1) * length]) for i in range(engines)]
    return [part + [nonces[0]] * (length - len(part)) for part in parts]


def merged(nonces: Sequence[int], batches: Sequence[Vectors], k: int) -> Vectors:
    """Batches of several engines as one, in the order of ``nonces``. They ran side by side, so
    the slowest one's time counts."""
    if len(batches) == 1:
        return batches[0]
    found: dict[int, tuple[bytes, bool]] = {}
    for batch in batches:
        for index, nonce in enumerate(batch.nonces):
            found.setdefault(nonce, (batch.row(index), batch.finite[index]))
    slowest = max(batches, key=lambda batch: batch.device_seconds)
    return Vectors(
        nonces=tuple(nonces),
        raw=b"".join(found[nonce][0] for nonce in nonces),
        finite=tuple(found[nonce][1] for nonce in nonces),
        k=k,
        seconds=slowest.seconds,
    )


def _arguments(challenge: Challenge, nonces: list[int]) -> tuple[Any, ...]:
    return (
        challenge.block_hash,
        challenge.public_key,
        nonces,
        challenge.seq_len,
        challenge.k,
        bool(challenge.poc_stronger_rng),
    )


def _returned(answers: list[Any]) -> dict[str, Any]:
    """The answer of the rank that returns; the others say None."""
    for answer in answers:
        if answer is not None:
            return dict(answer)
    raise EngineFaultError("no worker returned vectors")
