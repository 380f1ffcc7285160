"""Is a backend well? What is asked over HTTP, and what follows from the answers over time."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from assay.node.backend import Backend

PROBE_PROMPT = (1,)
"""A token id that every vocabulary has; text would need the server to have a tokenizer."""
TOKENS = "vllm:iteration_tokens_total_sum"
WAITING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
OURS = tuple(f"{name}{{" for name in (TOKENS, *WAITING, "vllm:engine_sleep_state"))
"""How the lines that matter begin; ``_created`` and ``_by_reason`` series must not count."""
PROBE_AT = 0.75
"""Share of ``hung_s`` after which silence is put to the test with a request of our own."""


@dataclass(frozen=True)
class Work:
    """``tokens``: scheduled so far. ``waiting``: engines of this server with requests present."""

    tokens: float
    waiting: bool


class Checks:
    """Questions to one backend. No method raises for what a backend may do."""

    def __init__(self, http: httpx.AsyncClient, backend: Backend, timeout_s: float) -> None:
        self._http = http
        self._backend = backend
        self._timeout = timeout_s

    async def health(self) -> str | None:
        """None when it is well, else what is wrong."""
        answer = await self._get("/health")
        if isinstance(answer, str):
            return f"/health {answer}"
        if answer.status_code != httpx.codes.OK:
            return f"/health answered {answer.status_code}"
        return None

    async def model(self) -> str | None:
        """Name of the served model; None when it cannot be told."""
        answer = await self._get("/v1/models")
        if isinstance(answer, str) or answer.status_code != httpx.codes.OK:
            return None
        try:
            name = answer.json()["data"][0]["id"]
        except (ValueError, KeyError, IndexError, TypeError):
            return None
        return name if isinstance(name, str) else None

    async def one_token(self, model: str, timeout_s: float) -> str | None:
        """None when the engine generated a token, or cannot be asked to; else what went wrong.

        A server without completions (404: pooling models) and a closed gate (503 with
        Retry-After: proof of compute has the device) are not ill.
        """
        body = {
            "model": model,
            "prompt": list(PROBE_PROMPT),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = await self._http.post(
                f"{self._backend.base_url}/v1/completions",
                json=body,
                headers=dict(self._backend.headers),
                timeout=timeout_s,
            )
        except httpx.HTTPError as error:
            return f"a request for one token {_words(error)}"
        gated = answer.status_code == 503 and "retry-after" in answer.headers
        if answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND) or gated:
            return None
        return f"a request for one token was answered {answer.status_code}: {answer.text[:300]}"

    async def work(self) -> Work | None:
        """From ``/metrics``; None when it does not say (no answer, or statistics switched off)."""
        answer = await self._get("/metrics")
        if isinstance(answer, str) or answer.status_code != httpx.codes.OK:
            return None
        return read_work(answer.text)

    async def pow_busy(self) -> float:
        """Seconds a proof-of-compute batch is overdue on the device (case 30); 0 when none is.

        Its server says "busy" only beyond POC_RPC_TIMEOUT_MS.
        """
        answer = await self._get("/api/v1/pow/status")
        if isinstance(answer, str) or answer.status_code != httpx.codes.OK:
            return 0.0
        try:
            seconds = answer.json().get("busy_seconds", 0.0)
        except (ValueError, AttributeError):
            return 0.0
        return float(seconds) if isinstance(seconds, int | float) else 0.0

    async def _get(self, path: str) -> httpx.Response | str:
        try:
            return await self._http.get(
                self._backend.base_url + path,
                headers=dict(self._backend.headers),
                timeout=self._timeout,
            )
        except httpx.HTTPError as error:
            return _words(error)


def read_work(text: str) -> Work | None:
    """The part of a vLLM metrics page that tells whether it moves; asleep engines owe nothing."""
    # A page has some hundred kilobytes, and reading all of it takes time that streams would miss.
    ours = "\n".join(line for line in text.splitlines() if line.startswith(OURS))
    tokens: float | None = None
    waiting: dict[str, float] = {}
    asleep: set[str] = set()
    try:
        for metric in text_string_to_metric_families(ours + "\n"):
            for sample in metric.samples:
                engine = sample.labels.get("engine", "0")
                if sample.name == TOKENS:
                    tokens = (tokens or 0.0) + sample.value
                elif sample.name in WAITING:
                    waiting[engine] = waiting.get(engine, 0.0) + sample.value
                elif sample.labels.get("sleep_state") == "awake":
                    asleep |= set() if sample.value else {engine}
    except ValueError:
        return None
    if tokens is None:
        return None
    return Work(tokens, any(count > 0 for name, count in waiting.items() if name not in asleep))


@dataclass
class Strikes:
    """Unhealthy after ``limit`` failures in a row, healthy on the first success."""

    limit: int
    count: int = 0
    last: str = ""
    since: float | None = None
    """When it became unhealthy; None while it is not."""

    def note(self, failure: str | None, now: float) -> bool:
        """Take in one check; whether the backend counts as healthy now."""
        if failure is None:
            self.count, self.since = 0, None
            return True
        self.count, self.last = self.count + 1, failure
        if self.count >= self.limit and self.since is None:
            self.since = now
        return self.since is None

    def lasted(self, now: float) -> float:
        """Seconds it has been unhealthy."""
        return 0.0 if self.since is None else now - self.since


@dataclass
class Progress:
    """Whether tokens move while requests are there.

    vLLM writes its gauges when a step ends, so an engine that hangs on its first request still
    shows none, and one that was idle after an abort may show a request that is gone. Hence two
    sources for "requests are there" (the gauges, and the node's own leases), and silence alone
    proves nothing: see :attr:`suspicious`.
    """

    hung_s: float
    _tokens: float | None = None
    _moved: float | None = None
    _idle: bool = True

    def note(self, work: Work | None, leases: int, now: float) -> None:
        """Take in one look at the metrics, None when there were none to be had."""
        moved = work is not None and work.tokens != self._tokens
        if work is not None:
            self._tokens = work.tokens
        present = leases > 0 or (work is not None and work.waiting)
        if moved or not present or self._idle:
            self._moved = now
        self._idle = not present

    def proven(self, now: float) -> None:
        """A request of our own was answered: whatever is waiting, the engine works."""
        self._moved = now

    def silent_for(self, now: float) -> float:
        """Seconds without movement while requests were there."""
        return 0.0 if self._moved is None or self._idle else now - self._moved

    def suspicious(self, now: float) -> bool:
        """Time to send a request of our own and see whether it is answered."""
        return self.silent_for(now) >= PROBE_AT * self.hung_s

    def hung(self, now: float) -> bool:
        return self.silent_for(now) >= self.hung_s


def _words(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "was not answered in time"
    return f"failed: {error or type(error).__name__}"
