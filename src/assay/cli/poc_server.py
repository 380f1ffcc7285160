"""``assay poc generate`` and ``assay poc validate``: proof of compute against a running server."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from assay.cli.console import print_json
from assay.cli.exits import exit_code
from assay.cli.options import ApiKey, Json, Server
from assay.cli.poc_profile import (
    ProfileOptions,
    Unfitting,
    fallback_note,
    judge,
    load_profile,
    print_calibrated,
)
from assay.errors import ClaimError
from assay.poc.artifact_file import ArtifactSet, Vector, artifact_set, read_artifact_file
from assay.poc.constants import K_DIM
from assay.poc.profile import Profile
from assay.poc.settings import NETWORK, StatTest
from assay.replay.client import HttpEngineClient
from assay.replay.pow import job_body, parse_nonces, run_job, served_model
from assay.settings import client_settings


def generate(
    *,
    server: Server,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the vectors.")],
    block_hash: Annotated[str, typer.Option(help="Hash of the block that sets the challenge.")],
    public_key: Annotated[str, typer.Option(help="Key of the node whose vectors these are.")],
    nonces: Annotated[str, typer.Option(help="Nonces, such as 0-31,40.")] = "0-31",
    seq_len: Annotated[int, typer.Option(min=1, help="Positions a nonce.")] = 256,
    k_dim: Annotated[int, typer.Option(min=1, help="Numbers a vector.")] = K_DIM,
    stronger: Annotated[
        bool, typer.Option("--stronger", help="Seed the inputs with 256 bits.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Served model name. Default: the server's first.")
    ] = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Have a server compute vectors and write them to a file.

    The file can be compared (``assay poc compare``) or judged by another server (``assay poc
    validate``). Concludes nothing: exit code 0 when every nonce gave a vector, 3 when some were
    not finite, 1 on error.
    """
    wanted = parse_nonces(nonces)

    async def ask() -> dict[str, Any]:
        async with HttpEngineClient(server, client_settings(), api_key=api_key) as client:
            name = model or await served_model(client)
            identity = {
                "block_hash": block_hash,
                "public_key": public_key,
                "poc_stronger_rng": stronger,
            }
            params = {"model": name, "seq_len": seq_len, "k_dim": k_dim}
            answer = await run_job(client, job_body(identity, params, wanted))
            return {**identity, **params, **answer}

    answer = asyncio.run(ask())
    kept = {k: v for k, v in answer.items() if k not in ("status", "request_id")}
    output.write_text(json.dumps(kept), encoding="utf-8")
    failed = answer["failed_nonces"]
    if as_json:
        print_json({"output": str(output), "n": len(answer["artifacts"]), "failed_nonces": failed})
    else:
        typer.echo(f"{len(answer['artifacts'])} vectors: {output}")
        if failed:
            typer.echo(f"{len(failed)} nonces gave no finite vector: {failed[:10]}")
    raise typer.Exit(exit_code(["inconclusive" if failed else "pass"]))


def validate(
    claimed: Annotated[Path, typer.Argument(help="File with the vectors a node claims.")],
    *,
    server: Server,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Positions a nonce, where the file does not say.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model name on this server. Default: its first.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Profile of `assay poc calibrate`, or JSON with dist_threshold, p_mismatch, alpha."
        ),
    ] = None,
    claimed_hardware: Annotated[
        str | None, typer.Option(help="Hardware of the claim, where its file names none.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware of this server, where it names none.")
    ] = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Have your own server recompute the vectors of a file and judge them.

    Exit code 0 pass, 2 fail, 3 inconclusive, 1 error. Without --profile, or where the profile has
    no engines like this one, the network's defaults are used, which are not calibrated for your
    model and engine.
    """
    claim = read_artifact_file(claimed)
    known = NETWORK if profile is None else load_profile(profile)

    async def ask(test: StatTest | None) -> dict[str, Any]:
        async with HttpEngineClient(server, client_settings(), api_key=api_key) as client:
            name = model or await served_model(client)
            answer = await run_job(client, validation_body(claim, test, name, seq_len))
            return {"model": name, **answer}

    note: dict[str, Any] = {"settings_source": "defaults" if profile is None else "profile"}
    if isinstance(known, Profile):
        # The vectors themselves: the statistics need them, and the server knows no profile.
        answer = asyncio.run(ask(None))
        options = ProfileOptions(claimed_hardware, hardware, answer["model"])
        found = judge(claim, recomputed_set(claim, answer, seq_len), known, options)
        if not isinstance(found, Unfitting):
            print_calibrated(found, as_json)
            raise typer.Exit(exit_code([found.verdict]))
        note, known = fallback_note(found), NETWORK
    answer = asyncio.run(ask(known))
    if as_json:
        print_json({**answer, **note})
    else:
        typer.echo(f"verdict: {answer['verdict']}")
        for reason in answer.get("reasons", ()):
            typer.echo(f"  {reason['code']}: {reason['message']}")
        typer.echo(
            f"nonces: {answer['n_total']} compared, {answer['n_excluded']} excluded, "
            f"{answer['n_mismatch']} mismatches; p = {answer['p_value']}"
        )
        if "no_fitting_profile" in note:
            typer.echo(f"note: {note['no_fitting_profile']}")
    raise typer.Exit(exit_code([answer["verdict"]]))


def validation_body(
    claim: ArtifactSet, test: StatTest | None, model: str, seq_len: int | None
) -> dict[str, Any]:
    """The job that judges a file's vectors by ``test``, or, without one, only recomputes them."""
    challenge = claim.challenge
    length = challenge.seq_len or seq_len
    if length is None:
        raise ClaimError(f"{claim.name} does not say its seq_len; give --seq-len", field="seq_len")
    identity = {
        "block_hash": challenge.block_hash,
        "public_key": challenge.public_key,
        "poc_stronger_rng": bool(challenge.poc_stronger_rng),
    }
    params = {"model": model, "seq_len": length, "k_dim": challenge.k}
    body = job_body(identity, params, list(claim.vectors))
    if test is None:
        return body
    return {
        **body,
        "validation": {
            "artifacts": [
                {"nonce": nonce, "vector_b64": as_claimed(vector)}
                for nonce, vector in claim.vectors.items()
            ],
            "profile": dict(claim.profile),
        },
        "stat_test": {
            "dist_threshold": test.dist_threshold,
            "p_mismatch": test.p_mismatch,
            "fraud_threshold": test.alpha,
        },
    }


def recomputed_set(claim: ArtifactSet, answer: dict[str, Any], seq_len: int | None) -> ArtifactSet:
    """What the server computed, under the claim's own challenge.

    Nonces that gave the server no finite vector are left out, so they count as not compared.
    """
    challenge = claim.challenge
    body = {
        "block_hash": challenge.block_hash,
        "public_key": challenge.public_key,
        "k_dim": challenge.k,
        "artifacts": answer["artifacts"],
        "profile": answer.get("profile") or {},
    }
    found = artifact_set(body, name="this server")
    known = replace(challenge, seq_len=challenge.seq_len or seq_len)
    return replace(found, challenge=known)


def as_claimed(vector: Vector) -> str:
    """A claimed vector on the wire, NaN and all: the server counts such a nonce as a mismatch."""
    with np.errstate(over="ignore", invalid="ignore"):
        return base64.b64encode(vector.astype("<f2").tobytes()).decode("ascii")
