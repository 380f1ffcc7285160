"""The page docs/poc-detection.md from the units of an evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.poc.constants import PRIOR_DOF
from assay.poc.detection_text import BASES, HEAD, NOTES, SEEN, UNSEEN, WEIGHT
from assay.poc.evaluation import SIZES, Kind, Unit

_Z = 1.959964
"""97.5 % point of the normal distribution, for 95 % intervals."""


@dataclass(frozen=True)
class Rate:
    """Mean over ``pairs`` of the share of their draws. A pair judged under two held-out kinds
    counts once, with the mean of both."""

    value: float
    pairs: int
    units: int
    draws: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson, 95 %, as if each pair were one trial: draws of one pair share its error."""
        n, p = self.pairs, self.value
        centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * np.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return max(0.0, float(centre - half)), min(1.0, float(centre + half))

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({low:.1%} to {high:.1%})"


def rate(units: Iterable[Unit], count: Callable[[Unit], int]) -> Rate | None:
    """The rate of ``count`` over ``units``; None without units."""
    pairs: dict[str, list[float]] = defaultdict(list)
    draws = 0
    for unit in units:
        pairs[unit.name].append(count(unit) / unit.draws)
        draws += unit.draws
    if not pairs:
        return None
    means = [float(np.mean(values)) for values in pairs.values()]
    n_units = sum(len(values) for values in pairs.values())
    return Rate(float(np.mean(means)), len(pairs), n_units, draws)


@dataclass(frozen=True)
class Target:
    text: str
    kind: Kind
    n: int
    least: float | None = None
    most: float | None = None

    def row(self, units: Sequence[Unit]) -> str:
        found = rate(_of(units, self.kind, self.n), lambda unit: unit.convicted)
        by_count = rate(_of(units, self.kind, self.n), lambda unit: unit.by_count)
        if found is None or by_count is None:
            return f"| {self.text} | not measured | | |"
        aim = self.most if self.least is None else self.least
        distance = abs(found.value - (aim or 0.0))
        said = "reached" if self.reached(found.value) else f"missed by {distance:.2%}"
        return f"| {self.text} | {found.text} | {said} | {by_count.value:.2%} |"

    def reached(self, value: float) -> bool:
        """Whether a rate of ``value`` keeps the bound."""
        if self.least is not None and value < self.least:
            return False
        return self.most is None or value <= self.most


TARGETS = (
    Target("honest pairs convicted, n = 50, at most 0.5 %", "honest", 50, most=0.005),
    Target("honest pairs convicted, n = 200, at most 0.5 %", "honest", 200, most=0.005),
    Target("cheating pairs caught, n = 50, at least 99.5 %", "cheat", 50, least=0.995),
    Target("mean-forged vectors caught, n = 200, at least 99 %", "forged", 200, least=0.99),
    Target(
        "a quarter cheating, profile of the same pair, n = 200, at least 95 %",
        "mixed, same pair",
        200,
        least=0.95,
    ),
)

_NAMES: dict[Kind, str] = {
    "honest": "honest",
    "honest, other version": "honest, another engine version",
    "cheat": "other weights",
    "forged": "forged from the shared mean",
    "mixed": "a quarter from other weights",
    "honest, same pair": "honest",
    "mixed, same pair": "a quarter from other weights",
    "honest, same pair, other challenge": "honest, profile of other challenges",
    "mixed, same pair, other challenge": "a quarter, profile of other challenges",
}


def report(units: Sequence[Unit], others: Mapping[float, Sequence[Unit]]) -> str:
    """The page as Markdown. ``others``: units judged with other weights of the pooled spread."""
    unseen: tuple[Kind, ...] = ("honest", "honest, other version", "cheat", "forged", "mixed")
    seen: tuple[Kind, ...] = (
        "honest, same pair",
        "mixed, same pair",
        "honest, same pair, other challenge",
        "mixed, same pair, other challenge",
    )
    return "\n".join(
        [
            HEAD,
            "| target | profile | | count rule |",
            "|---|---|---|---|",
            *(target.row(units) for target in TARGETS),
            "",
            "## One kind of GPU left out",
            "",
            *_table(units, unseen),
            "",
            UNSEEN,
            "",
            "What the nulls rested on (other weights, n = 50):",
            "",
            *_by_basis(units),
            "",
            "By the kind left out (n = 50):",
            "",
            *_by_kind(units),
            "",
            _count_on(units, "MiniMax-M2.7"),
            "",
            "## A profile of the same pair",
            "",
            *_table(units, seen),
            "",
            SEEN,
            "",
            *_worst(units),
            "",
            "## How much hangs on the weight of the pooled spread",
            "",
            *_sensitivity(units, others),
            "",
            NOTES,
        ]
    )


