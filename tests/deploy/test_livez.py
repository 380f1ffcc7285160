"""The health check of the container, run as the container runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

LIVEZ = Path(__file__).resolve().parents[2] / "deploy" / "livez.py"


@contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing: the test looks at the check's own words."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/livez"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LIVEZ), url],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (404, 1), (204, 1)])
def test_only_200_is_alive(status: int, code: int) -> None:
    with answering(status) as url:
        assert check(url).returncode == code


def test_nobody_there_is_not_alive() -> None:
    with answering(200) as url:
        pass
    done = check(url)
    assert done.returncode == 1
    assert url in done.stderr


def test_a_proxy_of_the_environment_is_not_asked() -> None:
    with answering(200) as url:
        assert check(url, http_proxy="http://127.0.0.1:9").returncode == 0
