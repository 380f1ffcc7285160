"""At most one mining round over all backends: begun, looked after, ended.

The nonces of a round are split into as many classes as backends were healthy when it began, and that
number stays. A class belongs to whoever mines it now: a survivor when its backend has died, the
backend again when it is back.

One thing at a time is done to a round; ``/stop`` calls off what is being done and never waits for a
backend that does not answer longer than it takes to stop one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from assay.errors import AssayError
from assay.node.backend import BackendState
from assay.node.failures import NoBackendError, NodeRefusal
from assay.node.pool import Change, Pool
from assay.node.pow.calls import CallError, PowCalls, all_failed
from assay.node.pow.crew import Crew
from assay.node.pow.patience import Patience
from assay.node.pow.plan import shortage
from assay.node.pow.round import Active, Rests, spec_of
from assay.node.pow.secrecy import Addresses
from assay.node.pow.turns import CalledOffError, Turns
from assay.poc.bodies import InitGenerate
from assay.store.rounds import Rounds

logger = logging.getLogger("assay.node")

ASKED = (BackendState.READY, BackendState.UNHEALTHY, BackendState.HUNG)
"""Only these can have been asked to mine."""


class Mining:
    """``is_full``: whether a receiver takes no more now."""

    def __init__(
        self,
        pool: Pool,
        calls: PowCalls,
        rounds: Rounds,
        addresses: Addresses,
        *,
        is_full: Callable[[str], bool],
        clock: Callable[[], float],
        patience: Patience,
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._rounds = rounds
        self._crew = Crew(pool, calls, rounds, addresses, clock)
        self._is_full = is_full
        self._clock = clock
        self._patience = patience
        self._active: Active | None = None
        self._interrupted: int | None = None
        self._turns = Turns()
        self._beginning = False
        self._stopping: asyncio.Task[tuple[list[dict[str, Any]], list[CallError]]] | None = None

    @property
    def active(self) -> Active | None:
        return self._active

    def mines(self, port: int) -> bool:
        """Whether a backend is taken to mine for the round."""
        return self._active is not None and port in self._active.holders

    async def begin(
        self, request: InitGenerate, body: Mapping[str, Any], caller: str | None
    ) -> dict[str, Any]:
        """Start a round on every healthy backend; the answer of ``/pow/init/generate``.

        NodeRefusal 409 while one is under way, 503 without a backend, 502 when all fail, and what
        they say when all refuse alike.
        """
        if self._beginning or self._active is not None:
            raise NodeRefusal(409, "Already generating")
        self._beginning = True
        try:
            return await self._turns.take(lambda: self._begin(request, body, caller))
        except CalledOffError as error:
            raise NodeRefusal(409, "stopped by POST /stop before it had begun") from error
        finally:
            self._beginning = False

    async def stop(self) -> tuple[list[dict[str, Any]], list[CallError]]:
        """End the round, and mining everywhere: answers and failures. Idempotent."""
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._stop())
        # Whoever asks twice waits for the same; a client that goes away calls nothing off.
        return await asyncio.shield(self._stopping)

    async def report(self) -> dict[str, Any] | None:
        """The round for people: its classes, who mines them, what came; None without one."""
        active = self._active
        if active is None:
            return None
        held = await self._crew.held(active)
        waiting = await self._crew.unassigned(active)
        return {
            "block_hash": active.request.block_hash,
            "n_groups": active.round.n_groups,
            "classes": {
                str(port): sorted({share.group_id for share in shares})
                for port, shares in sorted(held.items())
            },
            "unassigned": sorted({share.group_id for share in waiting}),
            "total_kept": await asyncio.to_thread(self._rounds.kept, active.round.id),
            "degraded": active.degraded is not None,
            "reason": active.degraded,
        }

    async def watch(self) -> None:
        """Keep every class mined until cancelled."""
        deaf = self._pool.listen(self._note)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience.look):
                        await self._pool.changed()
                try:
                    await self._turns.take(self._look)
                except CalledOffError:
                    continue
                except AssayError as error:
                    logger.error("poc: the round cannot be looked after: %s", error)
        finally:
            deaf()

    async def _begin(
        self, request: InitGenerate, body: Mapping[str, Any], caller: str | None
    ) -> dict[str, Any]:
        await self._leave_what_was_taken_down()
        if self._active is not None:
            raise NodeRefusal(409, "Already generating")
        healthy = self._pool.healthy()
        if not healthy:
            raise NoBackendError
        states = await self._crew.states()
        await self._crew.stop_strays(None, states)
        spec = spec_of(request, caller)
        begun = await asyncio.to_thread(self._rounds.begin, spec, len(healthy))
        homes = {
            group_id: healthy[group_id % len(healthy)].port for group_id in range(begun.n_groups)
        }
        active = Active(begun, request, body, homes, Rests(self._patience, self._clock))
        self._active = active
        try:
            results, errors = await self._crew.hand_out(active, states)
            await self._judge(active)
        except BaseException:
            # Whatever was begun is stopped by the next look: nobody knows its tokens any more.
            await self._leave()
            raise
        if not results:
            await self._leave()
            raise all_failed(errors)
        active.begun, self._interrupted = True, None
        logger.info(
            "poc: round of %s with %d classes on %d backends%s",
            request.block_hash,
            begun.n_groups,
            len(active.holders),
            ", taken up again" if begun.resumed else "",
        )
        return {
            "status": "OK",
            "backends": len(healthy),
            "n_groups": begun.n_groups,
            "results": results,
            "errors": [error.to_json() for error in errors],
            "degraded": active.degraded is not None,
            **({} if active.degraded is None else {"reason": active.degraded}),
            "pow_status": {"status": "GENERATING"},
        }

    async def _stop(self) -> tuple[list[dict[str, Any]], list[CallError]]:
        async with self._turns.first():
            active, self._active = self._active, None
            interrupted, self._interrupted = self._interrupted, None
            running = [backend for backend in self._pool.backends if backend.state in ASKED]
            stopped = await self._calls.stop_all(running)
            # Last: a store that fails must not keep anybody mining.
            for round_id in (interrupted, None if active is None else active.round.id):
                if round_id is not None:
                    await asyncio.to_thread(self._rounds.end, round_id)
        return stopped

    async def _look(self) -> None:
        await self._leave_what_was_taken_down()
        states = await self._crew.states()
        await self._crew.stop_strays(self._active, states)
        active = self._active
        if active is None:
            return
        await self._crew.let_go_of_the_lost(active, states, self._patience.silent)
        url = active.request.url
        if url is not None and self._is_full(url):
            await self._pause(active, f"too many artifacts wait for {url}")
            return
        await self._crew.hand_out(active, states)
        await self._crew.share_with_the_idle(active, states)
        await self._crew.hand_out(active, states)
        await self._judge(active)

    async def _pause(self, active: Active, why: str) -> None:
        """Nobody mines what cannot be kept; the round goes on when its receiver has taken some."""
        active.degraded = why
        for port, holder in list(active.holders.items()):
            with suppress(CallError):
                await self._calls.stop(holder.backend)
            await self._crew.dismiss(active, port, why)

    async def _judge(self, active: Active) -> None:
        waiting = await self._crew.unassigned(active)
        active.degraded = shortage(active.round.n_groups, len(active.holders), waiting)

    async def _leave_what_was_taken_down(self) -> None:
        if self._active is not None and self._active.taken_down:
            logger.info("poc: the round is interrupted: its model was stopped")
            await self._leave()

    async def _leave(self) -> None:
        """The same work, asked for again, is taken up where it is left."""
        active, self._active = self._active, None
        if active is None:
            return
        for port in list(active.holders):
            await self._crew.dismiss(active, port, "its round is interrupted")
        if await asyncio.to_thread(self._rounds.kept, active.round.id):
            self._interrupted = active.round.id
        else:
            # Nothing to go on from: it may begin anew with other backends.
            await asyncio.to_thread(self._rounds.end, active.round.id)

    def _note(self, change: Change) -> None:
        # Only a model that is taken down stops a backend for good.
        if change.new is BackendState.STOPPED and self._active is not None:
            self._active.taken_down = True
