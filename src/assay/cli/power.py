"""``assay power``: how much evidence an attack needs before a profile catches it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import print_json
from assay.cli.options import Json
from assay.scoring.constants import DEFAULT_FPR, POWER_WANTED
from assay.scoring.power import Power
from assay.scoring.power import power as compute
from assay.scoring.profile import read_profile


def power(
    *,
    profile: Annotated[
        Path, typer.Option("--profile", help="Profile of `assay calibrate` that holds the attack.")
    ],
    attack: Annotated[
        str,
        typer.Option(
            "--attack", help="Attack measured in the profile; `zero-knowledge` is its baseline."
        ),
    ],
    fpr: Annotated[
        float, typer.Option("--fpr", help="False-positive rate, of a claim and of an executor.")
    ] = DEFAULT_FPR,
    wanted: Annotated[
        float, typer.Option("--power", help="Share of the attack's claims to be caught.")
    ] = POWER_WANTED,
    mixture: Annotated[
        float,
        typer.Option(
            "--mixture", help="Share of the executor's claims that cheat (claims needed)."
        ),
    ] = 1.0,
    json_output: Json = False,
) -> None:
    """Tell how many tokens or claims catch an attack at a stated false-positive rate.

    The attack's claims are in the profile: `assay calibrate --attack` puts them there. Answers for
    each set of conditions in the profile, and for an executor that may be any of them. Exit code 0,
    1 on error.
    """
    known = read_profile(profile)
    parts = {
        name: compute(part, attack, fpr, wanted=wanted, mixture=mixture)
        for name, part in known.conditions().items()
    }
    hardest = compute(known, attack, fpr, wanted=wanted, mixture=mixture)
    if json_output:
        by_condition = {name: part.model_dump(mode="json") for name, part in parts.items()}
        print_json(hardest.model_dump(mode="json") | {"conditions": by_condition})
        return
    for name, part in parts.items():
        typer.echo(f"{name}\n{describe(part)}\n")
    if len(parts) > 1:
        typer.echo(f"an executor of unknown conditions\n{describe(hardest)}")


def describe(found: Power) -> str:
    """The answer for people."""
    lines = [
        f"{found.attack} against {found.profile} at false-positive rate {found.fpr:g}"
        f" ({found.tests} tests a claim), {found.wanted:.0%} to be caught",
        f"one claim: {found.reason}",
        _executor(found),
        "tokens  caught (95 % interval)",
    ]
    for at in found.detection:
        strongest = max(at.by_statistic, key=lambda name: at.by_statistic[name])
        by = f"  mostly by {strongest}" if at.caught else ""
        lines.append(f"{at.tokens:6}  {at.caught}/{at.claims} ({at.low:.0%} to {at.high:.0%}){by}")
    return "\n".join(lines)


def _executor(found: Power) -> str:
    how = f"claims of about {found.claim_tokens} tokens, {found.mixture:.0%} of them cheating"
    if found.executor_claims is None:
        return f"one executor: more than {found.most_claims} {how}"
    return f"one executor: {found.executor_claims} {how}"
