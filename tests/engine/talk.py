"""What the engine tests say to a server and how they read its answers.

One :class:`Answer` for chat completions and completions, streamed or not, so that a test can be
written once and run over all four.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from tests.support.server import Server, client

IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity in a JSON body."""
TOP = 4
"""Alternatives a position the tests ask for."""
CLOSE = 1e-4
"""Most a log probability may differ between two runs of one request, in nats (float32 here)."""
SETTLES_WITHIN = 60.0
"""Seconds a server may take to come back to rest. A bound on hanging, not a speed test."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One answer: ids and chosen log probabilities [positions], alternatives by id a position."""

    ids: list[int]
    chosen: list[float]
    tops: list[dict[int, float]]
    finish: str | None
    stop_reason: int | str | None
    text: str
    assay: dict[str, Any] | None
    usage: dict[str, Any]
    prompt_ids: list[int]


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


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll ``condition``; fail with ``what`` when it does not come true."""
    deadline = time.monotonic() + SETTLES_WITHIN
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting: {what}"
        time.sleep(0.1)


def token_id(spelled: str) -> int:
    """``token_id:17`` as 17; anything else is a fault of the answer."""
    prefix, _, number = spelled.partition(":")
    assert prefix == "token_id", spelled
    return int(number)


def read_json(body: Body, is_chat: bool) -> Answer:
    (choice,) = body["choices"]
    prompt = body.get("prompt_token_ids") if is_chat else choice.get("prompt_token_ids")
    ids, chosen, tops = _scores(choice.get("logprobs"), is_chat)
    if choice.get("token_ids") is not None:
        assert not ids or ids == choice["token_ids"]
        ids = choice["token_ids"]
    return Answer(
        ids=ids,
        chosen=chosen,
        tops=tops,
        finish=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        text=(choice["message"]["content"] if is_chat else choice["text"]) or "",
        assay=body.get("assay"),
        usage=body["usage"],
        prompt_ids=prompt or [],
    )


def read_stream(lines: Sequence[str], is_chat: bool) -> Answer:
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    ids: list[int] = []
    chosen: list[float] = []
    tops: list[dict[int, float]] = []
    words: list[str] = []
    prompt: list[int] = []
    finish = stop_reason = None
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            prompt += (chunk if is_chat else choice).get("prompt_token_ids") or []
            more, more_chosen, more_tops = _scores(choice.get("logprobs"), is_chat)
            ids += choice.get("token_ids") or more
            chosen += more_chosen
            tops += more_tops
            words.append((choice["delta"].get("content") if is_chat else choice["text"]) or "")
            finish = choice["finish_reason"] or finish
            stop_reason = choice.get("stop_reason") or stop_reason
    extra = [chunk for chunk in chunks if "assay" in chunk]
    assert len(extra) <= 1
    assert all(chunk is chunks[-1] and chunk["choices"] == [] for chunk in extra)
    return Answer(
        ids=ids,
        chosen=chosen,
        tops=tops,
        finish=finish,
        stop_reason=stop_reason,
        text="".join(words),
        assay=extra[0]["assay"] if extra else None,
        usage={},
        prompt_ids=prompt,
    )


def _scores(
    scores: Body | None, is_chat: bool
) -> tuple[list[int], list[float], list[dict[int, float]]]:
    if not scores:
        return [], [], []
    if is_chat:
        content = scores["content"] or []
        return (
            [token_id(entry["token"]) for entry in content],
            [entry["logprob"] for entry in content],
            [{token_id(t["token"]): t["logprob"] for t in e["top_logprobs"]} for e in content],
        )
    return (
        [token_id(token) for token in scores["tokens"]],
        list(scores["token_logprobs"]),
        [{token_id(k): v for k, v in top.items()} for top in scores["top_logprobs"] or ()],
    )


def furthest(left: Answer, right: Answer) -> float:
    """Largest difference of a log probability at any position, alternatives included.

    Two alternatives that tie may change places at the end of the list: ids only one side has are
    compared with the other side's smallest.
    """
    assert left.ids == right.ids
    assert len(left.chosen) == len(right.chosen) == len(left.ids)
    gaps = [abs(a - b) for a, b in zip(left.chosen, right.chosen, strict=True)]
    for ours, theirs in zip(left.tops, right.tops, strict=True):
        for token in ours.keys() | theirs.keys():
            gaps.append(
                abs(ours.get(token, min(ours.values())) - theirs.get(token, min(theirs.values())))
            )
    return max(gaps)


def check_evidence(answer: Answer, *, runner: str) -> Body:
    """The evidence field must fit the answer it came with; returns it."""
    field = answer.assay
    assert field is not None
    size = field["positions"]
    assert field["version"] == 1
    assert field["runner"] == runner
    assert field["complete"] is True
    columns = ("drawn", "rank_raw", "rank_processed", "logprob_raw", "logprob_processed")
    assert {name: len(field[name]) for name in columns} == dict.fromkeys(columns, size)
    mode = field["logprobs_mode"].removesuffix("_logprobs")
    for at in range(size if answer.chosen else 0):
        own = field[f"logprob_{mode}"][at]
        assert abs((IMPOSSIBLE if own is None else own) - answer.chosen[at]) <= CLOSE
        # A top list holds the ids of rank 1 to k, and ids that tie with the last.
        inside = [v for v in answer.tops[at].values() if v > answer.chosen[at] + CLOSE]
        assert field[f"rank_{mode}"][at] > len(inside)
    return field
