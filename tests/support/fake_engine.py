"""A small engine for tests of the client side: the wire of vLLM with the plugin, numbers by numpy.

It is a real language model in the only sense that matters here: the distribution of a position is
a function of the tokens before it. ``noise`` turns it into a cheaper copy of itself. What a test
wants to go wrong is a field of ``FakeEngine``; the real engine is tested in ``tests/engine``.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np

VOCABULARY = 512
EOS = 2

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class FakeEngine:
    """``model`` decides the weights, ``noise`` (in logits) how far they are off."""

    model: str = "fake-1"
    noise: float = 0.0
    plugin: bool = True
    api_key: str | None = None
    token_ids: bool = True
    """False: ``token_ids`` is null although it was asked for (case 20)."""
    ignores_enforcement: bool = False
    speculative: bool = False
    defaults: dict[str, float] | None = None
    """Sampling parameters the server fills in, where its status says so."""
    tokenize: bool = True
    """False: the server has neither /tokenize nor /detokenize."""
    template: str = ""
    """What the template writes before the first message, such as a hidden system prompt."""
    max_logprobs: int = 20
    max_model_len: int = 2048
    fail_with: list[Answer] = field(default_factory=list)
    """Answers given to the next completions, before the engine works again."""
    dead_after: int | None = None
    """Completions after which every route answers 502."""
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        with self._lock:
            if self.dead_after is not None and len(self.requests) >= self.dead_after:
                return error(502, "bad gateway")
        allowed = self.api_key is None or headers.get("authorization") == f"Bearer {self.api_key}"
        if path.startswith("/v1") and not allowed:
            return error(401, "Unauthorized")
        routes = {
            ("GET", "/health"): lambda: (200, {}, b""),
            ("GET", "/version"): lambda: reply({"version": "0.32.0"}),
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/assay/status"): self._status,
            ("POST", "/v1/chat/completions"): lambda: self._complete(json.loads(body), True),
            ("POST", "/v1/completions"): lambda: self._complete(json.loads(body), False),
            ("POST", "/v1/assay/prefill"): lambda: self._prefill(json.loads(body)),
            ("POST", "/tokenize"): lambda: self._tokenize(json.loads(body)),
            ("POST", "/detokenize"): lambda: self._detokenize(json.loads(body)),
        }
        route = routes.get((method, path))
        return error(404, "Not Found") if route is None else route()

    def _models(self) -> Answer:
        return reply({"data": [{"id": self.model, "max_model_len": self.max_model_len}]})

    def _status(self) -> Answer:
        if not self.plugin:
            return error(404, "Not Found")
        return reply(
            {
                "plugin_version": "0.1.0",
                "vllm_version": "0.32.0",
                "runner": "v1",
                "tape": {"runner": "v1", "generation": 2, "fp64": False, "device": "cpu"},
                "hardware": "fake device",
                "model": self.model,
                "model_path": f"/models/{self.model}-{self.noise}",
                "dtype": "float32",
                "kv_cache_dtype": "auto",
                "attention_backend": "FAKE",
                "logprobs_mode": "raw_logprobs",
                "max_logprobs": self.max_logprobs,
                "max_model_len": self.max_model_len,
                "vocab_size": VOCABULARY,
                "eos_token_ids": [EOS],
                "prefix_caching": True,
                "chunked_prefill": True,
                "async_scheduling": True,
                "speculative": self.speculative,
                "default_sampling_params": self.defaults,
                "workers": [],
                "replays_open": 0,
            }
        )

    def _complete(self, body: dict[str, Any], chat: bool) -> Answer:
        with self._lock:
            self.requests.append(body)
            if self.fail_with:
                return self.fail_with.pop(0)
        if body.get("model") not in (None, self.model):
            return error(404, f"The model `{body['model']}` does not exist.")
        prompt = prompt_ids(body, self.template)
        width = body.get("prompt_logprobs")
        if width is not None and width > self.max_logprobs:
            return error(400, f"Requested prompt logprobs of {width}, which is greater than max")
        forced = None if self.ignores_enforcement else forced_ids(body)
        if forced is not None and any(not 0 <= t < VOCABULARY for t in forced):
            index = next(i for i, t in enumerate(forced) if not 0 <= t < VOCABULARY)
            return error(400, "outside the vocabulary", f"enforced_tokens.tokens[{index}].token")
        tokens, entries = self._run(prompt, forced, body, chat)
        value = self._reply(body, chat, prompt, tokens, entries)
        if forced is not None:
            value["assay"] = evidence(body, entries[: len(forced)])
        if width is not None:
            value["choices"][0]["prompt_logprobs"] = self._prompt_logprobs(prompt, width)
        return reply(value) if not body.get("stream") else stream(value)

    def _run(
        self, prompt: list[int], forced: list[int] | None, body: dict[str, Any], chat: bool
    ) -> tuple[list[int], list[tuple[int, float, list[tuple[int, float]]]]]:
        k = int(body.get("top_logprobs" if chat else "logprobs") or 0)
        draws = np.random.default_rng(body.get("seed", 0))
        tokens: list[int] = []
        entries = []
        for index in range(int(body.get("max_tokens", 16))):
            row = self.logprobs(prompt + tokens)  # [vocabulary]
            drawn = int(draws.choice(VOCABULARY, p=np.exp(row) / np.exp(row).sum()))
            token = drawn if forced is None or index >= len(forced) else forced[index]
            # As both routes list them: the chosen id first, then the others of the top k; chat
            # cuts the list at k.
            ids = [token, *(int(i) for i in likeliest(row, k) if i != token)]
            top = [(i, float(row[i])) for i in (ids[:k] if chat else ids)]
            entries.append((token, float(row[token]), top if k else []))
            tokens.append(token)
        return tokens, entries

    def _prompt_logprobs(self, prompt: list[int], width: int) -> list[dict[str, Any] | None]:
        """What vLLM lists for a prompt: each token and the ``width`` likeliest, with ranks."""
        rows: list[dict[str, Any] | None] = [None]
        for at, token in enumerate(prompt[1:], start=1):
            row = self.logprobs(prompt[:at])
            ranks = {token: int((row >= row[token]).sum())}
            ranks |= {int(i): rank for rank, i in enumerate(likeliest(row, width), start=1)}
            rows.append(
                {
                    str(i): {"logprob": float(row[i]), "rank": rank, "decoded_token": word(i)}
                    for i, rank in ranks.items()
                }
            )
        return rows

    def _prefill(self, body: dict[str, Any]) -> Answer:
        """The plugin's route, on runner V1: no log probabilities of claimed ids."""
        if not self.plugin:
            return error(404, "Not Found")
        with self._lock:
            self.requests.append(body)
            if self.fail_with:
                return self.fail_with.pop(0)
        prompt, output = body["prompt_token_ids"], body["output_token_ids"]
        ids, numbers = [], []
        for at, token in enumerate(output):
            row = self.logprobs(prompt + output[:at])
            ids.append([token, *likeliest(row, body["top"]).tolist()])
            numbers.append([float(row[i]) for i in ids[-1]])
        columns = {"token_ids": ids, "logprobs": numbers, "claimed_logprobs": None}
        return reply({"version": 1, "runner": "v1", **columns})

    def _tokenize(self, body: dict[str, Any]) -> Answer:
        if not self.tokenize:
            return error(404, "Not Found")
        if body.get("model") not in (None, self.model):
            return error(404, f"The model `{body['model']}` does not exist.")
        ids = prompt_ids(body, self.template)
        return reply({"tokens": ids, "count": len(ids), "max_model_len": self.max_model_len})

    def _detokenize(self, body: dict[str, Any]) -> Answer:
        if not self.tokenize:
            return error(404, "Not Found")
        return reply({"prompt": "".join(word(token) for token in body["tokens"])})

    def logprobs(self, context: list[int]) -> np.ndarray:
        """Log probabilities [vocabulary] after ``context``."""
        seed = zlib.crc32(np.array(context, dtype=np.int64).tobytes())
        logits = np.random.default_rng(seed).normal(size=VOCABULARY) * 8
        logits[EOS] = -60  # this engine never ends an answer
        if self.noise:
            logits = logits + np.random.default_rng(seed + 1).normal(size=VOCABULARY) * self.noise
        return logits - np.log(np.exp(logits).sum())

    def _reply(
        self,
        body: dict[str, Any],
        chat: bool,
        prompt: list[int],
        tokens: list[int],
        entries: list[tuple[int, float, list[tuple[int, float]]]],
    ) -> dict[str, Any]:
        name = f"cmpl-{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        text = "".join(word(token) for token in tokens)
        choice["token_ids"] = tokens if self.token_ids else None
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
            choice["logprobs"] = {"content": [chat_entry(*entry) for entry in entries]}
        else:
            choice["text"] = text
            choice["prompt_token_ids"] = prompt
            choice["logprobs"] = {
                "tokens": [f"token_id:{t}" for t, _, _ in entries],
                "token_logprobs": [lp for _, lp, _ in entries],
                "top_logprobs": [{f"token_id:{i}": v for i, v in top} for _, _, top in entries],
                "text_offset": [0] * len(entries),
            }
        value: dict[str, Any] = {
            "id": name,
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)},
        }
        if chat:
            value["prompt_token_ids"] = prompt
        return value

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        """The engine in this process, for ``HttpEngineClient(transport=...)``."""
        return _InProcess(self)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The engine on a loopback port; yields its address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def likeliest(row: np.ndarray, count: int) -> np.ndarray:
    """Ids of the ``count`` largest of ``row`` [vocabulary], largest first."""
    return np.argsort(-row, kind="stable")[:count]


