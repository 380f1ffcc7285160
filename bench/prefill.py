"""What verifying costs beside generating: both replay paths against the claims of one run.

    python bench/prefill.py [--claims 32] [--tokens 256] [--concurrency 8] [--server URL]

Starts one V1 server with the plugin and the real 135M model, its allocator set as `assay serve` sets
it on a CPU (or uses the server given), records claims
from it, and replays and judges them on the decode path, on the prefill path by the plugin's route,
and on the prefill path by the stock route of a plain server, all with the same requests in flight.
Prints seconds of verification / seconds of generation, and the client's own share: the answers are
kept and read, put together and judged once more without a server (processor time). Other work on
the machine adds noise; the parts follow each other closely, so a ratio suffers less than seconds.
Targets (issue 4): prefill <= 0.4, client <= 0.05 s a claim. Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.claims.claim import Claim
from assay.errors import ReplayError
from assay.replay.client import EngineClient, EngineReply, HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, collect
from assay.replay.request import PathChoice, ReplayOptions
from assay.replay.verify import VerifyOptions, verify_all, verify_one
from assay.settings import ClientSettings
from assay.store.result import VerifyResult

ROOT = Path(__file__).resolve().parent.parent
RATIO_TARGET = 0.4
CLIENT_TARGET_S = 0.05
PASSES = 3
SUBJECTS = ("a river", "bread", "the moon", "a bridge", "glass", "an orchestra", "salt", "a port")
TASKS = ("Explain", "Tell a story about", "List what to know about", "Describe the making of")


class Kept:
    """An engine client that keeps each answer, and gives the same ones again without a server."""

    def __init__(self, inner: EngineClient) -> None:
        self._inner = inner
        self._answers: dict[str, EngineReply] = {}
        self.silent = False

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> EngineReply:
        key = f"{method} {path} {body}"
        if not self.silent:
            self._answers[key] = await self._inner.send(method, path, body)
        elif key not in self._answers:
            # What got no answer before gets none again; the verdict says so both times.
            raise ReplayError(
                f"{path} had not been answered", blame="validator", code="validator_unreachable"
            )
        return self._answers[key]

    async def send_stream(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[EngineReply, list[str]]:
        raise NotImplementedError("nothing here streams")


@asynccontextmanager
async def server(url: str | None) -> AsyncIterator[str]:
    if url is not None:
        yield url
        return
    sys.path.insert(0, str(ROOT))
    from tests.support import specs
    from tests.support.server import Server

    from assay.cli.presets import environment_for
    from assay.demo.models import smollm2
    from assay.demo.settings import CacheSettings

    model = smollm2(CacheSettings().assay_cache_dir or ROOT / ".cache" / "assay")
    spec = specs.v1(model, plugin=True, max_model_len=specs.REAL_MODEL_LENGTH)
    spec = replace(spec, env={**spec.env, **environment_for("cpu", spec.env)})
    with tempfile.TemporaryDirectory() as logs, Server(spec, Path(logs) / "server.log") as running:
        print(f"server ready after {running.started_in:.0f} s", flush=True)
        yield running.url


def prompts(count: int) -> list[PromptLine]:
    texts = [
        f"{TASKS[i % len(TASKS)]} {SUBJECTS[i // len(TASKS) % len(SUBJECTS)]}, version {i}."
        for i in range(count)
    ]
    return [
        PromptLine(
            i,
            "chat",
            {
                "messages": [{"role": "user", "content": text}],
                "ignore_eos": True,
                "temperature": 1.0,
                "seed": i,
                "logprobs_mode": "raw_logprobs",
            },
        )
        for i, text in enumerate(texts)
    ]


async def verified(
    client: EngineClient, identity: ServerIdentity, claims: Sequence[Claim], options: VerifyOptions
) -> tuple[float, list[VerifyResult]]:
    results: list[VerifyResult] = []
    started = time.perf_counter()
    await verify_all(client, identity, claims, options, results.append)
    return time.perf_counter() - started, results


async def client_share(
    kept: Kept, identity: ServerIdentity, claims: Sequence[Claim], options: VerifyOptions
) -> float:
    """Processor seconds a claim of everything but the engine and the network; the least of
    ``PASSES``, since a processor shared with others works slower."""
    kept.silent = True
    passes = []
    for _ in range(PASSES):
        started = time.process_time()
        for claim in claims:
            await verify_one(kept, identity, claim, options)
        passes.append((time.process_time() - started) / len(claims))
    kept.silent = False
    return min(passes)


async def measure(url: str, claims_wanted: int, tokens: int, concurrency: int) -> bool:
    async with HttpEngineClient(url, ClientSettings(timeout_s=3600)) as http:
        identity = await identify(http)
        stock = identity.model_copy(update={"plugin_version": None, "max_logprobs": None})
        warm = RecordOptions(max_tokens=4, concurrency=1)
        await collect(http, identity, prompts(1), warm)
        started = time.perf_counter()
        claims = await collect(
            http,
            identity,
            prompts(claims_wanted),
            RecordOptions(max_tokens=tokens, concurrency=concurrency),
        )
        generation = time.perf_counter() - started
        total = sum(len(claim.output_ids or ()) for claim in claims)
        print(
            f"{len(claims)} claims, {total} tokens, {concurrency} in flight, runner"
            f" {identity.runner}, {identity.dtype}: generated in {generation:.1f} s"
            f" ({total / generation:.0f} tokens/s)"
        )
        print("path                     seconds   ratio   client s/claim   verdicts", flush=True)
        reached = True
        kinds: list[tuple[str, PathChoice, ServerIdentity]] = [
            ("prefill, plugin's route", "prefill", identity),
            ("prefill, stock route", "prefill", stock),
            ("decode", "decode", identity),
        ]
        for name, path, seen_as in kinds:
            kept = Kept(http)
            options = VerifyOptions(
                replay=ReplayOptions(path=path), concurrency=concurrency, retries=0
            )
            seconds, results = await verified(kept, seen_as, claims, options)
            share = await client_share(kept, seen_as, claims, options)
            verdicts = [result.verdict.verdict for result in results]
            counts = " ".join(f"{v} {verdicts.count(v)}" for v in sorted(set(verdicts)))
            ratio = seconds / generation
            print(f"{name:24} {seconds:7.1f}   {ratio:.3f}   {share:14.4f}   {counts}", flush=True)
            if path == "prefill":
                reached &= ratio <= RATIO_TARGET and share <= CLIENT_TARGET_S
        print(
            f"targets: prefill <= {RATIO_TARGET}, client <= {CLIENT_TARGET_S} s a claim:"
            f" {'reached' if reached else 'missed'}"
        )
        return reached


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--claims", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--server", help="address of a running server with the plugin")
    arguments = parser.parse_args()
    async with server(arguments.server) as url:
        reached = await measure(url, arguments.claims, arguments.tokens, arguments.concurrency)
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
