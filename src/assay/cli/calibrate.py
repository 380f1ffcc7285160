"""``assay calibrate``: a profile from honest runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from assay.cli.console import print_json, stderr, stdout
from assay.cli.options import Json
from assay.errors import SettingsError
from assay.scoring.calibrate import HonestRun, make_profile, warnings
from assay.scoring.constants import MIN_CALIBRATION_CLAIMS
from assay.scoring.measure import STATISTICS, measure
from assay.scoring.nulls import Null
from assay.scoring.profile import Profile, read_profile
from assay.scoring.samples import table
from assay.store.result import claim_digest
from assay.store.results_file import read_results


def calibrate(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...", help="Results of `assay verify` on claims known to be honest."
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile file to write.")],
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Profile to add to, other hardware say; may be repeated."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            metavar="NAME=RESULTS",
            help="Results of claims that are known to cheat, for `assay power`; may be repeated.",
        ),
    ] = None,
    pool: Annotated[
        bool,
        typer.Option(
            "--pool",
            help="Take all files for one run. Default: each file is a run of its own (another batch"
            " composition or load, say), and a claim that is honest under one of them is honest.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the profile. Default: the file's name.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Make a profile from honest runs: what honest claims look like, so that verdicts can state a
    false-positive rate.

    Every file and set of conditions (both sides' engine, runner, dtype, hardware, ...) needs at
    least 20 claims; 500, in several batch compositions, are better. Results that show another prompt, mode,
    token or count than the claim, or no replay, are refused. Exit code 0, 1 on error.
    """
    attacks = [_named(text) for text in attack or ()]
    runs = [
        HonestRun(
            claim_digest(result.claim)[:16],
            result.claim,
            result.replay,
            result.verdict,
            run="" if pool else path.stem.removesuffix(".results"),
        )
        for path in results
        for result in read_results(path)
    ]
    profile = make_profile(name or output.stem, runs)
    for path in merge or ():
        profile = profile.merged(read_profile(path))
    for known, path in attacks:
        cheating = [(r.claim, r.replay) for r in read_results(path) if r.replay is not None]
        measured = [measure(claim, replay, kind="enforced") for claim, replay in cheating]
        profile = profile.with_attack(known, measured)
    profile.write(output)
    notes = warnings(profile)
    if json_output:
        print_json(describe(profile) | {"output": str(output), "warnings": notes})
        return
    print_profile(profile)
    for note in notes:
        stderr().print(f"warning: {note}", markup=False)
    typer.echo(f"profile: {output}")


def _named(text: str) -> tuple[str, Path]:
    name, separator, file = text.partition("=")
    if not name or not separator or not file:
        raise SettingsError(
            f"--attack {text}: expected NAME=RESULTS, such as int8=int8.results.jsonl"
        )
    return name, Path(file)


def describe(profile: Profile) -> dict[str, Any]:
    """What a profile holds, as JSON."""
    return {
        "id": profile.id,
        "path": profile.path,
        "mode": profile.mode,
        "claims": profile.claims,
        "positions": profile.positions,
        "groups": [
            {
                "run": group.run,
                "key": group.key.model_dump(mode="json", exclude_none=True),
                "claims": len(group.records),
                "positions": group.positions,
            }
            for group in profile.groups
        ],
        "statistics": {
            statistic: _statistic(profile, null) for statistic, null in profile.nulls.items()
        },
        "attacks": {attack: len(records) for attack, records in sorted(profile.attacks.items())},
    }


def _statistic(profile: Profile, null: Null) -> dict[str, Any]:
    scores = np.concatenate(
        [table(group.records, null.statistic)[0][:, -1] for group in profile.groups]
    )
    guessed, _ = table(profile.baseline, null.statistic)
    longest = int(min(sample.lengths.max() for sample in null.samples))
    return {
        "claims": null.claims,
        "positions": null.positions,
        "usable": null.large_enough,
        "median": float(np.median(scores)),
        "p95": float(np.quantile(scores, 0.95)),
        "largest": float(scores.max()),
        "zero_knowledge": float(guessed[:, -1].mean()) if len(guessed) else None,
        "tail": null.method,
        "lower_tail": null.why_silent_below(longest) or "conformal",
    }


def print_profile(profile: Profile) -> None:
    """The same for people."""
    console = stdout()
    console.print(
        f"{profile.id}: {profile.claims} claims, {profile.positions} positions, path {profile.path},"
        f" {profile.mode or 'mode unknown'}",
        markup=False,
    )
    for group in profile.groups:
        run = f" ({group.run})" if group.run else ""
        console.print(f"  {group.key.label()}{run}: {len(group.records)} claims", markup=False)
    rows = Table(box=None, pad_edge=False)
    rows.add_column("statistic")
    for column in ("claims", "positions", "median", "95 %", "largest", "without the model"):
        rows.add_column(column, justify="right")
    rows.add_column("p-values", overflow="fold")
    for statistic, null in profile.nulls.items():
        held = _statistic(profile, null)
        guessed = held["zero_knowledge"]
        rows.add_row(
            statistic,
            str(held["claims"]),
            str(held["positions"]),
            *(f"{held[key]:.3g}" for key in ("median", "p95", "largest")),
            "" if guessed is None else f"{guessed:.3g}",
            held["tail"] if held["usable"] else f"none: under {MIN_CALIBRATION_CLAIMS} claims",
        )
    console.print(rows)
    missing = [statistic for statistic in STATISTICS if statistic not in profile.nulls]
    if missing:
        console.print(f"not measured in these runs: {', '.join(missing)}", markup=False)
    if profile.attacks:
        known = ", ".join(f"{k} ({len(v)})" for k, v in sorted(profile.attacks.items()))
        console.print(f"attacks: {known}", markup=False)
