"""The test's end of ``driver``: starts the process, asks, and never leaves it behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.server import clean_environment

ROOT = Path(__file__).resolve().parents[3]
ANSWER_WITHIN = 300.0
"""Seconds for one answer. A bound on hanging (F31), not a speed test."""
PROBE = "tests.engine.poc.probe.ProbeWorker"
OPTIONS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 32,
    "num_gpu_blocks_override": 128,
    "block_size": 32,
    "worker_extension_cls": PROBE,
    "disable_log_stats": True,
}


class EngineProcess:
    """One driver process; ``start`` loads an engine into it, in place of the one before."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        read, write = os.pipe()
        path = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engine.poc.driver", str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                cwd=ROOT,
                env=clean_environment({**env, "PYTHONPATH": path}),
                start_new_session=True,
            )
        os.close(write)
        self._read = read
        self._pending = b""

    def start(self, model: Path | str, **options: Any) -> dict[str, Any]:
        return dict(self.ask("start", str(model), **{**OPTIONS, **options}))

    def rpc(self, method: str, *args: Any) -> Any:
        return self.ask("rpc", method, *args)

    def vectors(
        self,
        nonces: Sequence[int],
        seq_len: int,
        stronger: bool = False,
        challenge: tuple[str, str] = ("BLOCK", "KEY"),
    ) -> dict[str, Any]:
        """The answer of the one rank that returns."""
        given = self.rpc("probe_vectors", *challenge, list(nonces), seq_len, stronger)
        assert isinstance(given, list), given
        answers = [answer for answer in given if answer is not None]
        assert len(answers) == 1, given
        return dict(answers[0])

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, args, options]).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def close(self) -> None:
        """End the process and its workers; by now or by force."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):  # all of the group ended by themselves
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)

    def _line(self) -> bytes:
        deadline = time.monotonic() + ANSWER_WITHIN
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, f"no answer within {ANSWER_WITHIN:.0f} s\n{self._tail()}"
            more = os.read(self._read, 1 << 20)
            assert more, f"the engine's process ended\n{self._tail()}"
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
