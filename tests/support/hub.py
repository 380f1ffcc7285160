"""A model hub for tests: the few calls huggingface_hub makes, for one small repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPO = "someone/tiny-model"
COMMIT = "1" * 40
FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 400,
}


class Hub:
    """``released``: weights are sent to their half and then wait for it. ``tokens``: seen."""

    def __init__(self) -> None:
        self.url = ""
        self.released = threading.Event()
        self.released.set()
        self.halfway = threading.Event()
        self.tokens: list[str | None] = []
        self.fetched: list[str] = []


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests' output is for tests."""

        def _answer(self, *, body: bool) -> None:
            path = urlsplit(self.path).path
            hub.tokens.append(self.headers.get("Authorization"))
            api = f"/api/models/{REPO}"
            if path in (f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                listed = [{"rfilename": n, "size": len(c)} for n, c in FILES.items()]
                self._json({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": listed})
            elif path.rstrip("/") in (f"{api}/tree/main", f"{api}/tree/{COMMIT}"):
                self._json(
                    [
                        {"type": "file", "path": n, "size": len(c), "oid": _etag(c)}
                        for n, c in FILES.items()
                    ]
                )
            elif path.startswith(f"/{REPO}/resolve/"):
                self._file(path.rsplit("/", 1)[1], body=body)
            else:
                self._refuse()

        def _refuse(self) -> None:
            content = b'{"error": "Repository not found"}'
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _json(self, value: object) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _file(self, name: str, *, body: bool) -> None:
            content = FILES[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{_etag(content)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if not body:
                return
            hub.fetched.append(name)
            half = len(content) // 2 if name.endswith(".safetensors") else len(content)
            try:
                self.wfile.write(content[:half])
                self.wfile.flush()
                if half < len(content):
                    hub.halfway.set()
                    hub.released.wait()
                    self.wfile.write(content[half:])
            except ConnectionError:
                self.close_connection = True  # the download was cancelled

    return Handler


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
