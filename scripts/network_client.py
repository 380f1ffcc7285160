"""Drive an ``assay node`` as a network does, and check every answer.

    python scripts/network_client.py --node http://127.0.0.1:8080 --model Qwen/Qwen3-0.6B \\
        --receiver 127.0.0.1:8090 -- --max-model-len 8192

What follows ``--`` are additional_args of ``/inference/up``. It starts and stops the node's model:
not for a node at work. Needs httpx, and assay for the receiver of callbacks, which it starts at
--receiver unless --received names the SQLite file of one that runs there already. --kill-backend
kills a backend in the middle of a second round, on a node of this machine.

One line a step. Exit code 1, and the step's name, on the first that fails; 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from network.artifacts import CheckError
from network.mining import Mining
from network.serving import Serving
from network.wire import Wire, receiver

Step = tuple[str, Callable[[], str]]


WRONG = (CheckError, LookupError, TypeError, ValueError, sqlite3.Error)
"""What a step raises: what it found, or that an answer lacks what the wire promises."""


def steps(options: argparse.Namespace, serving: Serving, mining: Mining) -> list[Step]:
    """What is done, in order."""
    served: list[Step] = [
        ("up", serving.up_async if options.start == "async" else serving.up),
        ("state", serving.state),
        ("versions", serving.versions),
        ("gpu devices", serving.devices),
        ("chat", serving.chat),
        ("chat streamed", serving.chat_streamed),
    ]
    if options.start_only:
        return served
    mined: list[Step] = [
        ("pow init", mining.init),
        ("gate", mining.gate),
        ("pow status", mining.status),
        ("callbacks", mining.callbacks),
        ("pow stop", mining.stop),
        ("chat again", serving.chat),
        ("nonces", mining.nonces),
        ("vectors", mining.vectors),
        ("validation", mining.validation),
        ("validated", mining.validated),
    ]
    killed: list[Step] = [
        ("degraded", mining.degraded),
        ("rejoin", mining.rejoin),
        ("none twice, none missing", mining.second_nonces),
    ]
    return [*served, *mined, *(killed if options.kill_backend else []), ("down", serving.down)]


def run(options: argparse.Namespace) -> int:
    """Every step; the exit code."""
    wire = Wire(options.node, options.control_key, options.inference_key, options.within)
    serving = Serving(options, wire)
    name = "receiver"
    with ExitStack() as stack:
        try:
            store = options.received or stack.enter_context(receiver(options.receiver))
            mining = stack.enter_context(Mining(options, wire, serving, store))
            for name, step in steps(options, serving, mining):
                print(f"ok    {name}: {step()}", flush=True)
        except WRONG as error:
            kind = "" if isinstance(error, CheckError) else f"{type(error).__name__}: "
            print(f"FAIL  {name}: {kind}{error}", flush=True)
            return 1
    print("every step passed", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--node", required=True, metavar="URL")
    parser.add_argument("--model", required=True, help="path or hub id, as the node knows it")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--receiver", required=True, metavar="HOST:PORT", help="for callbacks")
    parser.add_argument("--received", type=Path, metavar="FILE", help="of a receiver that runs")
    parser.add_argument(
        "--control-key",
        default=os.environ.get("ASSAY_NODE_CONTROL_KEY"),
        help="also by ASSAY_NODE_CONTROL_KEY, which no other user of this machine sees",
    )
    parser.add_argument(
        "--inference-key",
        default=os.environ.get("ASSAY_NODE_INFERENCE_KEY"),
        help="also by ASSAY_NODE_INFERENCE_KEY; the control key without it",
    )
    parser.add_argument("--backends", type=int, help="how many there must be")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--policy", choices=("exclusive", "share"), default="exclusive")
    parser.add_argument("--start", choices=("up", "async"), default="up")
    parser.add_argument("--start-only", action="store_true", help="chat, and leave the model up")
    parser.add_argument("--kill-backend", action="store_true")
    parser.add_argument("--within", type=float, default=2700.0, help="seconds for each wait")
    parser.add_argument("additional_args", nargs="*", help="flags of vllm serve, after --")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
