"""How a network talks to a node: requests, a round's bodies, a receiver.

JSON without a Content-Type, no batch_size and no k_dim, keys nobody knows, the model's id escaped
twice in the callback address; the body of an answer of 400 or above is never read.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from .artifacts import (
    CheckError,
    Identity,
    NotYetError,
    Received,
    counts,
    received,
    received_nonces,
)

API = "/api/v1"
LOOK_EVERY = 0.5
"""Seconds between two looks at something that is to happen."""
RECEIVER_WITHIN = 60.0
Found = TypeVar("Found")


def need(condition: object, message: str) -> None:
    if not condition:
        raise CheckError(message)


def until(look: Callable[[], Found | None], what: str, seconds: float) -> Found:
    """The first answer of ``look`` that is something. It may raise NotYetError meanwhile; any other
    CheckError is final."""
    deadline = time.monotonic() + seconds
    while True:
        why = ""
        try:
            found = look()
            if found:
                return found
        except NotYetError as error:
            why = f" ({error})"
        if time.monotonic() > deadline:
            raise CheckError(f"not within {seconds:g} s: {what}{why}")
        time.sleep(LOOK_EVERY)


class Wire:
    """Requests to the node; CheckError for every answer that a client would call an error.

    ``within``: seconds a request may take; ``/inference/up`` answers when the model is ready.
    """

    def __init__(
        self, node: str, control_key: str | None, inference_key: str | None, within: float
    ) -> None:
        self._control = control_key
        self._inference = inference_key or control_key
        self._http = httpx.Client(base_url=node, trust_env=False, timeout=within)

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: object = None) -> Any:
        return self._json("POST", path, body)

    def lines(self, path: str, body: object) -> list[str]:
        """Lines of a streamed answer."""
        with self._accepted("POST", path, body) as answer:
            return list(answer.iter_lines())

    def text(self, path: str) -> str:
        with self._accepted("GET", path, None) as answer:
            return answer.read().decode()

    def look(self, path: str, body: object) -> tuple[int, httpx.Headers]:
        """Status and headers of an answer that may well be a refusal."""
        with self._send("POST", path, body) as answer:
            return answer.status_code, answer.headers

    def _json(self, method: str, path: str, body: object) -> Any:
        with self._accepted(method, path, body) as answer:
            try:
                return json.loads(answer.read())
            except ValueError as error:
                raise CheckError(f"{method} {path}: no JSON: {error}") from error

    @contextmanager
    def _accepted(self, method: str, path: str, body: object) -> Iterator[httpx.Response]:
        with self._send(method, path, body) as answer:
            need(answer.status_code < 400, f"{method} {path}: HTTP {answer.status_code}")
            yield answer

    @contextmanager
    def _send(self, method: str, path: str, body: object) -> Iterator[httpx.Response]:
        key = self._inference if path.startswith("/v1/") else self._control
        # Bytes and not json=: httpx then sends no Content-Type.
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            with self._http.stream(method, path, content=content, headers=headers) as answer:
                yield answer
        except httpx.HTTPError as error:
            raise CheckError(f"{method} {path}: {str(error) or type(error).__name__}") from error


class Round:
    """One mining round: for whom, what is asked, what has come. ``n_groups``: set by its begin."""

    def __init__(self, model: str, seq_len: int, receiver: str, store: Path) -> None:
        self.identity = Identity(
            block_hash=secrets.token_hex(32),
            block_height=secrets.randbelow(10**6) + 1,
            public_key=secrets.token_hex(33),
            node_id=1,
            node_count=3,
        )
        self.n_groups = 0
        self.url = f"http://{receiver}/v2/poc-batches/{quote(quote(model, safe=''), safe='')}"
        self._params = {"model": model, "seq_len": seq_len}
        self._store = store

    def body(self, **more: Any) -> dict[str, Any]:
        return {
            **vars(self.identity),
            "params": self._params,
            "poc_stronger_rng": False,
            "client_version": "a key that no node knows",
            **more,
        }

    def got(self) -> Received:
        return received(self._store, self.identity)

    def sizes(self) -> list[int]:
        """Nonces of each class; NotYetError while one of them has a gap."""
        return counts(received_nonces(self._store, self.identity), self.identity, self.n_groups)


@contextmanager
def receiver(address: str) -> Iterator[Path]:
    """An ``assay node receive`` at ``host:port`` while the block runs; its SQLite file."""
    host, _, port = address.rpartition(":")
    with tempfile.TemporaryDirectory() as folder:
        store, log = Path(folder) / "received.sqlite3", Path(folder) / "log"
        command = [sys.executable, "-m", "assay.cli.main", "node", "receive"]
        command += ["--host", host, "--port", port, "--store", str(store)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            until(lambda: _listens(process, address, log), f"{address} answers", RECEIVER_WITHIN)
            yield store
        finally:
            process.terminate()
            process.wait()


def _listens(process: subprocess.Popen[bytes], address: str, log: Path) -> bool:
    if process.poll() is not None:
        raise CheckError(f"assay node receive ended: {log.read_text(errors='replace')[-500:]}")
    try:
        return httpx.get(f"http://{address}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
