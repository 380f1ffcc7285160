"""One mining round over all backends: who mines which residue classes, and what when one is lost.

The nonces of a round are split into as many classes as backends were healthy when it began, and that
number stays. A class belongs to whoever mines it now: a survivor when its backend has died, the
backend again when it is back. What has arrived in the node's store decides where a class goes on, so
that no nonce is sent to the receiver twice and none is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.failures import NoBackendError, NodeRefusal
from assay.node.pool import Pool
from assay.node.pow.calls import CallError, PowCalls
from assay.poc.artifacts import encoding
from assay.poc.bodies import InitGenerate
from assay.store.rounds import Rounds
from assay.store.rounds_tables import Round, RoundSpec, Share, Worker

logger = logging.getLogger("assay.node")

LOOK_EVERY = 2.0
"""Seconds between two looks at what the backends do."""
STATUS_WITHIN = 5.0
"""Seconds a backend has to tell."""
REST_AFTER_FAILURE = 30.0
"""Seconds before a backend that failed to mine is asked again."""


@dataclass
class _Holder:
    """A backend that mines for the round."""

    backend: Backend
    worker: Worker


@dataclass
class Active:
    """The round under way. ``body``: what the client asked for. ``homes``: port each class began on."""

    round: Round
    request: InitGenerate
    body: Mapping[str, Any]
    homes: dict[int, int]
    holders: dict[int, _Holder] = field(default_factory=dict)
    resting: dict[int, float] = field(default_factory=dict)
    degraded: str | None = None
    """Why not every class has a backend of its own; None while each has."""


class Mining:
    """At most one round. ``inbox``: URL of the callbacks of a token."""

    def __init__(
        self,
        pool: Pool,
        calls: PowCalls,
        rounds: Rounds,
        inbox: Callable[[str], str],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._rounds = rounds
        self._inbox = inbox
        self._clock = clock
        self._active: Active | None = None
        self._changing = asyncio.Lock()

    @property
    def active(self) -> Active | None:
        return self._active

    async def begin(
        self, request: InitGenerate, body: Mapping[str, Any], caller: str | None
    ) -> dict[str, Any]:
        """Start a round on every healthy backend; the answer of ``/pow/init/generate``.

        NodeRefusal 409 while one is under way, 503 without a backend, 502 when all refuse.
        """
        async with self._changing:
            if self._active is not None:
                raise NodeRefusal(409, "Already generating")
            healthy = self._pool.healthy()
            if not healthy:
                raise NoBackendError
            spec = _spec(request, caller)
            begun = await asyncio.to_thread(self._rounds.begin, spec, len(healthy))
            homes = {
                group_id: healthy[group_id % len(healthy)].port
                for group_id in range(begun.n_groups)
            }
            active = Active(begun, request, body, homes)
            shares = await self._unassigned(active)
            results, errors = await self._start_all(active, healthy, shares)
            if not active.holders:
                await asyncio.to_thread(self._rounds.end, begun.id)
                raise NodeRefusal(
                    502,
                    {
                        "error": "no backend began to generate",
                        "errors": [error.to_json() for error in errors],
                    },
                )
            self._active = active
            await self._hand_out(active)
            self._judge(active, await self._unassigned(active))
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

    async def stop(self) -> tuple[list[dict[str, Any]], list[CallError]]:
        """End the round, and mining everywhere. Idempotent."""
        async with self._changing:
            await self._end()
            running = [backend for backend in self._pool.backends if backend.pid is not None]
            answers = await asyncio.gather(
                *(self._calls.stop(backend) for backend in running), return_exceptions=True
            )
        results: list[dict[str, Any]] = []
        errors: list[CallError] = []
        for backend, answer in zip(running, answers, strict=True):
            if isinstance(answer, CallError):
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                results.append({"port": backend.port, **answer})
        return results, errors

    def receiver(self) -> str | None:
        """Whom the round's artifacts are for."""
        return None if self._active is None else self._active.request.url

    async def report(self) -> dict[str, Any] | None:
        """The round for people: its classes, who mines them, what came; None without one."""
        active = self._active
        if active is None:
            return None
        held = await self._held(active)
        waiting = await self._unassigned(active)
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
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._pool.changed()
            try:
                async with self._changing:
                    await self._look()
            except AssayError as error:
                logger.error("poc: the round cannot be looked after: %s", error)

    async def _look(self) -> None:
        active = self._active
        if active is None:
            return
        if not self._pool.backends:
            logger.info("poc: the round ends: the model was taken down")
            await self._end()
            return
        await self._let_go_of_the_lost(active)
        await self._stop_strays(active)
        await self._hand_out(active)
        await self._share_with_the_idle(active)
        self._judge(active, await self._unassigned(active))

    async def _let_go_of_the_lost(self, active: Active) -> None:
        """Dismiss workers whose process is gone, or which do not mine any more."""
        for port, holder in list(active.holders.items()):
            backend = holder.backend
            if (
                backend not in self._pool.backends
                or backend.pid is None
                or (backend.generation != holder.worker.generation)
            ):
                await self._dismiss(active, port, "its process is gone")
        alive = [holder for holder in active.holders.values() if holder.backend.healthy]
        states = await asyncio.gather(*(self._state(holder.backend) for holder in alive))
        for holder, state in zip(alive, states, strict=True):
            status = state.get("status")
            if status not in ("GENERATING", "UNKNOWN"):
                port = holder.backend.port
                active.resting[port] = self._clock() + REST_AFTER_FAILURE
                await self._dismiss(active, port, str(state.get("error") or f"it is {status}"))

    async def _stop_strays(self, active: Active) -> None:
        """A backend that mines what nobody asked it for: the answer to a request got lost."""
        idle = [b for b in self._pool.healthy() if b.port not in active.holders]
        for backend, state in zip(
            idle, await asyncio.gather(*(self._state(b) for b in idle)), strict=True
        ):
            if state.get("status") == "GENERATING":
                with suppress(CallError):
                    await self._calls.stop(backend)

    async def _hand_out(self, active: Active) -> None:
        """Give classes that nobody mines to idle backends, then to those that mine fewest."""
        shares = await self._unassigned(active)
        if not shares:
            return
        idle = self._idle(active)
        if idle:
            await self._start_all(active, idle, shares)
            shares = await self._unassigned(active)
        if not shares or not active.holders:
            return
        held = await self._held(active)
        for share in shares:
            takers = [holder for holder in active.holders.values() if holder.backend.healthy]
            if not takers:
                return
            taker = min(takers, key=lambda h: (len(held[h.backend.port]), h.backend.port))
            await self._add(active, taker, share)
            held[taker.backend.port].append(share)

    async def _share_with_the_idle(self, active: Active) -> None:
        """A backend that is back takes a class from one that mines several; its own, if it can."""
        for backend in self._idle(active):
            held = await self._held(active)
            endless = {
                port: [share for share in shares if share.stop is None]
                for port, shares in held.items()
            }
            donors = [
                holder
                for port, holder in active.holders.items()
                if len(endless[port]) > 1 and holder.backend.healthy
            ]
            if not donors:
                return
            home = [
                (holder, share)
                for holder in donors
                for share in endless[holder.backend.port]
                if active.homes.get(share.group_id) == backend.port
            ]
            most = max(donors, key=lambda holder: len(endless[holder.backend.port]))
            donor, share = home[0] if home else (most, endless[most.backend.port][-1])
            if await self._take_back(active, donor, share):
                await self._start_all(active, [backend], await self._unassigned(active))

    async def _take_back(self, active: Active, donor: _Holder, share: Share) -> bool:
        """The donor stops mining a class; what it has not begun is nobody's then."""
        body = {"url": self._inbox(donor.worker.token), "release": [share.group_id]}
        try:
            answer = await self._calls.shares(donor.backend, body)
            position = int(answer["released"][0]["position"])
        except (CallError, LookupError, TypeError, ValueError) as error:
            # It may have let the class go without our knowing: begin anew with all it has.
            logger.warning("poc: backend %d kept its classes: %s", donor.backend.port, error)
            await self._restart(active, donor)
            return False
        await asyncio.to_thread(self._rounds.cut, share, position)
        return True

    async def _add(self, active: Active, taker: _Holder, share: Share) -> None:
        body = {"url": self._inbox(taker.worker.token), "add": [_range(share)]}
        # Written down first: what is mined before the answer arrives must find its share.
        await asyncio.to_thread(self._rounds.give, [share], taker.worker)
        try:
            await self._calls.shares(taker.backend, body)
        except CallError as error:
            logger.warning("poc: backend %d took no class: %s", taker.backend.port, error)
            await self._restart(active, taker)
            return
        logger.info("poc: class %d goes to backend %d", share.group_id, taker.backend.port)

    async def _restart(self, active: Active, holder: _Holder) -> None:
        """Nobody knows what it mines: stop it, and let the next look begin again."""
        with suppress(CallError):
            await self._calls.stop(holder.backend)
        await self._dismiss(active, holder.backend.port, "its classes are not known for sure")

    async def _start_all(
        self, active: Active, backends: Sequence[Backend], shares: Sequence[Share]
    ) -> tuple[list[dict[str, Any]], list[CallError]]:
        """Begin mining on several, each with its part of the shares, its own classes first."""
        parts = _split(shares, backends, active.homes)
        begun = await asyncio.gather(
            *(self._start(active, backend, parts[backend.port]) for backend in backends)
        )
        results = [one for one in begun if isinstance(one, dict)]
        return results, [one for one in begun if isinstance(one, CallError)]

    async def _start(
        self, active: Active, backend: Backend, shares: Sequence[Share]
    ) -> dict[str, Any] | CallError | None:
        if not shares:
            return None
        worker = await asyncio.to_thread(
            self._rounds.hire, active.round.id, backend.port, backend.generation
        )
        await asyncio.to_thread(self._rounds.give, shares, worker)
        try:
            answer = await self._calls.init(backend, self._init_body(active, worker, shares))
        except CallError as error:
            if error.status is None:
                with suppress(CallError):
                    await self._calls.stop(backend)
            active.resting[backend.port] = self._clock() + REST_AFTER_FAILURE
            await asyncio.to_thread(self._rounds.dismiss, worker)
            logger.warning("poc: %s", error)
            return error
        active.holders[backend.port] = _Holder(backend, worker)
        return {"port": backend.port, "group_id": shares[0].group_id, **answer}

    def _init_body(self, active: Active, worker: Worker, shares: Sequence[Share]) -> dict[str, Any]:
        first = shares[0]
        body = {
            **active.body,
            "group_id": first.group_id,
            "n_groups": active.round.n_groups,
            "url": self._inbox(worker.token),
        }
        # A whole class is what any server knows; only what is left of one needs our own field.
        if len(shares) > 1 or first.reached or first.stop is not None:
            body["shares"] = [_range(share) for share in shares]
        return body

    async def _dismiss(self, active: Active, port: int, why: str) -> None:
        holder = active.holders.pop(port)
        await asyncio.to_thread(self._rounds.dismiss, holder.worker)
        logger.warning("poc: backend %d no longer mines: %s", port, why)

    async def _end(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            await asyncio.to_thread(self._rounds.end, active.round.id)

    def _idle(self, active: Active) -> list[Backend]:
        now = self._clock()
        return [
            backend
            for backend in self._pool.healthy()
            if backend.port not in active.holders and active.resting.get(backend.port, 0) <= now
        ]

    async def _unassigned(self, active: Active) -> list[Share]:
        shares = await asyncio.to_thread(self._rounds.shares, active.round.id)
        return [share for share in shares if share.worker_id is None]

    async def _held(self, active: Active) -> dict[int, list[Share]]:
        """Shares by the port of their holder."""
        shares = await asyncio.to_thread(self._rounds.shares, active.round.id)
        return {
            port: [share for share in shares if share.worker_id == holder.worker.id]
            for port, holder in active.holders.items()
        }

    async def _state(self, backend: Backend) -> dict[str, Any]:
        try:
            return await self._calls.get(backend, "/status", STATUS_WITHIN)
        except CallError:
            return {"status": "UNKNOWN"}

    def _judge(self, active: Active, unassigned: Sequence[Share]) -> None:
        waiting = sorted({share.group_id for share in unassigned})
        mining = len(active.holders)
        sick = sorted(port for port, h in active.holders.items() if not h.backend.healthy)
        if waiting:
            active.degraded = f"no backend mines the classes {waiting}"
        elif sick:
            active.degraded = f"backends {sick} do not answer"
        elif mining < active.round.n_groups:
            active.degraded = f"{mining} backends mine {active.round.n_groups} classes"
        else:
            active.degraded = None


def _split(
    shares: Sequence[Share], backends: Sequence[Backend], homes: Mapping[int, int]
) -> dict[int, list[Share]]:
    """A part a port: shares go home where home is among the backends, the rest evenly."""
    parts: dict[int, list[Share]] = {backend.port: [] for backend in backends}
    for share in sorted(shares, key=lambda share: homes.get(share.group_id) not in parts):
        home = homes.get(share.group_id, -1)
        port = home if home in parts else min(parts, key=lambda port: (len(parts[port]), port))
        parts[port].append(share)
    return parts


def _range(share: Share) -> dict[str, Any]:
    return {"group_id": share.group_id, "start": share.reached, "stop": share.stop}


def _spec(request: InitGenerate, caller: str | None) -> RoundSpec:
    fields = request.model_dump(
        mode="json", exclude={"url", "batch_size", "group_id", "n_groups", "shares"}
    )
    identity = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    head = {
        "public_key": request.public_key,
        "block_hash": request.block_hash,
        "block_height": request.block_height,
        "node_id": request.node_id,
        "encoding": encoding(request.params.k_dim),
    }
    return RoundSpec(identity, request.url, caller, head, request.node_id, request.node_count)
