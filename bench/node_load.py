"""A node under mixed load with its backends killed at random: no wrong token, no stuck request.

    python bench/node_load.py --minutes 30 [--kill-every 45] [--seed N] [--policy share|exclusive]

Starts ``assay node`` over two real backends (a tiny model, on the CPU) and asks it for greedy chat,
streamed and not, for replays of claims and for rounds of proof of compute, all at once, while
servers are killed with SIGKILL. Every token, verdict and vector is held against what the node said
before the load. Prints a line a minute, then all figures and ``verdict:``; exit code 1 with the
reasons when anything was wrong, went missing, got stuck or grew.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CALLBACK_INTERVAL_S = 1
BACK_WITHIN_S = 1200.0
"""Seconds a killed backend may take: half a minute where cores are free, and minutes where not."""


def say(words: str) -> None:
    print(words, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--kill-every", type=float, default=45, help="mean seconds between kills")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--policy", choices=("share", "exclusive"), default="share")
    parser.add_argument("--no-poc", action="store_true", help="chat and replays alone")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.node.process import NodeProcess
    from tests.support.tiny import tiny_llama

    from assay.demo.settings import CacheSettings

    say(f"seed {options.seed}, {options.minutes:g} minutes, policy {options.policy}")
    model = tiny_llama(CacheSettings().assay_cache_dir or ROOT / ".cache" / "assay")
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder))
        node.config.write_text(configuration(node, Path(folder), options.policy))
        with node:
            return asyncio.run(load(node, model, options))


def configuration(node: object, folder: Path, policy: str) -> str:
    """That of the tests' node, with a limit of restarts that no run reaches."""
    from tests.node.conftest import READY_WITHIN, real_toml

    made = real_toml(node, folder)
    for old, new in (
        ("restart_limit = 50\n", "restart_limit = 100000\n"),
        (f"cold_start_s = {READY_WITHIN}\n", f"cold_start_s = {BACK_WITHIN_S}\n"),
    ):
        assert old in made, f"tests/node/conftest.py no longer says {old!r}"
        made = made.replace(old, new)
    return made + f"POC_POLICY = '{policy}'\n[callbacks]\ninterval_s = {CALLBACK_INTERVAL_S}\n"


async def load(node: object, model: Path, options: argparse.Namespace) -> int:
    import httpx
    from tests.node.conftest import up_body
    from tests.node.helpers import HOST
    from tests.node.load.run import LoadOptions, prepared

    base_url = f"http://{HOST}:{node.port}"
    async with httpx.AsyncClient(base_url=base_url, timeout=BACK_WITHIN_S, trust_env=False) as http:
        answer = await http.post("/api/v1/inference/up", json=up_body(model))
        if answer.status_code != 200:
            say(f"verdict: FAILED: no model came up: {answer.text}")
            return 1
        asked = LoadOptions(
            seed=options.seed,
            kill_every_s=options.kill_every,
            back_within=BACK_WITHIN_S,
            closes_gate=options.policy == "exclusive",
            poc=not options.no_poc,
        )
        async with prepared(base_url, node.pid, asked) as run:
            say("the answers before the load are known; the load begins")
            end = time.monotonic() + 60 * options.minutes
            told = 0

            def over() -> bool:
                nonlocal told
                for words in run.ledger.violations[told:]:
                    say(f"  WRONG: {words}")
                told = len(run.ledger.violations)
                return time.monotonic() >= end

            await run.run(over, say, 60)
            say(run.line())
            for line in run.figures():
                say(f"  {line}")
        await http.post("/api/v1/inference/down")
        run.watch.judge_processes()
    for words in run.ledger.violations:
        say(f"  WRONG: {words}")
    say(f"verdict: {'FAILED' if run.ledger.violations else 'all was right'}")
    return int(bool(run.ledger.violations))


if __name__ == "__main__":
    sys.exit(main())
