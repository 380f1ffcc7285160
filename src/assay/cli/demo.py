"""``assay demo``: the whole main job on this machine, in a few minutes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from assay.cli import exits
from assay.cli.console import print_json, stderr
from assay.cli.machine import engine, hardware
from assay.cli.options import Json
from assay.cli.results import print_results, summary
from assay.demo.prompts import demo_names
from assay.errors import SettingsError
from assay.settings import client_settings, process_environment


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for claims, results and the report.")
    ] = Path("demo-out"),
    json_output: Json = False,
) -> None:
    """Tell an honest server from a cheating one, on this machine and without a network.

    Starts SmolLM2-135M twice on loopback, once with int4-rounded weights, asks both twelve
    questions, verifies all answers and writes a report; then judges proof-of-compute vectors of
    both and chats with a server that mines. Exit code: 0 when the honest server passes and the
    cheat is caught, 2 when not.
    """
    if engine() is None:
        raise SettingsError(
            "the demo needs an engine: install vllm-assay[cpu,models] or run make demo"
        )
    from assay.demo.run import run_demo

    started = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        stderr().print(f"[{time.monotonic() - started:4.0f} s] {text}", markup=False)

    outcome = asyncio.run(
        run_demo(
            output,
            client_settings(),
            process_environment(),
            on_cpu=hardware() == "cpu",
            say=say,
        )
    )
    results = [*outcome.honest, *outcome.cheat]
    problems = outcome.problems
    if json_output:
        print_json(
            summary(results, skipped=0, output=outcome.report, store=str(output / "assay.db"))
            | {"verdict": "fail" if problems else "pass", "problems": problems}
            | {"poc": {name: body["verdict"] for name, body in outcome.poc.verdicts.items()}}
        )
    else:
        print_results(list(outcome.honest), "The honest server", demo_names())
        typer.echo("")
        print_results(list(outcome.cheat), "The cheating server", demo_names())
        typer.echo("")
        typer.echo("Proof of compute")
        for line in outcome.poc.lines():
            typer.echo(f"  {line}")
        typer.echo("")
        for problem in problems:
            stderr().print(f"NOT AS IT MUST BE: {problem}", markup=False)
        typer.echo(f"report: {outcome.report.resolve()}")
    raise typer.Exit(exits.FAIL if problems else exits.PASS)
