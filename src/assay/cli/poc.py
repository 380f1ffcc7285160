"""``assay poc``: proof-of-compute vectors, on files and against a server."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from assay.cli.console import print_json, stdout
from assay.cli.exits import exit_code
from assay.cli.options import Json
from assay.cli.poc_profile import (
    ProfileOptions,
    Unfitting,
    calibrate_command,
    fallback_note,
    judge,
    load_profile,
    print_calibrated,
)
from assay.cli.poc_server import generate, validate
from assay.errors import SettingsError
from assay.poc import table as labelled
from assay.poc.artifact_file import read_artifact_file
from assay.poc.compare import Comparison, compare
from assay.poc.constants import PROFILE_ALPHA
from assay.poc.profile import Profile
from assay.poc.settings import NETWORK, StatTest

app = typer.Typer(name="poc", help="Proof of compute: vectors of nonces.", no_args_is_help=True)

DEFAULT_THRESHOLDS = (0.4, 0.75)
PIPED_WIDTH = 120


app.command("generate")(generate)
app.command("validate")(validate)
app.command("calibrate")(calibrate_command)


@app.callback()
def poc() -> None:
    """Proof of compute: vectors of nonces."""


@app.command("compare")
def compare_command(
    claimed: Annotated[Path, typer.Argument(help="File with the vectors a node claims.")],
    computed: Annotated[Path, typer.Argument(help="File with the vectors recomputed.")],
    *,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Profile of `assay poc calibrate`, or JSON with dist_threshold, p_mismatch, alpha."
        ),
    ] = None,
    dist_threshold: Annotated[
        float | None, typer.Option(help=f"L2 distance. Default {NETWORK.dist_threshold}.")
    ] = None,
    p_mismatch: Annotated[
        float | None,
        typer.Option(help=f"Tolerated rate of mismatches. Default {NETWORK.p_mismatch}."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help=f"A p-value below it is a fail. Default {NETWORK.alpha}; with a profile of "
            f"`assay poc calibrate` {PROFILE_ALPHA}."
        ),
    ] = None,
    hidden_size: Annotated[
        int | None,
        typer.Option(help="The model's hidden_size: adds the zero-knowledge baseline."),
    ] = None,
    claimed_hardware: Annotated[
        str | None, typer.Option(help="Hardware of the claim, where its file names none.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware of the recomputation, where its file names none.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model, for the profile, where the files name none.")
    ] = None,
    sampled: Annotated[
        bool,
        typer.Option("--sampled", help="The recomputed file is a sample of the claimed one."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge the vectors of one file by those of another.

    Both files are for one challenge (block_hash, public_key, seq_len, k, model). Exit code 0
    pass, 2 fail, 3 inconclusive, 1 error.
    """

    claim, recomputed = read_artifact_file(claimed), read_artifact_file(computed)
    unfitting = None
    known = None if profile is None else load_profile(profile)
    if isinstance(known, Profile):
        _only_alpha(dist_threshold, p_mismatch)
        options = ProfileOptions(claimed_hardware, hardware, model, hidden_size, alpha, sampled)
        found = judge(claim, recomputed, known, options)
        if not isinstance(found, Unfitting):
            print_calibrated(found, as_json)
            raise typer.Exit(exit_code([found.verdict]))
        unfitting, test, source = found, NETWORK, "published thresholds"
    else:
        test, source = _stat_test(known, dist_threshold, p_mismatch, alpha)
    result = compare(claim, recomputed, test, hidden_size=hidden_size, sampled=sampled)
    if as_json:
        note = {"settings_source": source} if unfitting is None else fallback_note(unfitting)
        print_json({**result.as_json(), **note})
    else:
        _print_comparison(result, source)
        if unfitting is not None:
            typer.echo(f"note: {unfitting.reason}")
    raise typer.Exit(exit_code([result.verdict.verdict]))


