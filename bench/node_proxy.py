"""What the node's proxy adds to a stream: direct and through it, in turns, 64 streams at once.

    python bench/node_proxy.py [--streams 64] [--events 50] [--pause-ms 20] [--rounds 6]

A server process streams small events as an engine does, one every 20 ms; the node runs in a second
process, the client in this one. Printed are the median and the 99th percentile, over all streams,
of the time to the first event and of the whole stream, with the ratio through / direct. With two
cores for three processes the figures hold the machine's load too; the ratio is of the same run.
The last line is the node's processor time per stream (connecting, all events, the end), which is
the proxy's own cost whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

HOST = "127.0.0.1"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": " word"}}]}\n\n'


async def stream_events(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, events: int, pause: float
) -> None:
    """Answer every request on the connection with a stream."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            for _ in range(events):
                writer.write(f"{len(EVENT):x}\r\n".encode() + EVENT + b"\r\n")
                await asyncio.sleep(pause)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def run_backend(port: int, events: int, pause: float) -> None:
    async def main() -> None:
        server = await asyncio.start_server(
            lambda r, w: stream_events(r, w, events, pause), HOST, port, backlog=1024
        )
        await server.serve_forever()

    asyncio.run(main())


def run_node(port: int, backend_port: int, folder: str) -> None:
    """The real app and its real server settings, with one backend that is simply there."""
    import uvicorn

    from assay.node.app import create_app
    from assay.node.backend import Backend, BackendState
    from assay.node.config_file import node_config
    from assay.node.run import _faster_loop, _settings, listen

    config = node_config(None, {"port": port, "proxy.port": 0, "store.folder": folder}, {})

    async def main() -> None:
        app = create_app(config)
        async with app.router.lifespan_context(app):
            backend = Backend(port=backend_port)
            app.state.node.pool.replace([backend])
            app.state.node.pool.move(backend, BackendState.READY)
            listener = listen(HOST, port)
            await uvicorn.Server(_settings(app, config)).serve(sockets=[listener])

    with asyncio.Runner(loop_factory=_faster_loop()) as runner:
        runner.run(main())


async def one_stream(port: int) -> tuple[float, float]:
    """Seconds to the first event and to the end of one stream, over a connection of its own."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    await reader.readuntil(b"data: ")
    first = time.perf_counter() - begun
    await reader.readuntil(b"\r\n0\r\n\r\n")
    whole = time.perf_counter() - begun
    writer.close()
    return first, whole


async def one_round(port: int, streams: int) -> list[tuple[float, float]]:
    return list(await asyncio.gather(*(one_stream(port) for _ in range(streams))))


async def listening(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit(f"nothing listens on port {port} after a minute")


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(direct: int, through: int, streams: int, rounds: int, node_pid: int) -> None:
    await asyncio.gather(listening(direct), listening(through))
    seen: dict[int, list[tuple[float, float]]] = {direct: [], through: []}
    busy = 0.0
    for number in range(rounds + 1):
        for port in (direct, through) if number % 2 else (through, direct):
            before = processor_seconds(node_pid)
            got = await one_round(port, streams)
            if number:  # the first round opens connections and warms caches
                seen[port] += got
                if port == through:
                    busy += processor_seconds(node_pid) - before
    for index, what in enumerate(("first event", "whole stream")):
        figures = {}
        for port, times in seen.items():
            cuts = statistics.quantiles([t[index] for t in times], n=100)
            figures[port] = (statistics.median(t[index] for t in times), cuts[98])
        for rank, name in enumerate(("p50", "p99")):
            before, after = figures[direct][rank], figures[through][rank]
            print(
                f"{what} {name}: direct {before * 1e3:.1f} ms, through the node"
                f" {after * 1e3:.1f} ms, ratio {after / before:.3f}"
            )
    print(f"node's processor time per stream: {busy / len(seen[through]) * 1e3:.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--pause-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            ports.append(probe.getsockname()[1])
    backend, node = ports
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=run_backend, args=(backend, options.events, options.pause_ms / 1e3)
            ),
            context.Process(target=run_node, args=(node, backend, str(Path(folder) / "node"))),
        ]
        for process in processes:
            process.start()
        try:
            pid = processes[1].pid
            assert pid is not None
            asyncio.run(measure(backend, node, options.streams, options.rounds, pid))
        finally:
            for process in processes:
                process.kill()
                process.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
