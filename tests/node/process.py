"""``assay node`` as a process of its own, as an operator runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tests.node.helpers import HOST, SOON, STAND_IN, free_ports, runs
from tests.support.server import clean_environment

from assay.node.guard import descendants

ASSAY_NODE = (sys.executable, "-m", "assay.cli.main", "node")
STRAIGHT = (
    sys.executable,
    "-c",
    "import pathlib, sys\n"
    "from assay.node.config_file import node_config\n"
    "from assay.node.run import run_node\n"
    "run_node(node_config(pathlib.Path(sys.argv[1])))\n",
)
"""What the command does with --config, without loading every other command first."""


class NodeProcess:
    """Use as a context manager; ends whatever is left, backends included."""

    def __init__(self, folder: Path, *, toml: str = "", **variables: str) -> None:
        self.port = free_ports(4)
        self.second_port = self.port + 3
        self.log = folder / "node.log"
        self.config = folder / "node.toml"
        self.config.write_text(toml or self.stand_in_toml(folder))
        self._environment = clean_environment(variables)
        self._ever: set[int] = set()

    def stand_in_toml(self, folder: Path) -> str:
        return (
            f"port = {self.port}\n"
            f"[proxy]\nport = {self.second_port}\n"
            f"[store]\nfolder = '{folder / 'state'}'\n"
            "[limits]\ngraceful_s = 30\n"
            f"[backends]\ncommand = ['{sys.executable}', '{STAND_IN}']\n"
            f"count = 2\ngpus = []\nfirst_port = {self.port + 1}\nstagger_s = 0\n"
            "check_every_s = 0.05\nrestart_backoff_s = 0.05\nstop_grace_s = 2\n"
            f"log_folder = '{folder / 'logs'}'\n"
        )

    def __enter__(self) -> Self:
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*STRAIGHT, str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self.http = httpx.Client(
            base_url=f"http://{HOST}:{self.port}", timeout=SOON, trust_env=False
        )
        try:
            wait(self._answers, "the node answers")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tree(self) -> list[int]:
        """Everything the node has started that runs."""
        found = descendants(self.pid)
        self._ever |= set(found)
        return found

    def up(self, model: str = "model", **headers: str) -> httpx.Response:
        body = {"model": model, "dtype": "auto", "additional_args": []}
        answer = self.http.post("/api/v1/inference/up", json=body, headers=headers)
        self.tree()
        return answer

    def status(self, **headers: str) -> Any:
        return self.http.get("/api/v1/inference/up/status", headers=headers).json()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_for_end(self) -> int:
        return self._process.wait(SOON)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"the node ended:\n{self.log_text()}"
        try:
            return self.http.get("/livez").status_code == 200
        except httpx.TransportError:
            return False

    def _end(self) -> None:
        self.http.close()
        if self._process.poll() is None:
            self.tree()
            self._process.terminate()
            try:
                self._process.wait(SOON)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in self._ever:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def wait(condition: Callable[[], object], what: str, seconds: float = SOON) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@contextmanager
def dead(pids: list[int], what: str) -> Iterator[None]:
    """After the block all of ``pids`` end, soon."""
    assert pids
    assert all(runs(pid) for pid in pids)
    yield
    wait(lambda: not any(runs(pid) for pid in pids), what)
