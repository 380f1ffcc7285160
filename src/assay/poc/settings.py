"""What a verdict is reached with: distance threshold, tolerated mismatch rate, error rate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import SettingsError
from assay.poc.constants import (
    NETWORK_ALPHA,
    NETWORK_DIST_THRESHOLD,
    NETWORK_P_MISMATCH,
    REFERENCE_ALPHA,
    REFERENCE_DIST_THRESHOLD,
    REFERENCE_P_MISMATCH,
)

ALPHA_NAMES = ("fraud_threshold", "p_value_threshold", "alpha")
"""Names of alpha in requests and files. Servers that read only the first kept their default in
silence when a client sent the second."""


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{name}: {value!r} is not a finite number")


@dataclass(frozen=True)
class StatTest:
    """``dist_threshold``: largest L2 distance of two honest vectors (unit vectors: 0 to 2).
    ``p_mismatch``: rate of mismatches an honest node may have. ``alpha``: a p-value below it
    convicts, so the chance to convict a node that mismatches at exactly ``p_mismatch``.
    Raises SettingsError naming the field when a value cannot be used.
    """

    dist_threshold: float = NETWORK_DIST_THRESHOLD
    p_mismatch: float = NETWORK_P_MISMATCH
    alpha: float = NETWORK_ALPHA

    def __post_init__(self) -> None:
        _check_number("dist_threshold", self.dist_threshold)
        if self.dist_threshold <= 0:
            raise SettingsError(f"dist_threshold: {self.dist_threshold} given; give more than 0")
        for name, value in (("p_mismatch", self.p_mismatch), ("alpha", self.alpha)):
            _check_number(name, value)
            if not 0 < value < 1:
                raise SettingsError(f"{name}: {value} given; give a number between 0 and 1")


NETWORK = StatTest()
REFERENCE = StatTest(REFERENCE_DIST_THRESHOLD, REFERENCE_P_MISMATCH, REFERENCE_ALPHA)


def stat_test(body: Mapping[str, Any] | None, default: StatTest = REFERENCE) -> StatTest:
    """The ``stat_test`` object of a request; fields left out are those of ``default``.

    Accepts alpha as ``fraud_threshold``, ``p_value_threshold`` or ``alpha``. Raises SettingsError
    when two of them differ, and on an unknown field: dropping it in silence would judge by
    numbers nobody asked for.
    """
    body = body or {}
    known = {"dist_threshold", "p_mismatch", *ALPHA_NAMES}
    if unknown := sorted(set(body) - known):
        raise SettingsError(f"stat_test: unknown field {unknown[0]!r}; known: {sorted(known)}")
    given = {name: body[name] for name in ALPHA_NAMES if body.get(name) is not None}
    for name, value in given.items():
        _check_number(name, value)
    if len(set(given.values())) > 1:
        raise SettingsError(
            "stat_test: "
            + " and ".join(f"{name} = {value}" for name, value in given.items())
            + " are two names of one number and differ; send one of them"
        )
    return StatTest(
        dist_threshold=_or(body.get("dist_threshold"), default.dist_threshold),
        p_mismatch=_or(body.get("p_mismatch"), default.p_mismatch),
        alpha=next(iter(given.values()), default.alpha),
    )


def read_profile(path: Path) -> StatTest:
    """A calibrated profile: JSON with dist_threshold, p_mismatch and alpha (any of its names).

    The three may stand at the top or in ``stat_test``, as in published reference files; other
    top-level fields describe the profile and are left alone. All three must be there: a default
    in place of a missing one would not be the calibration. Raises SettingsError.
    """
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"profile {path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise SettingsError(f"profile {path}: not JSON: {error}") from error
    if not isinstance(profile, dict):
        raise SettingsError(f"profile {path}: a JSON object is needed")
    names = ("dist_threshold", "p_mismatch", *ALPHA_NAMES)
    nested = profile.get("stat_test") or {}
    if not isinstance(nested, dict):
        raise SettingsError(f"profile {path}: stat_test: a JSON object is needed")
    merged = {name: profile[name] for name in names if name in profile}
    for name, value in nested.items():
        if merged.setdefault(name, value) != value:
            raise SettingsError(
                f"profile {path}: {name} is {merged[name]} and, in stat_test, {value}; keep one"
            )
    missing = [name for name in ("dist_threshold", "p_mismatch") if merged.get(name) is None]
    if all(merged.get(name) is None for name in ALPHA_NAMES):
        missing.append("alpha")
    if missing:
        raise SettingsError(
            f"profile {path}: {missing[0]} is missing; a profile gives dist_threshold, p_mismatch "
            "and alpha (or fraud_threshold, or p_value_threshold)"
        )
    return stat_test(merged)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
