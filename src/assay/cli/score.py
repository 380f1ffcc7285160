"""``assay score``: two answers in files, judged without any server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from assay.claims.account import Known
from assay.claims.claim import Claim, LogprobsMode, Replay
from assay.claims.jsonl import load_claim
from assay.claims.read_json import read_replay, read_response
from assay.claims.read_stream import read_replay_stream, read_stream
from assay.claims.strict_json import NOT_JSON, parse_json
from assay.cli.console import print_json
from assay.cli.exits import ERROR, exit_code
from assay.cli.options import Json, request_mode
from assay.errors import AssayError, ClaimError
from assay.scoring.verdict import (
    KindChoice,
    Verdict,
    judge,
    verdict_on_unreadable_claim,
    verdict_on_unreadable_replay,
)

_OUTCOMES = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "open",
    "not_available": "not available",
}
OWN_FORM = frozenset({"schema_version", "endpoint", "prompt"})
"""Fields that only a claim in this project's own form has."""


def score(
    claim_file: Annotated[
        Path,
        typer.Argument(
            metavar="CLAIM", help="The executor's answer: JSON, event stream, or recorded claim."
        ),
    ],
    replay_file: Annotated[
        Path, typer.Argument(metavar="REPLAY", help="The validator's answer: JSON or event stream.")
    ],
    *,
    request_file: Annotated[
        Path | None,
        typer.Option("--request", help="The request body the executor answered (JSON)."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="Similarity that a pass must exceed, from 0 to below 1."),
    ] = None,
    enforced: Annotated[
        bool | None,
        typer.Option(
            "--enforced/--natural",
            help="The replay was forced to the claimed tokens, or is a free generation."
            " Default: forced if it says so or has the same tokens.",
        ),
    ] = None,
    claim_mode: Annotated[
        str | None,
        typer.Option("--claim-mode", help="Mode of the claim: raw_logprobs or processed_logprobs."),
    ] = None,
    replay_mode: Annotated[
        str | None, typer.Option("--replay-mode", help="Mode of the replay, as --claim-mode.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, help="Ids from here on are impossible.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Judge one answer by another of the same prompt, without a server.

    Exit code: 0 pass, 2 fail, 3 inconclusive, 1 when a file cannot be read at all.
    """
    kind: KindChoice = "auto" if enforced is None else "enforced" if enforced else "natural"
    verdict = score_files(
        claim_file,
        replay_file,
        request=None if request_file is None else _request(request_file),
        threshold=threshold,
        kind=kind,
        claim_mode=request_mode(claim_mode),
        replay_mode=request_mode(replay_mode),
        vocab_size=vocab_size,
    )
    if json_output:
        print_json(verdict.to_json())
    else:
        typer.echo(describe(verdict))
    raise typer.Exit(exit_code([verdict.verdict]))


def score_files(
    claim_file: Path,
    replay_file: Path,
    *,
    request: dict[str, Any] | None = None,
    threshold: float | None = None,
    kind: KindChoice = "auto",
    claim_mode: LogprobsMode | None = None,
    replay_mode: LogprobsMode | None = None,
    vocab_size: int | None = None,
) -> Verdict:
    """The verdict on two files. A claim that breaks the protocol gets a verdict with the reason;
    a file that is missing or no JSON raises ClaimError, and so does an answer with more than one
    choice: nothing is known about an executor then."""
    claim_body, replay_body = _load(claim_file), _load(replay_file)
    try:
        claim = _claim(claim_body, request)
    except ClaimError as error:
        if error.code in (NOT_JSON, "several_choices", "unknown_version"):
            raise ClaimError(f"{claim_file.name}: {error}", code=error.code) from error
        return verdict_on_unreadable_claim(error)
    try:
        replay = _replay(replay_body)
    except ClaimError as error:
        if error.code in (NOT_JSON, "several_choices"):
            raise ClaimError(f"{replay_file.name}: {error}", code=error.code) from error
        return verdict_on_unreadable_replay(error)
    if claim_mode is not None:
        claim = claim.model_copy(update={"logprobs_mode": claim_mode})
    if replay_mode is not None:
        replay = replay.model_copy(update={"logprobs_mode": replay_mode})
    return judge(claim, replay, threshold=threshold, kind=kind, known=Known(vocab_size=vocab_size))


def _load(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ClaimError(f"cannot read {file.name}: {error.strerror}", code=NOT_JSON) from error
    except UnicodeDecodeError as error:
        raise ClaimError(f"{file.name} is not UTF-8 text", code=NOT_JSON) from error


def _is_stream(text: str) -> bool:
    return text.lstrip().startswith(("data:", ":", "event:"))


def _claim(text: str, request: dict[str, Any] | None) -> Claim:
    if _is_stream(text):
        return read_stream(text, request)
    value = parse_json(text)
    if isinstance(value, dict) and value.keys() >= OWN_FORM:
        return load_claim(text)
    return read_response(value, request)


def _replay(text: str) -> Replay:
    return read_replay_stream(text, "file") if _is_stream(text) else read_replay(text, "file")


def _request(file: Path) -> dict[str, Any]:
    try:
        value = parse_json(_load(file))
    except ClaimError as error:
        raise ClaimError(f"{file.name}: {error}", code=NOT_JSON) from error
    if not isinstance(value, dict):
        raise ClaimError(f"{file.name}: a request body is a JSON object", code=NOT_JSON)
    return cast(dict[str, Any], value)


def describe(verdict: Verdict) -> str:
    """The verdict for people, one fact a line."""
    lines = [f"verdict: {verdict.verdict}"]
    for reason in verdict.reasons:
        where = "" if reason.position is None else f" (position {reason.position})"
        lines.append(f"  {reason.code}{where}: {reason.message}")
    lines.append(f"positions compared: {verdict.positions}")
    if verdict.similarity is not None and verdict.similarity_v1 is not None:
        lines.append(
            f"similarity: {verdict.similarity:.6f} (first generation {verdict.similarity_v1:.6f})"
        )
    if verdict.top1_agreement is not None:
        lines.append(f"top-1 agreement: {verdict.top1_agreement:.4f}")
    if verdict.mean_distance is not None and verdict.pass_limit is not None:
        lines.append(
            f"mean distance: {verdict.mean_distance:.6f} over {verdict.informative_positions}"
            f" informative positions; pass limit {verdict.pass_limit:.4f}, fail limit"
            f" {verdict.fail_limit:.4f} ({verdict.limits_source})"
        )
    if verdict.mean_entropy is not None:
        lines.append(
            f"entropy: {verdict.mean_entropy:.3f} nats a position; {verdict.mean_near_best:.2f}"
            f" alternatives within 1 nat of the best{' (flat)' if verdict.flat else ''}"
        )
    for channel in verdict.channels:
        lines.append(f"{channel.name} channel: {_OUTCOMES[channel.outcome]} ({channel.code})")
        lines.append(f"  {channel.reason}")
    lines += [f"cause: {cause.message}" for cause in verdict.causes]
    if verdict.tokens_needed is not None:
        lines.append(f"tokens needed: about {verdict.tokens_needed}, if they go on like these")
    if verdict.p_value is not None and verdict.fpr is not None:
        lines.append(f"p-value: {verdict.p_value:.3g} (false-positive rate {verdict.fpr:g})")
    if verdict.calibration is not None:
        lines.append(f"calibration: {verdict.calibration}")
    lines += [f"note: {note}" for note in verdict.notes]
    return "\n".join(_plain(line) for line in lines)


def _plain(text: str) -> str:
    """Answers are hostile text: no terminal control codes."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')


def main() -> None:
    """``python -m assay.cli.score``: the command alone."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(score)
    try:
        app()
    except AssayError as error:
        typer.echo(f"assay: {error}", err=True)
        raise SystemExit(ERROR) from error


if __name__ == "__main__":
    main()