def word(token: int) -> str:
    """Readable text of a token."""
    return f" w{token}"


def prompt_ids(body: dict[str, Any], template: str = "") -> list[int]:
    """Ids 10..509 of the prompt's bytes; a list of ids stays as it is."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return list(prompt)
    chat = template + json.dumps(body.get("messages"), sort_keys=True)
    text = chat if prompt is None else str(prompt)
    return [10 + byte for byte in text.encode()]


def forced_ids(body: dict[str, Any]) -> list[int] | None:
    tokens = (body.get("enforced_tokens") or {}).get("tokens")
    if tokens is not None:
        return [int(entry["token"].removeprefix("token_id:")) for entry in tokens]
    text = body.get("enforced_str")
    return None if text is None else [int(part) for part in text.split(" w") if part]


def chat_entry(token: int, logprob: float, top: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        "token": f"token_id:{token}",
        "logprob": logprob,
        "bytes": list(word(token).encode()),
        "top_logprobs": [
            {"token": f"token_id:{i}", "logprob": v, "bytes": list(f"token_id:{i}".encode())}
            for i, v in top
        ],
    }


def evidence(
    body: dict[str, Any], entries: list[tuple[int, float, list[tuple[int, float]]]]
) -> dict[str, Any]:
    count = len(entries)
    return {
        "version": 1,
        "runner": "v1",
        "logprobs_mode": body.get("logprobs_mode", "raw_logprobs"),
        "mode_source": "explicit" if "logprobs_mode" in body else "inferred",
        "inferred": None,
        "positions": count,
        "drawn": [token for token, _, _ in entries],
        "rank_raw": [1] * count,
        "rank_processed": [1] * count,
        "logprob_raw": [logprob for _, logprob, _ in entries],
        "logprob_processed": [logprob for _, logprob, _ in entries],
        "grammar_conflict": None,
        "complete": True,
    }


def reply(value: Any) -> Answer:
    return 200, {"content-type": "application/json"}, json.dumps(value).encode()


def error(status: int, message: str, param: str | None = None) -> Answer:
    body = {"error": {"message": message, "type": "error", "param": param, "code": status}}
    return status, {"content-type": "application/json"}, json.dumps(body).encode()


def stream(value: dict[str, Any]) -> Answer:
    """The whole answer as chat chunks of two tokens each, then usage, then the end."""
    choice = value["choices"][0]
    content = choice["logprobs"]["content"]
    chunks: list[dict[str, Any]] = [
        {"prompt_token_ids": value["prompt_token_ids"], "choices": [_delta("", [], [])]}
    ]
    for at in range(0, len(content), 2):
        ids = choice["token_ids"][at : at + 2]
        text = "".join(word(token) for token in ids)
        chunks.append({"choices": [_delta(text, content[at : at + 2], ids)]})
    chunks[-1]["choices"][0]["finish_reason"] = choice["finish_reason"]
    chunks.append({"choices": [], "usage": value["usage"]})
    common = {"id": value["id"], "model": value["model"]}
    lines = [f"data: {json.dumps(common | chunk)}\n\n" for chunk in chunks]
    return (
        200,
        {"content-type": "text/event-stream"},
        "".join([*lines, "data: [DONE]\n\n"]).encode(),
    )


def _delta(text: str, content: list[Any], ids: list[int]) -> dict[str, Any]:
    return {
        "index": 0,
        "delta": {"content": text},
        "logprobs": {"content": content} if content else None,
        "token_ids": ids,
        "finish_reason": None,
    }


class _InProcess(httpx.AsyncBaseTransport):
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status, headers, body = self._engine.answer(
            request.method, request.url.path, request.headers, await request.aread()
        )
        return httpx.Response(status, headers=headers, content=body)


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, extra, answer = engine.answer(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler
