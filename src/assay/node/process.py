"""Backends as processes: each under a guard, in a session of its own, its output in a file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from assay.node.backend import BackendProcess, Launch
from assay.node.config import Backends
from assay.node.failures import BackendFailureError
from assay.node.guard import LEFT_BEHIND_GRACE, TRACKER_GRACE, descendants

TAIL_BYTES = 65_536
EXTRA_PATIENCE = 5.0
"""Seconds beyond its own graces that the guard has before the node kills the session itself."""


class GuardedLauncher:
    """Starts ``assay.node.guard`` around each command."""

    def __init__(self, settings: Backends) -> None:
        self._settings = settings

    async def start(self, launch: Launch) -> BackendProcess:
        folder = self._settings.log_folder.expanduser()
        log = folder / f"backend-{launch.port}.log"
        grace = self._settings.stop_grace_s
        told, tells = os.pipe()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if log.exists() and log.stat().st_size > self._settings.log_bytes:
                log.replace(log.with_suffix(".log.1"))
            with log.open("ab") as output:
                begin = output.tell()
                guard = (sys.executable, "-m", "assay.node.guard", str(grace), str(tells))
                process = await asyncio.create_subprocess_exec(
                    *(*guard, *launch.command),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(launch.environment),
                    pass_fds=(tells,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(told)
            raise BackendFailureError(
                f"the backend on port {launch.port} cannot be started: {error}"
            ) from error
        finally:
            os.close(tells)
        return GuardedProcess(process, log, begin, grace, told)


class GuardedProcess:
    """A backend under its guard.

    ``begin``: where in the log this run of it begins. ``told``: a pipe that ends with the server.
    """

    def __init__(
        self, guard: asyncio.subprocess.Process, log: Path, begin: int, grace: float, told: int
    ) -> None:
        self._guard = guard
        self._log = log
        self._begin = begin
        self._patience = grace + LEFT_BEHIND_GRACE + TRACKER_GRACE + EXTRA_PATIENCE
        self._server_over = asyncio.Event()
        asyncio.get_running_loop().add_reader(told, self._hear, told)
        self._over = asyncio.create_task(self._wait_for_all())

    @property
    def pid(self) -> int | None:
        """The server is the guard's oldest child; None before it was forked and when it is gone."""
        if self._guard.returncode is not None:
            return None
        path = Path(f"/proc/{self._guard.pid}/task/{self._guard.pid}/children")
        try:
            children = path.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None

    async def server_ended(self) -> None:
        await self._server_over.wait()

    async def wait(self) -> str:
        return await asyncio.shield(self._over)

    async def stop(self) -> None:
        self._signal(signal.SIGINT)
        await self._gone()

    async def kill(self) -> None:
        self._signal(signal.SIGUSR1)
        await self._gone()

    def log_tail(self, lines: int = 20) -> str:
        try:
            with self._log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._begin, size - TAIL_BYTES))
                text = log.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _hear(self, told: int) -> None:
        # Nothing is ever written: readable means that the other end was closed.
        asyncio.get_running_loop().remove_reader(told)
        os.close(told)
        self._server_over.set()

    def _signal(self, number: int) -> None:
        # asyncio reaps the guard, and knows its code before the pid can be another process's.
        if self._guard.returncode is None:
            self._guard.send_signal(number)

    async def _gone(self) -> None:
        done, _ = await asyncio.wait({self._over}, timeout=self._patience)
        if not done:
            # The guard itself does not answer.
            kill_session(self._guard.pid)
            await asyncio.wait({self._over})

    async def _wait_for_all(self) -> str:
        code = await self._guard.wait()
        # A guard that was killed left its backend behind, all but the server itself.
        kill_session(self._guard.pid)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        return _ending(code)


def kill_session(leader: int) -> None:
    """SIGKILL to what still runs in the session that ``leader`` began.

    The number stays taken as long as one process of the session runs, so it cannot be another's.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            # "pid (name) state ppid pgrp session ..."
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                for pid in (*descendants(int(entry.name)), int(entry.name)):
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


def _ending(code: int) -> str:
    number = code - 128 if code > 128 else -code
    if number > 0:
        try:
            return f"ended by {signal.Signals(number).name}"
        except ValueError:
            return f"ended with exit code {code}"
    return f"ended with exit code {code}"
