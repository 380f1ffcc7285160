"""``assay verify``: replay claims on the validator's own server and judge them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from assay.claims.claim import Claim
from assay.claims.jsonl import read_claims
from assay.cli.console import print_json, progress, stderr, stdout
from assay.cli.exits import exit_code
from assay.cli.options import (
    ApiKey,
    Concurrency,
    Json,
    Mode,
    Server,
    path_choice,
    request_mode,
)
from assay.errors import ClaimError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.request import DEFAULT_PREFILL_TOP, ReplayOptions
from assay.replay.verify import VerifyOptions, require_validator, result_key, verify_all
from assay.settings import ClientSettings, client_settings
from assay.store.database import Store
from assay.store.result import VerifyResult
from assay.store.results_file import ResultsFile, read_results


def verify(
    claims_file: Annotated[Path, typer.Argument(metavar="CLAIMS", help="Claims (JSON lines).")],
    *,
    server: Server,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results file. Default: CLAIMS with .results.jsonl."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="SQLite file or database URL. Default: assay.db beside the results; '' for none.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", help="Name of the executor in reports. Default: the file's name."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", min=0, max=1, help="Similarity that a pass must exceed."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse claims whose prompt would have to be guessed."),
    ] = False,
    allow_text: Annotated[
        bool,
        typer.Option("--allow-text", help="Tokenise claims again that give no token ids."),
    ] = False,
    as_model: Annotated[
        str | None,
        typer.Option("--as-model", help="Served name of the claims' model on this server."),
    ] = None,
    path: Annotated[
        str,
        typer.Option(
            "--path",
            help="decode (every token forced; needs the plugin), prefill (one forward pass; any"
            " vLLM server) or auto (prefill where the claim allows it).",
        ),
    ] = "decode",
    prefill_top: Annotated[
        int,
        typer.Option(
            "--prefill-top",
            min=1,
            help="Alternatives a position to ask for on the prefill path, where the claim has fewer.",
        ),
    ] = DEFAULT_PREFILL_TOP,
    logprobs_mode: Mode = None,
    concurrency: Concurrency = None,
    api_key: ApiKey = None,
    json_output: Json = False,
) -> None:
    """Replay claims on your own server and judge them.

    Exit code: 0 all pass, 2 any fails, 3 any inconclusive or nothing verified, 1 error. Running
    the command again goes on where it stopped; claims already decided are not replayed.
    """
    settings = client_settings()
    try:
        claims = read_claims(claims_file)
    except OSError as error:
        raise ClaimError(f"cannot read claims from {claims_file}: {error.strerror}") from error
    where = output or claims_file.with_suffix(".results.jsonl")
    options = VerifyOptions(
        replay=ReplayOptions(
            strict=strict,
            allow_text=allow_text,
            logprobs_mode=request_mode(logprobs_mode),
            as_model=as_model,
            path=path_choice(path),
            prefill_top=prefill_top,
        ),
        threshold=threshold,
        label=claims_file.stem if label is None else label,
        concurrency=concurrency or settings.concurrency,
        retries=settings.retries,
    )
    database = str(where.parent / "assay.db") if store is None else store
    results, skipped = asyncio.run(
        run_verification(
            server,
            claims,
            options,
            settings=settings,
            output=where,
            store=database or None,
            api_key=api_key,
        )
    )
    if json_output:
        print_json(summary(results, skipped=skipped, output=where, store=database or None))
    else:
        print_results(results)
        if skipped:
            stderr().print(f"{skipped} claims were already decided and not replayed", markup=False)
        typer.echo(f"results: {where}")
    raise typer.Exit(exit_code(result.verdict.verdict for result in results))


async def run_verification(
    server: str,
    claims: list[Claim],
    options: VerifyOptions,
    *,
    settings: ClientSettings,
    output: Path,
    store: str | None,
    api_key: str | None = None,
) -> tuple[list[VerifyResult], int]:
    """Verify ``claims`` and keep the results in ``output`` and in ``store``.

    Returns one result for each claim, in the order of the claims, and how many of them had been
    decided before.
    """
    async with HttpEngineClient(server, settings, api_key=api_key) as client:
        identity = await identify(client, retries=settings.retries)
        require_validator(identity, client.server, path=options.replay.path)
        with ResultsFile(output) as file:
            if file.cut_bytes:
                stderr().print(
                    f"{output}: a half-written line of {file.cut_bytes} bytes was dropped",
                    markup=False,
                )
            return await _verify_into(client, identity, claims, options, file=file, store=store)


async def _verify_into(
    client: HttpEngineClient,
    identity: ServerIdentity,
    claims: list[Claim],
    options: VerifyOptions,
    *,
    file: ResultsFile,
    store: str | None,
) -> tuple[list[VerifyResult], int]:
    wanted = {result_key(claim, identity, options): claim for claim in claims}
    decided = {
        result.key: result
        for result in read_results(file.path)
        if result.label == options.label and result.settled and result.key in wanted
    }
    before = frozenset(decided)
    tally: Counter[str] = Counter(result.verdict.verdict for result in decided.values())
    database = Store(store) if store else None
    try:
        with progress("verifying", len(wanted)) as bar:
            task = bar.task_ids[0]
            bar.update(task, completed=len(before), tally=_tally(tally))

            def keep(result: VerifyResult) -> None:
                file.append(result)
                if database is not None:
                    database.add(result)
                decided[result.key] = result
                tally[result.verdict.verdict] += 1
                bar.update(task, advance=1, tally=_tally(tally))

            remaining = list(wanted.values())
            await verify_all(client, identity, remaining, options, keep, done=before)
    finally:
        if database is not None:
            database.close()
    return [decided[key] for key in wanted], len(before)


def _tally(tally: Counter[str]) -> str:
    return "  ".join(f"{name} {count}" for name, count in sorted(tally.items()))


def summary(
    results: list[VerifyResult], *, skipped: int, output: Path, store: str | None
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    counts = Counter(result.verdict.verdict for result in results)
    return {
        "verdict": {0: "pass", 2: "fail", 3: "inconclusive"}[exit_code(counts)],
        "counts": {name: counts[name] for name in ("pass", "fail", "inconclusive")},
        "claims": len(results),
        "decided_before": skipped,
        "output": str(output),
        "store": store,
        "results": [
            {
                "claim": result.claim.id,
                "label": result.label,
                "verdict": result.verdict.verdict,
                "path": None if result.replay is None else result.replay.path,
                "reasons": [
                    reason.model_dump(mode="json", exclude_none=True)
                    for reason in result.verdict.reasons
                ],
                "positions": result.verdict.positions,
                "similarity": result.verdict.similarity,
                "similarity_v1": result.verdict.similarity_v1,
                "top1_agreement": result.verdict.top1_agreement,
                "mean_distance": result.verdict.mean_distance,
                "blame": result.blame,
                "failure": result.failure,
                "notes": [note.model_dump() for note in result.notes],
            }
            for result in results
        ],
    }


COLOURS = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}


def print_results(
    results: list[VerifyResult], title: str | None = None, names: Sequence[str] | None = None
) -> None:
    """A table of verdicts with the first reasons of each, and one line that counts them.

    ``names`` replaces the ids of the claims, in the same order.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("claim", overflow="ellipsis", max_width=24)
    table.add_column("verdict")
    table.add_column("tokens", justify="right")
    table.add_column("distance", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column("why", overflow="fold")
    for name, result in zip(names or [r.claim.id for r in results], results, strict=True):
        verdict = result.verdict
        table.add_row(
            _plain(name),
            f"[{COLOURS[verdict.verdict]}]{verdict.verdict}[/]",
            str(verdict.positions),
            "" if verdict.mean_distance is None else f"{verdict.mean_distance:.4f}",
            "" if verdict.similarity is None else f"{verdict.similarity:.4f}",
            _plain("; ".join(reason.message for reason in verdict.reasons[:2])),
        )
    console = stdout()
    console.print(table)
    counts = Counter(result.verdict.verdict for result in results)
    console.print(
        f"{counts['pass']} pass, {counts['fail']} fail, {counts['inconclusive']} inconclusive"
    )


def _plain(text: str) -> str:
    """Claims are hostile text: no console markup and no terminal control codes."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return printable.replace("[", r"\[")
