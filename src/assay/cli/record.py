"""``assay record``: ask a server and keep its answers as claims."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from assay.claims.claim import Claim
from assay.claims.jsonl import write_claims
from assay.cli import exits
from assay.cli.console import print_json, progress, stderr
from assay.cli.options import ApiKey, Concurrency, Json, Mode, Server, request_mode
from assay.demo.settings import CacheSettings
from assay.errors import ClaimError, SettingsError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.prompts import PromptLine, read_prompts
from assay.replay.record import RecordOptions, record_all
from assay.replay.tapes import named_tape
from assay.replay.weights import weights_digest
from assay.settings import client_settings


def record(
    *,
    server: Server,
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts",
            help="One prompt a line: an OpenAI request body, an object with messages or prompt,"
            " or plain text.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Claims file to write (JSON lines).")
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Served model. Default: the server's first.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer. Default: 128.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0, help="Default: the model's own, else 1."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of every request that has none of its own.")
    ] = None,
    beacon: Annotated[
        str | None,
        typer.Option(
            "--beacon",
            help="Public random value, such as a block hash: every request without a seed of its own"
            " gets the one that follows from it (docs/choice.md).",
        ),
    ] = None,
    tape: Annotated[
        str | None,
        typer.Option(
            "--tape",
            help="How the server draws, where it does not say it itself (it has no plugin): v2, v1"
            " (on an accelerator) or v1-cpu.",
        ),
    ] = None,
    model_files: Annotated[
        Path | None,
        typer.Option(
            "--model-files",
            help="Local folder of the served weights: their SHA-256 goes into the claims.",
        ),
    ] = None,
    top_logprobs: Annotated[
        int | None,
        typer.Option("--top-logprobs", min=0, max=64, help="Alternatives a token. Default: 5."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Ask for streamed answers.")] = False,
    logprobs_mode: Mode = None,
    concurrency: Concurrency = None,
    api_key: ApiKey = None,
    json_output: Json = False,
) -> None:
    """Ask a server and keep its answers as claims.

    Works with any vLLM server. Answers without token ids cannot become claims and are named; the
    exit code is then 3, or 1 when there is no claim at all.
    """
    settings = client_settings()
    if seed is not None and beacon is not None:
        raise SettingsError(
            "--seed and --beacon: give one of them, both choose every request's seed"
        )
    if tape is not None:
        named_tape(tape, None)  # a wrong name is refused before anything is asked
    lines = read_prompts(prompts)
    options = RecordOptions(
        model=model,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        beacon=beacon,
        top_logprobs=top_logprobs,
        stream=stream,
        logprobs_mode=request_mode(logprobs_mode),
        concurrency=concurrency or settings.concurrency,
        retries=settings.retries,
    )

    digest = None if model_files is None else weights_digest(model_files, CacheSettings().root)

    async def work() -> tuple[ServerIdentity, list[Claim], list[ClaimError]]:
        async with HttpEngineClient(server, settings, api_key=api_key) as client:
            identity = await identify(client, retries=settings.retries)
            identity = identity.model_copy(update={"model_digest": digest})
            told = None if tape is None else named_tape(tape, identity.vllm_version)
            chosen = replace(options, tape=told)
            return identity, *await _record(client, identity, lines, chosen)

    identity, claims, refused = asyncio.run(work())
    for error in refused:
        stderr().print(str(error), markup=False)
    if not claims:
        raise ClaimError(f"none of {len(lines)} answers could become a claim", code="no_evidence")
    write_claims(output, claims)
    _print(output, identity, claims, refused, as_json=json_output)
    raise typer.Exit(exits.INCONCLUSIVE if refused else exits.PASS)


async def _record(
    client: HttpEngineClient,
    identity: ServerIdentity,
    lines: list[PromptLine],
    options: RecordOptions,
) -> tuple[list[Claim], list[ClaimError]]:
    claims: list[Claim] = []
    refused: list[ClaimError] = []
    with progress("recording", len(lines)) as bar:
        async with aclosing(record_all(client, identity, lines, options)) as answers:
            async for answer in answers:
                if isinstance(answer, ClaimError):
                    refused.append(answer)
                else:
                    claims.append(answer)
                bar.advance(bar.task_ids[0])
    return claims, refused


def _print(
    output: Path,
    identity: ServerIdentity,
    claims: list[Claim],
    refused: list[ClaimError],
    *,
    as_json: bool,
) -> None:
    tokens = sum(len(claim.output_ids or ()) for claim in claims)
    warnings = sorted({warning for claim in claims for warning in claim.warnings})
    if as_json:
        print_json(
            {
                "output": str(output),
                "claims": len(claims),
                "tokens": tokens,
                "refused": [str(error) for error in refused],
                "warnings": warnings,
                "engine": identity.engine().model_dump(mode="json"),
            }
        )
        return
    for warning in warnings:
        stderr().print(f"note: {warning}", markup=False)
    typer.echo(
        f"{len(claims)} claims, {tokens} tokens, from {identity.model or 'an unnamed model'}"
        f" (vLLM {identity.vllm_version or 'of unknown version'}) -> {output}"
    )
