"""One backend from its first start to its last: started, watched, restarted, given up."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from assay.node.backend import BackendProcess, BackendState, Launcher
from assay.node.checks import Checks, Progress, Strikes
from assay.node.config import Backends
from assay.node.failures import BackendFailureError
from assay.node.finish import to_the_end
from assay.node.logs import hide
from assay.node.metrics import NodeMetrics
from assay.node.plan import Planned
from assay.node.pool import Pool

logger = logging.getLogger("assay.node")


@dataclass(frozen=True)
class Ending:
    """Why a process is to be replaced. ``cause``: crashed, hung, unhealthy, never_ready."""

    cause: str
    words: str
    answers: bool = True
    """False when it does not react any more, so that SIGINT would be in vain."""


@dataclass(frozen=True)
class Tools:
    """What every keeper of a node works with. ``variables`` go to every backend, over all others."""

    settings: Backends
    pool: Pool
    launcher: Launcher
    metrics: NodeMetrics
    http: httpx.AsyncClient
    clock: Callable[[], float]
    variables: Mapping[str, str] = field(default_factory=dict)


class Restarts:
    """How soon, and whether at all, a backend is started again."""

    def __init__(self, settings: Backends) -> None:
        self._settings = settings
        self._times: deque[float] = deque()
        self._starts = 0
        self.was_ready = False

    def pause(self, now: float) -> float | None:
        """Seconds to wait before the next start; None: no more."""
        settings = self._settings
        self._starts += 1
        if not self.was_ready:
            return settings.restart_backoff_s if self._starts < settings.start_attempts else None
        while self._times and now - self._times[0] > settings.restart_window_s:
            self._times.popleft()
        if len(self._times) >= settings.restart_limit:
            return None
        self._times.append(now)
        doubled = settings.restart_backoff_s * 2 ** (len(self._times) - 1)
        return float(min(doubled, settings.restart_backoff_max_s))

    @property
    def recent(self) -> int:
        return len(self._times)


class Keeper:
    """Owns the process on one port. ``settled`` is set once it is ready, or has failed for good."""

    def __init__(self, planned: Planned, tools: Tools) -> None:
        self.backend = planned.backend
        self.settled = asyncio.Event()
        self._launch = planned.launch
        self._settings = tools.settings
        self._pool = tools.pool
        self._launcher = tools.launcher
        self._metrics = tools.metrics
        self._checks = Checks(tools.http, planned.backend, tools.settings.check_timeout_s)
        self._clock = tools.clock
        self._restarts = Restarts(tools.settings)
        self._task: asyncio.Task[None] | None = None

    def start(self, delay: float) -> None:
        """Begin after ``delay`` seconds."""
        self._task = asyncio.create_task(self._keep(delay))

    async def stop(self) -> None:
        """No more requests, then no more process. Returns when it and its children are gone."""
        self._pool.move(self.backend, BackendState.STOPPED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.settled.set()

    async def _keep(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            ending = await self._one_life()
            pause = self._restarts.pause(self._clock())
            port = self.backend.port
            if pause is None:
                reason = self._last_words(ending)
                self._pool.move(self.backend, BackendState.FAILED, reason)
                logger.error("backend %d has failed: %s", port, reason)
                self.settled.set()
                return
            self._pool.move(self.backend, BackendState.RESTARTING, ending.words)
            self.backend.restarts += 1
            self._metrics.restarts.labels(port=str(port), cause=ending.cause).inc()
            logger.warning("backend %d starts again in %g s: %s", port, pause, ending.words)
            await asyncio.sleep(pause)

    async def _one_life(self) -> Ending:
        self._pool.move(self.backend, BackendState.STARTING)
        logger.info("backend %d starts", self.backend.port)
        try:
            _require_free(self.backend.host, self.backend.port)
            process, cancelled = await to_the_end(self._launcher.start(self._launch))
        except BackendFailureError as error:
            return Ending("crashed", str(error))
        ending: Ending | None = None
        try:
            if cancelled:
                raise asyncio.CancelledError
            ending = await self._until_ready(process)
            if ending is None:
                self._restarts.was_ready = True
                self._pool.move(self.backend, BackendState.READY)
                logger.info("backend %d is ready", self.backend.port)
                self.settled.set()
                ending = await self._watch(process)
            return ending
        finally:
            self.backend.pid = None
            _, cancelled = await to_the_end(_end(process, ending))
            if cancelled:
                raise asyncio.CancelledError

    async def _until_ready(self, process: BackendProcess) -> Ending | None:
        """None when it generated a token; else why it never will."""
        limit = self._settings.cold_start_s
        deadline = self._clock() + limit
        last = "it did not listen"
        while (left := deadline - self._clock()) > 0:
            if await self._ended_within(process, min(self._settings.check_every_s, left)):
                return await self._crash(process, "before it was ready")
            self.backend.pid = process.pid
            failure = await self._checks.health() or await self._probe(left)
            if failure is None:
                return None
            last = failure
        words = f"not ready after {limit:g} s ({last}){self._tail(process)}"
        return Ending("never_ready", words)

    async def _probe(self, left: float) -> str | None:
        model = await self._checks.model()
        if model is None:
            return "/v1/models named no model"
        self.backend.model = model
        return await self._checks.one_token(model, left)

    async def _watch(self, process: BackendProcess) -> Ending:
        """Until something is wrong that only a restart mends."""
        settings = self._settings
        strikes, progress = Strikes(settings.failures), Progress(settings.hung_s)
        while True:
            if await self._ended_within(process, settings.check_every_s):
                return await self._crash(process, "while it was in use")
            well = strikes.note(await self._checks.health(), self._clock())
            self._show_health(well, strikes)
            if strikes.lasted(self._clock()) >= settings.unhealthy_restart_s:
                seconds = strikes.lasted(self._clock())
                return Ending("unhealthy", f"unhealthy for {seconds:.0f} s: {strikes.last}", False)
            busy = await self._checks.pow_busy()
            if busy >= settings.hung_s:
                return self._hung(f"a proof-of-compute batch has been on it for {busy:.0f} s")
            work = await self._checks.work()
            progress.note(work, self.backend.in_flight, self._clock())
            if progress.suspicious(self._clock()):
                hung = await self._put_to_the_test(process, progress)
                if hung is not None:
                    return hung

    async def _put_to_the_test(self, process: BackendProcess, progress: Progress) -> Ending | None:
        """A request of our own, within what is left of ``hung_s``; None when it was answered."""
        limit = self._settings.hung_s
        silent = progress.silent_for(self._clock())
        # Never without any time at all: a late look at the clock is not the backend's fault.
        patience = max(limit - silent, limit * 0.1)
        probe = asyncio.create_task(self._checks.one_token(self.backend.model or "", patience))
        try:
            over = asyncio.create_task(process.server_ended())
            await asyncio.wait({probe, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if not probe.done():
                return None  # it ended; the watch sees that next
            failure = probe.result()
        finally:
            probe.cancel()
        if failure is None:
            progress.proven(self._clock())
            return None
        silent = progress.silent_for(self._clock())
        return self._hung(f"no token for {silent:.0f} s with requests waiting; {failure}")

    def _hung(self, words: str) -> Ending:
        self._pool.move(self.backend, BackendState.HUNG, words)
        logger.error("backend %d hangs: %s", self.backend.port, words)
        return Ending("hung", words, False)

    def _show_health(self, well: bool, strikes: Strikes) -> None:
        state = self.backend.state
        if well and state is BackendState.UNHEALTHY:
            self._pool.move(self.backend, BackendState.READY)
            logger.info("backend %d is well again", self.backend.port)
        elif not well and state is BackendState.READY:
            reason = f"{strikes.count} failed checks in a row: {strikes.last}"
            self._pool.move(self.backend, BackendState.UNHEALTHY, reason)
            logger.warning("backend %d is unhealthy: %s", self.backend.port, reason)

    async def _ended_within(self, process: BackendProcess, seconds: float) -> bool:
        over = asyncio.create_task(process.server_ended())
        try:
            done, _ = await asyncio.wait({over}, timeout=seconds)
            return bool(done)
        finally:
            over.cancel()

    async def _crash(self, process: BackendProcess, when: str) -> Ending:
        # At once: what is left of it may take seconds to end, and requests must not go there.
        self._pool.move(self.backend, BackendState.RESTARTING, f"its server ended {when}")
        how = await process.wait()
        return Ending("crashed", f"{how} {when}{self._tail(process)}")

    def _tail(self, process: BackendProcess) -> str:
        tail = hide(process.log_tail(), self._launch.secrets)
        return f"; the end of its log:\n{tail}" if tail else ""

    def _last_words(self, ending: Ending) -> str:
        if not self._restarts.was_ready:
            return ending.words
        return (
            f"{self._restarts.recent} restarts within {self._settings.restart_window_s:g} s did not"
            f" help, no more are tried; last: {ending.words}"
        )


async def _end(process: BackendProcess, ending: Ending | None) -> None:
    if ending is None or ending.answers:
        await process.stop()
    else:
        await process.kill()


def _require_free(host: str, port: int) -> None:
    """A stranger on the port would be taken for our backend."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BackendFailureError(
                f"port {port} on {host} cannot be used: {error.strerror}; end what listens there or"
                " set backends.first_port"
            ) from error