@app.command("table")
def table_command(
    folder: Annotated[Path, typer.Argument(help=f"Folder with {labelled.LABELS}.")],
    dist_threshold: Annotated[
        list[float] | None,
        typer.Option(help="Threshold for the mismatch rates; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Distances and mismatch rates of all same-challenge pairs of labelled sets.

    Also the zero-knowledge baseline of each set: how often vectors guessed from other nonces,
    with no model run, stay within the thresholds. Concludes nothing; exit code 0, 1 on error.
    """

    thresholds = tuple(dist_threshold or DEFAULT_THRESHOLDS)
    for threshold in thresholds:
        StatTest(dist_threshold=threshold)
    sets = labelled.read_labelled_sets(folder)
    found = labelled.pairs(sets, thresholds)
    if as_json:
        print_json(_table_json(sets, found, thresholds))
    else:
        _print_table(sets, found, thresholds)


def _only_alpha(dist_threshold: float | None, p_mismatch: float | None) -> None:
    if dist_threshold is not None or p_mismatch is not None:
        raise SettingsError(
            "--profile holds distances and no threshold; of the settings only --alpha goes with it"
        )


def _stat_test(
    profile: StatTest | None,
    dist_threshold: float | None,
    p_mismatch: float | None,
    alpha: float | None,
) -> tuple[StatTest, str]:
    flags = {"dist_threshold": dist_threshold, "p_mismatch": p_mismatch, "alpha": alpha}
    given = {name: value for name, value in flags.items() if value is not None}
    if profile is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SettingsError(f"--profile and {names} both say what to judge by; give one")
        return profile, "profile"
    return StatTest(**given), "options" if len(given) == len(flags) else "defaults"


def _print_comparison(result: Comparison, source: str) -> None:
    verdict = result.verdict
    typer.echo(f"verdict: {verdict.verdict}")
    for reason in verdict.reasons:
        typer.echo(f"  {reason.code}: {reason.message}")
    typer.echo(
        f"nonces: {verdict.n_compared} compared, {verdict.n_excluded} excluded, "
        f"{verdict.n_mismatch} mismatches"
    )
    if verdict.mean_distance is not None:
        typer.echo(f"distance: mean {verdict.mean_distance:.4f}, max {verdict.max_distance:.4f}")
    if result.baseline is not None:
        rate = result.baseline.pass_rate(verdict.settings.dist_threshold)
        typer.echo(
            f"zero-knowledge baseline: mean {result.baseline.mean_distance:.4f}, "
            f"{rate:.1%} within the threshold"
        )
    if result.unexplained is not None:
        typer.echo(
            f"unexplained share: {result.unexplained.share:.4f} "
            f"+- {result.unexplained.standard_error:.4f} (0 equal, 1 guessed without the model)"
        )
    if source == "defaults":
        typer.echo(
            "note: network defaults stand in for what was not given; they are not calibrated "
            "for this model and engine"
        )


def _table_json(
    sets: list[labelled.LabelledSet], found: list[labelled.Pair], thresholds: tuple[float, ...]
) -> dict[str, Any]:
    baselines = []
    for one in sets:
        guess = labelled.baseline(one)
        if guess is not None:
            baselines.append(
                {
                    "path": one.labels["path"],
                    "n": guess.n,
                    "mean_distance": guess.mean_distance,
                    "pass_rates": [guess.pass_rate(threshold) for threshold in thresholds],
                }
            )
    return {
        "thresholds": thresholds,
        "pairs": [pair.as_json() for pair in found],
        "zero_knowledge": baselines,
    }


def _print_table(
    sets: list[labelled.LabelledSet], found: list[labelled.Pair], thresholds: tuple[float, ...]
) -> None:
    console = stdout()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    groups: dict[str, list[labelled.Pair]] = defaultdict(list)
    for pair in found:
        groups[pair.first.labels["group"]].append(pair)
    for group, members in groups.items():
        console.print(group, soft_wrap=True, markup=False)
        table = Table(box=None)
        for name in ("a", "b", "kind"):
            table.add_column(name, overflow="fold")
        for name in ("n", "mean", *(f">{t:g}" for t in thresholds), "unexplained"):
            table.add_column(name, justify="right")
        for pair in members:
            table.add_row(
                pair.first.title,
                pair.second.title,
                pair.kind,
                str(pair.counts.n_compared),
                _cell(pair.counts.mean_distance),
                *(f"{rate:.1%}" for rate in pair.rates),
                _cell(None if pair.unexplained is None else pair.unexplained.share),
            )
        console.print(table)
        for kind in sorted({pair.kind for pair in members}):
            console.print(_summary(kind, [pair for pair in members if pair.kind == kind]))
        console.print()
    console.print("zero-knowledge baseline: vectors guessed from other nonces, no model run")
    table = Table(box=None)
    table.add_column("set", overflow="fold")
    for name in ("n", "mean", *(f"<={t:g}" for t in thresholds)):
        table.add_column(name, justify="right")
    for one in sets:
        guess = labelled.baseline(one)
        if guess is not None:
            rates = (f"{guess.pass_rate(threshold):.1%}" for threshold in thresholds)
            table.add_row(
                f"{one.labels['model']} {one.title}",
                str(guess.n),
                _cell(guess.mean_distance),
                *rates,
            )
    console.print(table)


def _summary(kind: str, members: list[labelled.Pair]) -> str:
    text = f" {kind}: {len(members)} pairs"
    means = [p.counts.mean_distance for p in members if p.counts.mean_distance is not None]
    shares = [p.unexplained.share for p in members if p.unexplained is not None]
    for name, values in (("mean", means), ("unexplained", shares)):
        if values:
            text += f", {name} {min(values):.4f} to {max(values):.4f}"
    return text


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
