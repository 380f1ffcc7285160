"""``assay doctor``: what is here, and what would make an honest node fail."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from assay.cli import exits
from assay.cli.checks import Check, local_checks
from assay.cli.console import print_json, stdout
from assay.cli.options import ApiKey, Json
from assay.cli.server_checks import server_checks
from assay.errors import ReplayError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.settings import client_settings, process_environment

MARKS = {"pass": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[bold red]FAIL[/]"}


def doctor(
    server: Annotated[
        str | None, typer.Option("--server", help="Also look at a running server.")
    ] = None,
    api_key: ApiKey = None,
    json_output: Json = False,
) -> None:
    """Check this environment, and a running server, for what would make an honest node fail.

    Works without an engine. Exit code: 0 nothing fails (warnings allowed), 2 a check fails.
    """
    checks = local_checks(process_environment())
    if server is not None:
        checks += _check_server(server, api_key)
    failed = any(check.state == "fail" for check in checks)
    if json_output:
        print_json(
            {
                "verdict": "fail" if failed else "pass",
                "checks": [asdict(check) for check in checks],
            }
        )
    else:
        _print(checks)
    raise typer.Exit(exits.FAIL if failed else exits.PASS)


def _check_server(server: str, api_key: str | None) -> list[Check]:
    settings = client_settings()

    async def ask() -> ServerIdentity:
        async with HttpEngineClient(server, settings, api_key=api_key) as client:
            return await identify(client)

    try:
        return server_checks(asyncio.run(ask()))
    except ReplayError as error:
        return [Check("server", "fail", str(error), "start it, or correct --server and --api-key")]


def _print(checks: list[Check]) -> None:
    console = stdout()
    width = max(len(check.name) for check in checks)
    for check in checks:
        console.print(f"{MARKS[check.state]}  {check.name:<{width}}  ", end="")
        console.print(check.message, markup=False)
        if check.action and check.state != "pass":
            console.print(f"{'':<{width + 8}}-> {check.action}", markup=False)
    counts = [f"{sum(check.state == state for check in checks)} {state}" for state in MARKS]
    console.print(", ".join(counts))
