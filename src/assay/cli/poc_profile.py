"""``assay poc calibrate``, and the verdict by a profile for ``compare`` and ``validate``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import print_json
from assay.cli.options import Json
from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, read_artifact_file
from assay.poc.calibrate import calibrate
from assay.poc.calibrated import judge_by_profile
from assay.poc.calibrated_result import CalibratedVerdict
from assay.poc.constants import PROFILE_ALPHA
from assay.poc.profile import (
    Profile,
    hardware_of,
    is_vector_profile,
    key_of,
    merge,
    parse_profile,
    width_of,
    write_profile,
)
from assay.poc.settings import StatTest, read_profile


@dataclass(frozen=True)
class ProfileOptions:
    """What the command line says where files do not: names of hardware, of the model, its width."""

    claimed_hardware: str | None = None
    hardware: str | None = None
    model: str | None = None
    hidden_size: int | None = None
    alpha: float | None = None
    sampled: bool = False


@dataclass(frozen=True)
class Unfitting:
    """``reason``: why the published thresholds stand in for the profile."""

    reason: str


def calibrate_command(
    files: Annotated[
        list[Path], typer.Argument(help="Vectors of honest engines, from `assay poc generate`.")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    hardware: Annotated[
        list[str] | None,
        typer.Option(help="Hardware of each file in their order, where the files name none."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, where the files name none.")] = None,
    hidden_size: Annotated[
        int | None,
        typer.Option(help="The model's hidden_size: adds the statistic without the shared mean."),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Profile to add the new records to; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a profile for vectors from files of honest engines.

    Every two files of one challenge and one configuration become a record: how far apart the two
    engines are. Profiles of other pairs, made elsewhere, are merged with --merge. Concludes
    nothing; exit code 0, 1 on error.
    """
    sets = [read_artifact_file(path) for path in files]
    if hardware is not None and len(hardware) != len(files):
        raise SettingsError(f"--hardware: {len(hardware)} given for {len(files)} files; one each")
    names = [hardware_of(one) for one in sets] if hardware is None else list(hardware)
    for path, name in zip(files, names, strict=True):
        if not name:
            raise SettingsError(
                f"{path}: names no hardware; give --hardware once a file, in their order"
            )
    made = calibrate(
        sets,
        [key_of(one, model) for one in sets],
        [name or "" for name in names],
        hidden_size,
    )
    known = [_read(path) for path in add or ()]
    profile = merge([*known, made])
    write_profile(profile, output)
    said = {
        "output": str(output),
        "profile": profile.digest,
        "records": len(profile.records),
        "new": len(made.records),
        "identical": sum(not record.informative for record in made.records),
    }
    if as_json:
        print_json(said)
        return
    typer.echo(f"{len(made.records)} pairs recorded, {len(profile.records)} in {output}")
    for record in made.records:
        bulk = record.statistics["bulk"]
        typer.echo(
            f"  {record.hardware[0]} / {record.hardware[1]}: {record.n} nonces, "
            + (f"bulk {bulk.value:.3f}" if record.informative else "equal bit by bit, no null")
        )
    if all(not record.informative for record in profile.records):
        typer.echo("note: no record shows engines that differ; this profile judges nothing")


def load_profile(path: Path) -> Profile | StatTest:
    """A profile for vectors, or the three published thresholds. Raises SettingsError."""
    body = _parsed(path)
    return parse_profile(body, str(path)) if is_vector_profile(body) else read_profile(path)


def judge(
    claimed: ArtifactSet, computed: ArtifactSet, profile: Profile, options: ProfileOptions
) -> CalibratedVerdict | Unfitting:
    """The verdict by ``profile``, or why it says nothing of this claim."""
    model = claimed.challenge.model or options.model
    key = key_of(computed, model)
    hardware = (
        options.claimed_hardware or hardware_of(claimed),
        options.hardware or hardware_of(computed),
    )
    found = judge_by_profile(
        claimed,
        computed,
        profile,
        key=key,
        hardware=hardware,
        hidden_size=options.hidden_size or width_of(computed) or width_of(claimed),
        alpha=PROFILE_ALPHA if options.alpha is None else options.alpha,
        sampled=options.sampled,
    )
    if found is None:
        return Unfitting(
            f"the profile has no honest engines of {key.words} that differ; published thresholds "
            "stand in, which are not calibrated for this model and engine"
        )
    return found


def print_calibrated(found: CalibratedVerdict, as_json: bool) -> None:
    """The verdict for a person, or as JSON."""
    if as_json:
        print_json({**found.as_json(), "settings_source": "profile"})
        return
    typer.echo(f"verdict: {found.verdict}")
    for reason in found.reasons:
        typer.echo(f"  {reason.code}: {reason.message}")
    typer.echo(
        f"nonces: {found.n_compared} compared, {found.n_excluded} excluded, "
        f"{found.n_invalid} invalid"
    )
    for result in found.statistics:
        typer.echo(f"{result.name}: {result.value:.4f}, p = {result.p_value:.3g} ({result.null})")
    for name, reason_text in (found.missing or {}).items():
        typer.echo(f"{name}: not measured, {reason_text}")
    if found.cheating_share is not None:
        typer.echo(
            f"share of nonces from elsewhere: at least {found.cheating_share:.0%} (estimate)"
        )
    typer.echo(f"profile {found.profile}, by {found.basis}")


def fallback_note(unfitting: Unfitting) -> dict[str, Any]:
    """What the JSON of a verdict by published thresholds says of the profile that did not fit."""
    return {
        "settings_source": "published thresholds",
        "no_fitting_profile": unfitting.reason,
    }


def _read(path: Path) -> Profile:
    body = _parsed(path)
    if not is_vector_profile(body):
        raise SettingsError(f"profile {path}: not a profile of `assay poc calibrate`")
    return parse_profile(body, str(path))


def _parsed(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"profile {path}: cannot be read: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise SettingsError(f"profile {path}: not JSON") from error
