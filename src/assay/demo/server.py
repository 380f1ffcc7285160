"""A vLLM server on loopback that is gone when the block that needed it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from assay.errors import ReplayError

START_LIMIT_S = 300.0
"""A start takes 30 s on two cores; the first one on a cold disk may take minutes."""
STOP_LIMIT_S = 20.0
TAIL_LINES = 15


class DemoServer:
    """``assay serve MODEL`` as a child process. Leaving the ``with`` block stops it.

    It gets a session of its own, so that stopping it also ends the engine processes it started,
    and nothing else.
    """

    def __init__(
        self, model: Path, flags: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "assay.cli.main", "serve", str(model)]
        command += [*flags, "--host", "127.0.0.1", "--port", str(port)]
        self.log = log
        self._process = start_session(command, environment, log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait(self, limit_s: float = START_LIMIT_S) -> None:
        """Return when the server answers; ReplayError with the end of its log when it does not."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failed(f"ended with code {self._process.returncode}")
            if _healthy(self.url):
                return
            time.sleep(0.5)
        raise self._failed(f"did not answer within {limit_s:.0f} s")

    def stop(self) -> None:
        """End the server: politely, then by force. Safe to call twice."""
        stop_session(self._process, STOP_LIMIT_S)

    def _failed(self, what: str) -> ReplayError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = " | ".join(lines[-TAIL_LINES:])
        return ReplayError(
            f"the demo's server {what}; its log is {self.log} and ends: {tail}",
            blame="validator",
            code="validator_unreachable",
        )


def start_session(
    command: list[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """``command`` as the head of a session of its own, everything it says in ``log``."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )


def stop_session(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """End ``process`` within ``limit_s`` seconds or by force, and then all of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # Engine processes that outlived their server are still in its process group.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
