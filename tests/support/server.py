"""One real server process: started on a free port, waited for, and never left behind."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

HOST = "127.0.0.1"
# Seconds. A server needs 25-40 s on two idle cores; on loaded ones 150 s were seen.
READY_WITHIN = 420.0
# After SIGINT vLLM drains and joins its engine core; after SIGTERM it should be gone at once.
GRACE = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0))
GROUP_GRACE = 5.0
LOG_TAIL_LINES = 60
# A developer's own settings for these programs must not change what the tests see.
FOREIGN_PREFIXES = ("VLLM_", "TRITON_", "ASSAY_", "OMP_", "KMP_")


class ServerError(RuntimeError):
    """The server ended early or did not answer in time; the message holds the end of its log."""


@dataclass(frozen=True)
class ServerSpec:
    """What to start: a command that takes ``--host`` and ``--port`` as well.

    ``env`` is added to a cleaned copy of the caller's environment.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def free_port() -> int:
    """A TCP port nothing listens on. Another process could take it before the server does."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without settings of the engine, plus ``extra``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_PREFIXES)}
    return kept | dict(extra)


class Server:
    """A server in its own process group. Use it as a context manager, or call ``stop``."""

    def __init__(self, spec: ServerSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.started_in = 0.0  # seconds from the start of the process to its first healthy answer
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the API server, which is also the id of its process group."""
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process.pid

    def start(self, ready_within: float = READY_WITHIN) -> Server:
        """Start the process and return when ``GET /health`` answers 200, else raise ServerError."""
        spec = self.spec
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*spec.command, "--host", HOST, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(spec.env),
                start_new_session=True,
            )
        atexit.register(self.stop)
        begun = time.monotonic()
        try:
            self._wait_ready(begun + ready_within)
        except BaseException:  # also an interrupt: the process must not outlive the caller
            self.stop()
            raise
        self.started_in = time.monotonic() - begun
        return self

    def exited(self) -> bool:
        """Whether the API server is gone. Does not reap it: its group id must stay taken."""
        if self._process is None or self._process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def stop(self) -> None:
        """End the server and everything it started; does nothing when it already has."""
        if self._process is None or self._process.returncode is not None:
            return
        for number, seconds in GRACE:
            if self.exited():
                break
            os.kill(self._process.pid, number)
            _wait(self.exited, seconds)
        # Engine core, workers and the tracker that unlinks shared memory end after the leader.
        _wait(lambda: not self.processes(), GROUP_GRACE)
        # Whatever is left of the group hangs. The leader is not reaped yet, so the group id
        # cannot belong to anyone else.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        atexit.unregister(self.stop)

    def log_text(self) -> str:
        """All that the server printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def processes(self) -> list[int]:
        """Process ids of the running group, from /proc: API server, engine core, workers."""
        members = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                # "pid (name) state ppid pgrp ..."; the name may hold spaces and brackets.
                state, _, pgrp = entry.read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(pgrp) == self.pid and state not in "ZX":
                members.append(int(entry.parent.name))
        return sorted(members)

    def _wait_ready(self, deadline: float) -> None:
        with httpx.Client(base_url=self.url, timeout=5.0, trust_env=False) as probe:
            while time.monotonic() < deadline:
                if self.exited():
                    raise ServerError(
                        f"the server ended while starting; its log:\n{self.log_tail()}"
                    )
                try:
                    if probe.get("/health").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(0.25)
        raise ServerError(f"the server did not become ready in time; its log:\n{self.log_tail()}")

    def __enter__(self) -> Server:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether ``condition`` became true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def client(server: Server, *, read: float = 300.0) -> httpx.Client:
    """An HTTP client for ``server``. ``read`` seconds may pass between two pieces of an answer.

    Proxies and .netrc of the machine are ignored: the server is on the loopback.
    """
    timeout = httpx.Timeout(read, connect=10.0, pool=read)
    return httpx.Client(base_url=server.url, timeout=timeout, trust_env=False)