def _table(units: Sequence[Unit], kinds: Sequence[Kind]) -> list[str]:
    rows = [
        "| claim | model | n | pairs | judged | convicted by profile | withheld | by count |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        for n in sorted({unit.n for unit in units if unit.kind == kind}):
            chosen = _of(units, kind, n)
            for model in [None, *sorted({unit.model for unit in chosen})]:
                some = [unit for unit in chosen if model in (None, unit.model)]
                found = rate(some, lambda unit: unit.convicted)
                withheld = rate(some, lambda unit: unit.withheld)
                by_count = rate(some, lambda unit: unit.by_count)
                if found is None or withheld is None or by_count is None:
                    continue
                rows.append(
                    f"| {_NAMES[kind]} | {model or '**all**'} | {n} | {found.pairs} | "
                    f"{found.draws} | {found.text} | {withheld.value:.2%} | {by_count.text} |"
                )
    return rows


def _by_basis(units: Sequence[Unit]) -> list[str]:
    rows = ["| records of | pairs | convicted |", "|---|---|---|"]
    chosen = _of(units, "cheat", 50)
    for basis in sorted({unit.basis for unit in chosen}):
        found = rate((u for u in chosen if u.basis == basis), lambda unit: unit.convicted)
        if found is not None:
            rows.append(f"| {BASES.get(basis, basis)} | {found.pairs} | {found.text} |")
    return rows


def _by_kind(units: Sequence[Unit]) -> list[str]:
    rows = [
        "| left out | honest pairs | convicted | cheating pairs | convicted |",
        "|---|---|---|---|---|",
    ]
    honest, cheats = _of(units, "honest", 50), _of(units, "cheat", 50)
    for kind in sorted({unit.held_out for unit in [*honest, *cheats]}):
        cells = [kind]
        for some in (honest, cheats):
            found = rate((u for u in some if u.held_out == kind), lambda unit: unit.convicted)
            cells += ["0", "-"] if found is None else [str(found.pairs), found.text]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _count_on(units: Sequence[Unit], model: str) -> str:
    """What the count rule does to every honest pair of a model, versions mixed."""
    texts = []
    for n in SIZES:
        some = [*_of(units, "honest", n), *_of(units, "honest, other version", n)]
        found = rate((u for u in some if u.model == model), lambda unit: unit.by_count)
        if found is not None:
            texts.append(f"{found.text} of {found.pairs} pairs at n = {n}")
    return f"The count rule on all honest pairs of {model}, equal versions or not: " + (
        ", ".join(texts) + "." if texts else "not measured."
    )


def _sensitivity(units: Sequence[Unit], others: Mapping[float, Sequence[Unit]]) -> list[str]:
    rows = [
        "| degrees of freedom | n | honest pairs convicted | cheating pairs caught |",
        "|---|---|---|---|",
    ]
    for dof, some in sorted({**others, PRIOR_DOF["bulk"]: units}.items()):
        for n in SIZES:
            cells = []
            for kind in ("honest", "cheat"):
                found = rate(
                    (unit for unit in some if unit.kind == kind and unit.n == n),
                    lambda unit: unit.convicted,
                )
                cells.append("-" if found is None else found.text)
            rows.append(f"| {dof:g} | {n} | {' | '.join(cells)} |")
    return [*rows, "", WEIGHT]


def _worst(units: Sequence[Unit]) -> list[str]:
    """Pairs for which a quarter of cheating is caught in less than 95 % of draws."""
    found = [
        (rate([unit], lambda one: one.convicted), unit)
        for unit in _of(units, "mixed, same pair", 200)
    ]
    low = sorted(
        (value.value, unit.name)
        for value, unit in found
        if value is not None and value.value < 0.95
    )
    if not low:
        return ["No pair is below 95 %."]
    rows = [f"{len(low)} of {len(found)} are below 95 %:", "", "| caught | pair |", "|---|---|"]
    return rows + [f"| {value:.1%} | `{_short(name)}` |" for value, name in low]


def _short(name: str) -> str:
    files = [part.rsplit("/", 1)[-1] for part in name.replace(" with ", " by ").split(" by ")]
    return " / ".join(file.removesuffix(".json").replace("__nonces_1000", "") for file in files)


def _of(units: Iterable[Unit], kind: Kind, n: int) -> list[Unit]:
    return [unit for unit in units if unit.kind == kind and unit.n == n]
