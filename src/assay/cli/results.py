"""What ``assay verify`` prints: the verdicts of many claims, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from assay.cli.console import stdout
from assay.cli.executor import verdicts_of
from assay.cli.exits import exit_code
from assay.scoring.channels import ChannelName
from assay.scoring.evalues import Accumulated
from assay.scoring.result import Verdict
from assay.store.result import VerifyResult


def summary(
    results: list[VerifyResult],
    executor: Accumulated | None = None,
    *,
    skipped: int,
    output: Path,
    store: str | None,
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    counts = Counter(result.verdict.verdict for result in results)
    code = exit_code(verdicts_of(results, executor))
    return {
        "verdict": {0: "pass", 2: "fail", 3: "inconclusive"}[code],
        "executor": None if executor is None else executor.model_dump(mode="json"),
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
                "profile": result.verdict.profile,
                "calibration": result.verdict.calibration,
                "p_value": result.verdict.p_value,
                "channels": [
                    channel.model_dump(mode="json") for channel in result.verdict.channels
                ],
                "causes": [
                    cause.model_dump(mode="json", exclude_none=True)
                    for cause in result.verdict.causes
                ],
                "tokens_needed": result.verdict.tokens_needed,
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
    for channel in CHANNELS:
        table.add_column(channel)
    table.add_column("why", overflow="fold")
    for name, result in zip(names or [r.claim.id for r in results], results, strict=True):
        verdict = result.verdict
        table.add_row(
            _plain(name),
            f"[{COLOURS[verdict.verdict]}]{verdict.verdict}[/]",
            str(verdict.positions),
            "" if verdict.mean_distance is None else f"{verdict.mean_distance:.4f}",
            "" if verdict.similarity is None else f"{verdict.similarity:.4f}",
            *_channels(verdict),
            _plain("; ".join(_why(verdict))),
        )
    console = stdout()
    console.print(table)
    counts = Counter(result.verdict.verdict for result in results)
    paths = sorted({result.replay.path for result in results if result.replay is not None})
    console.print(
        f"{counts['pass']} pass, {counts['fail']} fail, {counts['inconclusive']} inconclusive"
        + (f" ({' and '.join(paths)} path)" if paths else "")
    )


CHANNELS: tuple[ChannelName, ...] = ("value", "choice", "account")
MARKS = {
    "pass": "[green]pass[/]",
    "fail": "[bold red]FAIL[/]",
    "inconclusive": "[yellow]open[/]",
    "not_available": "[dim]n/a[/]",
}


def _channels(verdict: Verdict) -> list[str]:
    """One word for each of ``CHANNELS``; empty where nothing was replayed."""
    found = {channel.name: MARKS[channel.outcome] for channel in verdict.channels}
    return [found.get(name, "") for name in CHANNELS]


def _why(verdict: Verdict) -> list[str]:
    """The first reasons, the likeliest cause, and what would help."""
    words = [reason.message for reason in verdict.reasons[:2]]
    words += [cause.message for cause in verdict.causes[:1]]
    if verdict.tokens_needed is not None:
        words.append(f"about {verdict.tokens_needed} tokens would decide it")
    return words


def _plain(text: str) -> str:
    """Claims are hostile text: no console markup and no terminal control codes."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return printable.replace("[", r"\[")
