"""What the engine tests say to a server: bodies for both routes and a client."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from tests.engine.answers import Answer, Body, read_json, read_stream
from tests.support.server import Server, client

TOP = 4
"""Alternatives a position the tests ask for."""
SETTLES_WITHIN = 60.0
"""Seconds a server may take to come back to rest. A bound on hanging, not a speed test."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(content: str = "Who runs this server?", **fields: Any) -> Body:
    """A chat body that asks for everything a claim needs."""
    return {
        "model": "model",
        "messages": [{"role": "user", "content": content}],
        "logprobs": True,
        "top_logprobs": TOP,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        **fields,
    }


def text(prompt: str | list[int] = "The server answers", **fields: Any) -> Body:
    """The same for /v1/completions."""
    return {
        "model": "model",
        "prompt": prompt,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        **fields,
    }


def enforced(ids: Sequence[int], tops: Sequence[Sequence[int]] | None = None) -> Body:
    """The field ``enforced_tokens`` for ``ids``, with top tokens where given."""
    entries: list[Body] = [{"token": f"token_id:{token}"} for token in ids]
    for entry, top in zip(entries, tops or (), strict=tops is not None):
        entry["top_tokens"] = [f"token_id:{token}" for token in top]
    return {"tokens": entries}


def replay_of(body: Body, ids: Sequence[int], **fields: Any) -> Body:
    """The origin's body as a validator sends it again with ``ids`` forced."""
    return {**body, "enforced_tokens": enforced(ids), **fields}


def route(body: Body) -> str:
    return CHAT if "messages" in body else TEXT


class Talk:
    """A client of one server. Every method raises on an answer the test did not ask for."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = client(server)

    def close(self) -> None:
        self.http.close()

    def post(self, body: Any, path: str | None = None) -> httpx.Response:
        # ASCII with escapes, so that half characters travel as a hostile client would send them.
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return self.http.post(path or route(body), content=content, headers=headers)

    def ask(self, body: Body) -> Answer:
        """Send ``body`` and read the answer, streamed if the body says so."""
        if body.get("stream"):
            return read_stream(self.lines(body), "messages" in body)
        response = self.post(body)
        assert response.status_code == 200, response.text
        return read_json(response.json(), "messages" in body)

    def lines(self, body: Body) -> list[str]:
        """The non-empty lines of a streamed answer."""
        with self.http.stream("POST", route(body), json=body) as response:
            assert response.status_code == 200, response.read()
            return [line for line in response.iter_lines() if line]

    def together(self, bodies: Iterable[Body]) -> list[Answer]:
        """Send all ``bodies`` at once; answers in the same order."""
        wanted = list(bodies)
        gate = threading.Barrier(len(wanted))

        def one(body: Body) -> Answer:
            gate.wait(timeout=SETTLES_WITHIN)
            return self.ask(body)

        with ThreadPoolExecutor(len(wanted)) as pool:
            return list(pool.map(one, wanted))

    def refused(self, body: Any, path: str | None = None) -> Body:
        """The error object of a body that must get HTTP 400."""
        response = self.post(body, path)
        assert response.status_code == 400, (response.status_code, response.text)
        error: Body = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == 400
        assert error["message"]
        return error

    def status(self) -> Body:
        response = self.http.get("/v1/assay/status")
        assert response.status_code == 200, response.text
        status: Body = response.json()
        return status

    def metric(self, name: str) -> float:
        """Sum over the labels of one Prometheus metric."""
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.http.get("/metrics").text, re.M)
        assert found, f"the server has no metric {name}"
        return sum(map(float, found))

    def at_rest(self) -> bool:
        """Nothing runs, nothing waits, no replay is open in a worker."""
        running = self.metric("vllm:num_requests_running") + self.metric(
            "vllm:num_requests_waiting"
        )
        return running == 0 and self.status()["replays_open"] == 0


def until(condition: Callable[[], bool], what: str, *, every: float = 0.1) -> None:
    """Poll ``condition`` every so many seconds; fail with ``what`` when it does not come true."""
    deadline = time.monotonic() + SETTLES_WITHIN
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting: {what}"
        time.sleep(every)
