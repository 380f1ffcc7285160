"""A backend in place of ``assay serve``: the same wire, no engine, and it fails when told to.

A real process with a real server, started by the node under test through ``backends.command``.
``POST /control`` with JSON sets fields of ``Mood`` while it runs; the model's name sets them at the
start, as ``key=value`` after a question mark: ``model?exit=3``. Standard library only, so that it
listens within a fraction of a second.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

SHARED: list[SharedMemory] = []
# Ignores what a supervisor says, as a worker stuck in a driver call does.
STUBBORN = (
    "import signal, time\n"
    "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\n"
    "print('stubborn', flush=True)\n"
    "while True: time.sleep(60)\n"
)


@dataclass
class Mood:
    """What goes wrong. All good as it stands."""

    exit: int | None = None
    """Exit code of a process that ends before it listens."""
    exit_unless: str = ""
    """With ``exit``: not when this file exists; it is made otherwise, so the second start works."""
    deaf: bool = False
    """Ignores SIGINT."""
    health: int = 200
    hang: bool = False
    """Completions are never answered; everything else is."""
    gate: bool = False
    """Completions are refused as while mining."""
    mining: bool = False
    """Mines and lets chat go on, as under the share policy."""
    refuses_to_mine: bool = False
    torn: bool = False
    """Answers about proof of compute break off in the middle of their JSON."""
    asleep: bool = False
    """As after POST /sleep: completions are refused and nothing moves."""
    busy_seconds: float = 0
    """How long a proof-of-compute batch is overdue."""
    stale_gauge: int = 0
    """Requests that the metrics show although there are none."""
    shared: str = ""
    """Name of shared memory to make; the children then hold its tracker open, as workers do."""
    children: int = 0
    """Stubborn processes to start, each in a session of its own."""
    statistics: bool = True
    """False: ``/metrics`` has no engine numbers, as with --disable-log-stats."""


@dataclass
class Engine:
    mood: Mood
    model: str
    tokens: int = 0
    running: int = 0
    asked: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def main(arguments: list[str]) -> int:
    if "--dry-run" in arguments:
        arguments.remove("--dry-run")
        if "--refuse" in arguments:
            print("assay: --refuse: not a flag", file=sys.stderr)
            return 1
        print(shlex.join(["X=1", "serve", *arguments]))
        return 0
    model, _, wishes = arguments[0].partition("?")
    mood = Mood()
    change(mood, {key: json.loads(value) for key, value in parse_qsl(wishes)})
    print(f"stand-in: {model} with {os.environ.get('CUDA_VISIBLE_DEVICES', 'no GPU')}", flush=True)
    if mood.exit is not None and not (mood.exit_unless and Path(mood.exit_unless).exists()):
        if mood.exit_unless:
            Path(mood.exit_unless).touch()
        # As vLLM prints the flags it was given, keys among them.
        print(f"stand-in: giving up; {arguments} {os.environ.get('HF_TOKEN')}", flush=True)
        return mood.exit
    if mood.deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_children(mood)
    engine = Engine(mood, model)
    address = (value(arguments, "--host"), int(value(arguments, "--port")))
    server = ThreadingHTTPServer(address, type("Handler", (Handler,), {"engine": engine}))
    server.daemon_threads = True
    try:
        server.serve_forever(poll_interval=0.05)
    except KeyboardInterrupt:
        print("stand-in: interrupted", flush=True)
        os._exit(0)  # threads may be in the middle of an answer
    return 0


def start_children(mood: Mood) -> None:
    fds: tuple[int, ...] = ()
    if mood.shared:
        SHARED.append(SharedMemory(mood.shared, create=True, size=4096))
        fds = (resource_tracker.getfd(),)
        mood.shared = ""
    for _ in range(mood.children):
        child = subprocess.Popen(
            [sys.executable, "-c", STUBBORN],
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=fds,
        )
        assert child.stdout is not None
        child.stdout.readline()  # its signals are ignored from here on
    mood.children = 0


def change(mood: Mood, wishes: dict[str, Any]) -> None:
    for name, wish in wishes.items():
        if not hasattr(mood, name):
            raise SystemExit(f"no such mood: {name}")
        setattr(mood, name, wish)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with chunked streams."""

    engine: Engine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        engine = self.engine
        if self.path == "/health":
            self.answer(engine.mood.health, {})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": engine.model}]})
        elif self.path == "/metrics":
            self.answer(200, metrics(engine), "text/plain; version=0.0.4")
        elif self.path == "/api/v1/pow/status":
            engine.asked += 1
            state: dict[str, object] = {
                "status": "GENERATING" if engine.mood.gate or engine.mood.mining else "IDLE"
            }
            if engine.mood.busy_seconds:
                state |= {"busy": True, "busy_seconds": engine.mood.busy_seconds}
            self.answer(200, state)
        elif self.path == "/api/v1/pow/versions":
            self.answer(200, {"vllm_version": "0.0.0", "poc_validation_inference": True})
        elif self.path.startswith("/api/v1/pow/generate/"):
            self.answer(200, {"status": "running"})
        elif self.path == "/asked":
            self.answer(200, engine.asked)
        elif self.path == "/seen":
            self.answer(200, engine.seen)
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        engine = self.engine
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))) or b"{}")
        if self.path == "/control":
            change(engine.mood, body)
            start_children(engine.mood)
            self.answer(200, {"pid": os.getpid()})
        elif self.path.startswith("/api/v1/pow/"):
            engine.seen.append({"path": self.path, "body": body})
            self.prove(self.path.removeprefix("/api/v1/pow/"))
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            engine.seen.append({"path": self.path, "authorization": self.headers["authorization"]})
            self.complete(body)
        else:
            self.answer(404, {"detail": "Not Found"})

    def prove(self, route: str) -> None:
        """Proof of compute that says it is at work and delivers nothing."""
        mood = self.engine.mood
        if route != "stop" and mood.refuses_to_mine:
            self.answer(503, {"detail": "this engine cannot mine"})
            return
        mood.mining = route != "stop" and (mood.mining or route == "init/generate")
        self.answer(200, {"status": "OK", "request_id": "1" * 32, "queued_count": 1})

    def complete(self, body: dict[str, Any]) -> None:
        engine = self.engine
        if engine.mood.gate:
            self.answer(
                503, {"error": {"message": "mining", "code": 503}}, headers={"Retry-After": "1"}
            )
            return
        if engine.mood.asleep:
            self.answer(409, {"error": {"message": "the engine sleeps; wake it", "code": 409}})
            return
        with engine.lock:
            engine.running += 1
        try:
            while engine.mood.hang:
                time.sleep(0.02)
            if body.get("stream"):
                self.stream(int(body["max_tokens"]), float(body.get("pause", 0)))
            else:
                engine.tokens += 1
                self.answer(200, {"choices": [{"text": "a"}], "served_by": self.server.server_port})
        finally:
            with engine.lock:
                engine.running -= 1

    def stream(self, count: int, pause: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(count):
            self.engine.tokens += 1
            event = f"data: {json.dumps({'index': index})}\n\n".encode()
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.flush()
            time.sleep(pause)
        end = b"data: [DONE]\n\n"
        self.wfile.write(f"{len(end):x}\r\n".encode() + end + b"\r\n0\r\n\r\n")

    def answer(
        self,
        status: int,
        body: object,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        if self.engine.mood.torn and self.path.startswith("/api/v1/pow/"):
            data = data[: len(data) // 2]
        self.send_response(status)
        for name, text in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


def metrics(engine: Engine) -> str:
    if not engine.mood.statistics:
        return ""
    running = engine.running + engine.mood.stale_gauge
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0"}} {running}\n'
        "# TYPE vllm:num_requests_waiting gauge\n"
        'vllm:num_requests_waiting{engine="0"} 0\n'
        "# TYPE vllm:iteration_tokens_total histogram\n"
        f'vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf"}} {engine.tokens}\n'
        f'vllm:iteration_tokens_total_count{{engine="0"}} {engine.tokens}\n'
        f'vllm:iteration_tokens_total_sum{{engine="0"}} {engine.tokens}\n'
        "# TYPE vllm:engine_sleep_state gauge\n"
        f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {int(not engine.mood.asleep)}\n'
        "# TYPE assay_poc_gate_closed gauge\n"
        f"assay_poc_gate_closed {float(engine.mood.gate)}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
