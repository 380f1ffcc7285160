"""The backends of one round: begin, hand over, take back, let go.

What has arrived in the node's store decides where a class goes on, so that no nonce reaches the
receiver twice and none is left out. A backend of which it is not known for sure what it mines is let
go: what it still sends is left aside, and others mine the same again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.pool import Pool
from assay.node.pow.calls import CallError, PowCalls
from assay.node.pow.plan import Move, as_range, is_over, moves, split, spread
from assay.node.pow.round import Active, Holder
from assay.node.pow.secrecy import Addresses, is_ours, without_secrets
from assay.store.rounds import Rounds
from assay.store.rounds_tables import Share

logger = logging.getLogger("assay.node")

States = Mapping[int, Mapping[str, Any]]
"""What healthy backends say they do, by port."""


class Crew:
    """Not for two tasks at once: the caller sees to it."""

    def __init__(
        self,
        pool: Pool,
        calls: PowCalls,
        rounds: Rounds,
        addresses: Addresses,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._rounds = rounds
        self._addresses = addresses
        self._clock = clock

    async def states(self) -> States:
        healthy = self._pool.healthy()
        answers = await asyncio.gather(*(self._calls.state(backend) for backend in healthy))
        return {backend.port: answer for backend, answer in zip(healthy, answers, strict=True)}

    async def let_go_of_the_lost(self, active: Active, states: States, silent: float) -> None:
        """Dismiss workers whose process is gone or ill, or which do not mine for the round."""
        for port, holder in list(active.holders.items()):
            state = states.get(port)
            trouble = holder.trouble
            if trouble is None and state is not None:
                trouble = self._trouble_told(active, holder, state, silent)
            if trouble is not None:
                await self.dismiss(active, port, trouble)

    async def stop_strays(self, active: Active | None, states: States) -> None:
        """A backend that mines for a worker that is none any more: an answer got lost."""
        for port, state in states.items():
            url = (state.get("config") or {}).get("url")
            if state.get("status") != "GENERATING" or not is_ours(url):
                continue
            holder = None if active is None else active.holders.get(port)
            if holder is not None and url == self._addresses.url(holder.worker.token):
                continue
            for backend in self._pool.healthy():
                if backend.port == port:
                    logger.warning("poc: backend %d mines what nobody waits for: stopped", port)
                    with suppress(CallError):
                        await self._calls.stop(backend)

    async def hand_out(
        self, active: Active, states: States
    ) -> tuple[list[dict[str, Any]], list[CallError]]:
        """Give classes that nobody mines to idle backends, then to those that mine fewest.

        Answers and refusals of the idle ones that were asked to begin. One that does not even say
        what it does is not asked: a class would wait for it.
        """
        shares = await self.unassigned(active)
        results: list[dict[str, Any]] = []
        errors: list[CallError] = []
        if shares:
            errors += self._leave_the_silent_alone(active, states)
        idle = self.idle(active, states)
        if shares and idle:
            parts = split(shares, [backend.port for backend in idle], active.homes)
            chosen = [backend for backend in idle if parts[backend.port]]
            begun = await asyncio.gather(
                *(self._start(active, backend, parts[backend.port]) for backend in chosen),
                return_exceptions=True,
            )
            for one in begun:
                if isinstance(one, CallError):
                    errors.append(one)
                elif isinstance(one, BaseException):
                    raise one
                else:
                    results.append(one)
            shares = await self.unassigned(active)
        if shares:
            held = await self.held(active)
            counts = {port: len(mine) for port, mine in held.items()}
            for port, part in spread(shares, counts).items():
                await self._add(active, port, part)
        return results, errors

    async def share_with_the_idle(self, active: Active, states: States) -> None:
        """Backends that are back take classes from those that mine several."""
        self._leave_the_silent_alone(active, states)
        idle = [backend.port for backend in self.idle(active, states)]
        planned = moves(await self.held(active), idle, active.homes)
        for donor in sorted({move.donor for move in planned}):
            await self._take_back(active, donor, [m for m in planned if m.donor == donor])

    async def dismiss(self, active: Active, port: int, why: str) -> None:
        holder = active.holders.pop(port)
        logger.warning("poc: backend %d no longer mines: %s", port, without_secrets(why))
        await asyncio.to_thread(self._rounds.dismiss, holder.worker)

    def idle(self, active: Active, states: States) -> list[Backend]:
        """Those of ``states`` that could begin; who came later is seen by the next look."""
        return [
            backend
            for backend in self._pool.healthy()
            if backend.port in states
            and backend.port not in active.holders
            and active.rests.over(backend)
        ]

    async def unassigned(self, active: Active) -> list[Share]:
        """Shares without a worker of ours that have anything left to mine."""
        spec, workers = active.request, {h.worker.id for h in active.holders.values()}
        return [
            share
            for share in await asyncio.to_thread(self._rounds.shares, active.round.id)
            if share.worker_id not in workers
            and not is_over(share, spec.node_id, spec.node_count, active.round.n_groups)
        ]

    async def held(self, active: Active) -> dict[int, list[Share]]:
        """Shares by the port of their holder."""
        shares = await asyncio.to_thread(self._rounds.shares, active.round.id)
        return {
            port: [share for share in shares if share.worker_id == holder.worker.id]
            for port, holder in active.holders.items()
        }

    def _leave_the_silent_alone(self, active: Active, states: States) -> list[CallError]:
        silent = [
            backend
            for backend in self.idle(active, states)
            if states[backend.port].get("status") == "UNKNOWN"
        ]
        for backend in silent:
            active.rests.begin(backend)
        return [CallError(one, None, "no answer when asked what it does") for one in silent]

    def _trouble_told(
        self, active: Active, holder: Holder, state: Mapping[str, Any], silent: float
    ) -> str | None:
        """Why a worker is to be let go, from what its backend says it does."""
        status = state.get("status")
        if status == "UNKNOWN":
            quiet = self._clock() - holder.heard
            return f"it has not said what it does for {quiet:.0f} s" if quiet > silent else None
        holder.heard = self._clock()
        if status != "GENERATING":
            active.rests.begin(holder.backend)
            return str(state.get("error") or f"it is {status}")
        if (state.get("config") or {}).get("url") != self._addresses.url(holder.worker.token):
            return "it mines for somebody else"
        active.rests.forget(holder.backend)
        return None

    async def _start(
        self, active: Active, backend: Backend, shares: Sequence[Share]
    ) -> dict[str, Any] | CallError:
        worker = await asyncio.to_thread(
            self._rounds.hire, active.round.id, backend.port, backend.generation
        )
        # Written down first: what is mined before the answer arrives must find its share.
        await asyncio.to_thread(self._rounds.give, shares, worker)
        try:
            body = active.init_body(self._addresses.url(worker.token), shares)
            answer = await self._calls.init(backend, body, rejoin=active.begun)
        except CallError as error:
            # Where there was no answer it may mine all the same: the next look stops it then.
            logger.warning("poc: %s", error)
            active.rests.begin(backend)
            await asyncio.to_thread(self._rounds.dismiss, worker)
            return error
        active.holders[backend.port] = Holder(backend, worker, self._clock())
        groups = sorted({share.group_id for share in shares})
        logger.info("poc: backend %d mines the classes %s", backend.port, groups)
        return {
            "port": backend.port,
            "group_id": shares[0].group_id,
            "group_ids": groups,
            **answer,
        }

    async def _add(self, active: Active, port: int, shares: Sequence[Share]) -> None:
        holder = active.holders[port]
        await asyncio.to_thread(self._rounds.give, shares, holder.worker)
        body = {
            "url": self._addresses.url(holder.worker.token),
            "add": [as_range(share) for share in shares],
        }
        try:
            await self._calls.shares(holder.backend, body)
        except CallError as error:
            await self._restart(active, port, f"it took no class: {error}")
            return
        groups = sorted({share.group_id for share in shares})
        logger.info("poc: the classes %s go to backend %d", groups, port)

    async def _take_back(self, active: Active, port: int, planned: Sequence[Move]) -> None:
        """The donor stops mining classes; what it has not begun of them is nobody's then."""
        holder = active.holders[port]
        groups = [move.share.group_id for move in planned]
        body = {"url": self._addresses.url(holder.worker.token), "release": groups}
        try:
            answer = await self._calls.shares(holder.backend, body)
            positions = {int(one["group_id"]): int(one["position"]) for one in answer["released"]}
            for move in planned:
                position = positions[move.share.group_id]
                await asyncio.to_thread(self._rounds.cut, move.share, position)
        except (AssayError, LookupError, TypeError, ValueError) as error:
            # It may have let classes go without our knowing: begin anew with all it has.
            await self._restart(active, port, f"it gave no class back: {error}")

    async def _restart(self, active: Active, port: int, why: str) -> None:
        """Nobody knows what it mines: stop it, and let the next look begin again."""
        holder = active.holders[port]
        try:
            with suppress(CallError):
                await self._calls.stop(holder.backend)
        finally:
            await self.dismiss(active, port, why)
