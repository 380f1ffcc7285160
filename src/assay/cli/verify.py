"""``assay verify``: replay claims on the validator's own server and judge them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from assay.claims.claim import Claim
from assay.claims.jsonl import read_claims
from assay.cli.console import print_json, progress, stderr
from assay.cli.executor import executor_evidence, print_executor, verdicts_of
from assay.cli.exits import exit_code
from assay.cli.options import (
    AllowUnknown,
    ApiKey,
    Concurrency,
    Fpr,
    Json,
    Mode,
    Profiles,
    Require,
    Server,
    path_choice,
    request_mode,
    required_channels,
)
from assay.cli.results import print_results, summary
from assay.errors import ClaimError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.request import DEFAULT_PREFILL_TOP, ReplayOptions
from assay.replay.verify import VerifyOptions, require_validator, result_key, verify_all
from assay.scoring.combine import check_fpr
from assay.scoring.constants import DEFAULT_FPR
from assay.scoring.profile import read_profile
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
    beacon: Annotated[
        str | None,
        typer.Option(
            "--beacon",
            help="Public random value that every seed must follow from; a seed that does not was"
            " chosen, and its claim fails (docs/choice.md). Implies --require choice.",
        ),
    ] = None,
    profile: Profiles = None,
    fpr: Fpr = DEFAULT_FPR,
    allow_unknown: AllowUnknown = False,
    require: Require = None,
    logprobs_mode: Mode = None,
    concurrency: Concurrency = None,
    api_key: ApiKey = None,
    json_output: Json = False,
) -> None:
    """Replay claims on your own server and judge them.

    With --profile, verdicts state their false-positive rate, and the evidence of all claims is
    added up: an executor can fail whose claims do not, each by itself.

    Exit code: 0 all pass, 2 any (or the executor) fails, 3 any inconclusive or nothing verified, 1
    error. Running the command again goes on where it stopped; claims already decided are not
    replayed.
    """
    check_fpr(fpr)
    profiles = tuple(read_profile(file) for file in profile or ())
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
        profiles=profiles,
        fpr=fpr,
        allow_unknown=allow_unknown,
        beacon=beacon,
        require=required_channels(require),
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
    executor = executor_evidence(results, profiles, fpr, allow_unknown=allow_unknown)
    if json_output:
        print_json(
            summary(results, executor, skipped=skipped, output=where, store=database or None)
        )
    else:
        print_results(results)
        print_executor(results, executor)
        if skipped:
            stderr().print(f"{skipped} claims were already decided and not replayed", markup=False)
        typer.echo(f"results: {where}")
    raise typer.Exit(exit_code(verdicts_of(results, executor)))


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
