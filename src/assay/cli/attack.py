"""``assay attack``: claims and vectors as a cheating executor makes them, and what is detected."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli import exits
from assay.cli.console import print_json, stderr
from assay.cli.machine import engine
from assay.cli.options import Json
from assay.errors import SettingsError
from assay.scoring.constants import DEFAULT_FPR
from assay.settings import client_settings, process_environment

CLAIMS, TOKENS = 32, 64
"""As in ``assay.attacks.constants``, which would import the engine's client for every command."""


def attack(
    name: Annotated[
        str,
        typer.Argument(
            help="An attack, or `list` for their names, `table` for all of them against every"
            " channel, `compare` for other detectors on the same traces."
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File for the claims or vectors, or for the page of `table`. Default:"
            " NAME.jsonl, NAME.json, docs/detection.md.",
        ),
    ] = None,
    claims: Annotated[int, typer.Option(min=1, help="How many claims.")] = CLAIMS,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens a claim.")] = TOKENS,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Temperature the client asks for.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Server of the cheating executor. Default: one is started."),
    ] = None,
    real_server: Annotated[
        str | None,
        typer.Option(
            help="Server of the real model, for laundering and `compare`. Default: one is started."
        ),
    ] = None,
    fpr: Annotated[
        float, typer.Option(help="False-positive rate of the verdicts in `table`.")
    ] = DEFAULT_FPR,
    refill: Annotated[
        bool,
        typer.Option(
            "--refill/--no-refill",
            help="Have servers make what `table` lacks; without it only what is stored is shown.",
        ),
    ] = True,
    json_output: Json = False,
) -> None:
    """Cheat on purpose: make claims as a dishonest executor would, or see what gives it away.

    Needs an engine and the demo's model. The claims of an attack are for `assay verify`, the
    vectors of one whose name begins with `poc-` for `assay poc compare`. `table` keeps claims and
    replays in the cache folder, goes on where it stopped, and writes the page that shows attack by
    channel; its exit code is 0 when every target is met, else 2. The others conclude nothing:
    exit code 0, 1 on error.
    """
    if name == "list":
        _list(json_output)
        return
    if engine() is None and (name != "table" or refill):
        raise SettingsError("attacks need an engine: install vllm-assay[cpu,models]")
    if name == "table":
        raise typer.Exit(_table(output or Path("docs/detection.md"), fpr, refill, json_output))
    if name == "compare":
        _compare(real_server, json_output)
        return
    fields = {} if temperature is None else {"temperature": temperature}
    if name.startswith("poc-"):
        body = asyncio.run(_vectors(name, server))
        where = output or Path(f"{name}.json")
        where.write_text(json.dumps(body), encoding="utf-8")
        made = {"kind": "vectors", "made": len(body["artifacts"]), "output": str(where)}
    else:
        made = asyncio.run(
            _claims(
                name,
                output or Path(f"{name}.jsonl"),
                (claims, tokens, fields),
                server=server,
                real=real_server,
            )
        )
    if json_output:
        print_json(made)
    else:
        typer.echo(f"{made['made']} {made['kind']}: {made['output']}")


def _list(json_output: bool) -> None:
    from assay.attacks.catalogue import ATTACKS
    from assay.attacks.vectors import VECTOR_ATTACKS

    known = {one.name: one.what for one in ATTACKS} | {v.name: v.what for v in VECTOR_ATTACKS}
    if json_output:
        print_json(known)
        return
    for one, what in known.items():
        typer.echo(f"{one:26s} {what}")


def _say(text: str) -> None:
    stderr().print(text, markup=False)


async def _claims(
    name: str,
    output: Path,
    amount: tuple[int, int, dict[str, Any]],
    *,
    server: str | None,
    real: str | None,
) -> dict[str, Any]:
    from assay.attacks.catalogue import attack as find
    from assay.attacks.kit import produce_one
    from assay.attacks.produce import Amount
    from assay.attacks.store import open_kit
    from assay.claims.jsonl import write_claims

    wanted = find(name)
    with tempfile.TemporaryDirectory() as scratch:
        kit = open_kit(Path(scratch), process_environment(), client_settings(), _say)
        made = await produce_one(kit, wanted, Amount(*amount), server, real)
    return {"kind": "claims", "made": write_claims(output, made), "output": str(output)}


async def _vectors(name: str, server: str | None) -> dict[str, Any]:
    from assay.attacks.kit import produce_vectors
    from assay.attacks.store import open_kit
    from assay.attacks.vectors import vector_attack

    wanted = vector_attack(name)
    with tempfile.TemporaryDirectory() as scratch:
        kit = open_kit(Path(scratch), process_environment(), client_settings(), _say)
        return await produce_vectors(kit, wanted, server)


def _table(output: Path, fpr: float, refill: bool, json_output: bool) -> int:
    from assay.attacks.catalogue import ATTACKS
    from assay.attacks.kit import fill_everything
    from assay.attacks.page import render
    from assay.attacks.produce import Amount
    from assay.attacks.report import as_json, build_page
    from assay.attacks.store import cache_folder, open_kit

    kit = open_kit(cache_folder(), process_environment(), client_settings(), _say)
    if refill:
        asyncio.run(fill_everything(kit, ATTACKS, Amount()))
    page = build_page(kit, fpr)
    output.write_text(render(page), encoding="utf-8")
    missed = [one.target.text for one in page.outcomes if not one.met]
    if json_output:
        print_json(as_json(page) | {"output": str(output), "missed": missed})
    else:
        for one in missed:
            _say(f"target missed: {one}")
        typer.echo(f"page: {output}")
    return exits.FAIL if missed else exits.PASS


def _compare(real: str | None, json_output: bool) -> None:
    from assay.attacks.compare import compare_all
    from assay.attacks.store import cache_folder, open_kit

    kit = open_kit(cache_folder(), process_environment(), client_settings(), _say)
    found = asyncio.run(compare_all(kit, real=real))
    if json_output:
        print_json(found)
        return
    names = list(found)
    typer.echo(f"{'attack':26s}" + "".join(f"{name:>22s}" for name in names))
    for one in dict.fromkeys(a for column in found.values() for a in column):
        cells = (found[name].get(one) for name in names)
        shown = "".join(f"{'-' if v is None else f'{v:.3f}':>22s}" for v in cells)
        typer.echo(f"{one:26s}{shown}")
