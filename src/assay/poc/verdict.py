"""The three-valued verdict over claimed and recomputed vectors of one challenge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc  # type: ignore[import-untyped]

from assay.poc.constants import K_DIM, MAX_EXCLUDED_FRACTION
from assay.poc.settings import StatTest

Outcome = Literal["pass", "fail", "inconclusive"]
Cause = Literal["distance", "shape", "non_finite"]


@dataclass(frozen=True)
class Reason:
    """``code`` is stable, ``message`` is for a person."""

    code: str
    message: str


@dataclass(frozen=True)
class NonceDistance:
    """One compared nonce. ``distance`` is the L2 distance, None where none exists.

    ``cause`` says why the nonce is a mismatch; None where it is not one.
    """

    nonce: int
    distance: float | None
    cause: Cause | None


@dataclass(frozen=True)
class PocVerdict:
    """``n_total`` nonces were expected: ``n_compared`` + ``n_excluded``.

    ``p_value`` and ``fraud_detected`` are None when there is no verdict to base on them;
    ``mean_distance`` is over the finite distances, None when there is none.
    """

    verdict: Outcome
    reasons: tuple[Reason, ...]
    n_total: int
    n_compared: int
    n_excluded: int
    n_mismatch: int
    p_value: float | None
    fraud_detected: bool | None
    mean_distance: float | None
    max_distance: float | None
    mismatch_nonces: tuple[int, ...]
    excluded_nonces: tuple[int, ...]
    distances: tuple[NonceDistance, ...]
    settings: StatTest

    def as_json(self) -> dict[str, Any]:
        """Plain data for JSON; no NaN, no Infinity."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["reasons"] = [vars(reason) for reason in self.reasons]
        plain["distances"] = [vars(entry) for entry in self.distances]
        plain["settings"] = vars(self.settings)
        return plain


def mismatch_p_value(n_mismatch: int, n: int, p_mismatch: float) -> float:
    """P[Binomial(n, p_mismatch) >= n_mismatch], exact (regularised incomplete beta)."""
    return 1.0 if n_mismatch <= 0 else float(bdtrc(n_mismatch - 1, n, p_mismatch))


def compare_vector(
    nonce: int, claimed: npt.ArrayLike, computed: npt.ArrayLike, k: int, dist_threshold: float
) -> NonceDistance:
    """One nonce: a mismatch on a shape other than (k,), a non-finite value, or a large distance.

    NaN compares False with everything, so "distance > threshold" alone would call a NaN vector
    honest (F27); anything not finite is a mismatch by name.
    """
    a, b = np.asarray(claimed, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    if a.shape != (k,) or b.shape != (k,):
        return NonceDistance(nonce, None, "shape")
    with np.errstate(over="ignore", invalid="ignore"):
        distance = float(np.linalg.norm(a - b))
    # NaN and Inf on either side end up here, an overflow too.
    if not np.isfinite(distance):
        return NonceDistance(nonce, None, "non_finite")
    return NonceDistance(nonce, distance, "distance" if distance > dist_threshold else None)


def judge(
    claimed: Mapping[int, npt.ArrayLike],
    computed: Mapping[int, npt.ArrayLike | None],
    test: StatTest,
    *,
    k: int = K_DIM,
    sampled: bool = False,
) -> PocVerdict:
    """Judge ``claimed`` vectors by the ``computed`` ones.

    A nonce that only one side has is excluded, as is one that ``computed`` maps to None: the
    validator could not recompute it, which is its own failure and no evidence. ``sampled``: the
    validator chose a subset on purpose, so claimed nonces it did not touch are not expected;
    nonces it computed and the claim lacks still are.
    """
    expected = set(computed) if sampled else set(claimed) | set(computed)
    distances = []
    excluded = []
    for nonce in sorted(expected):
        ours = computed.get(nonce)
        if ours is None or nonce not in claimed:
            excluded.append(nonce)
        else:
            distances.append(compare_vector(nonce, claimed[nonce], ours, k, test.dist_threshold))
    finite = [entry.distance for entry in distances if entry.distance is not None]
    mismatches = tuple(entry.nonce for entry in distances if entry.cause is not None)
    undecided = PocVerdict(
        verdict="inconclusive",
        reasons=_notes(distances),
        n_total=len(expected),
        n_compared=len(distances),
        n_excluded=len(excluded),
        n_mismatch=len(mismatches),
        p_value=None,
        fraud_detected=None,
        mean_distance=float(np.mean(finite)) if finite else None,
        max_distance=max(finite) if finite else None,
        mismatch_nonces=mismatches,
        excluded_nonces=tuple(excluded),
        distances=tuple(distances),
        settings=test,
    )
    return _decide(undecided)


def _decide(counted: PocVerdict) -> PocVerdict:
    n, test = counted.n_compared, counted.settings
    if n == 0:
        return _no_verdict(
            counted, "nothing_compared", "no nonce is on both sides; ask for the same nonces"
        )
    p_value = mismatch_p_value(counted.n_mismatch, n, test.p_mismatch)
    counted = replace(counted, p_value=p_value)
    if counted.n_excluded > MAX_EXCLUDED_FRACTION * counted.n_total:
        return _no_verdict(
            counted,
            "too_many_excluded",
            f"{counted.n_excluded} of {counted.n_total} nonces were not compared, more than "
            f"{MAX_EXCLUDED_FRACTION:.0%}; recompute the missing ones",
        )
    if mismatch_p_value(n, n, test.p_mismatch) >= test.alpha:
        return _no_verdict(
            counted,
            "too_few_nonces",
            f"with {n} compared not even {n} mismatches give a p-value below {test.alpha}; "
            "compare more nonces",
        )
    summary = (
        f"{counted.n_mismatch} of {n} nonces mismatch at distance {test.dist_threshold}; "
        f"p-value {p_value:.3g} against alpha {test.alpha} at a tolerated rate of {test.p_mismatch}"
    )
    fraud = p_value < test.alpha
    reason = Reason("too_many_mismatches" if fraud else "mismatches_tolerated", summary)
    return replace(
        counted,
        verdict="fail" if fraud else "pass",
        fraud_detected=fraud,
        reasons=(reason, *counted.reasons),
    )


def withhold(verdict: PocVerdict, code: str, message: str) -> PocVerdict:
    """``verdict`` as inconclusive, for a reason found outside the vectors."""
    return _no_verdict(replace(verdict, fraud_detected=None), code, message)


def _no_verdict(counted: PocVerdict, code: str, message: str) -> PocVerdict:
    return replace(
        counted, verdict="inconclusive", reasons=(Reason(code, message), *counted.reasons)
    )


def _notes(distances: list[NonceDistance]) -> tuple[Reason, ...]:
    notes = []
    for cause, code, text in (
        ("non_finite", "non_finite_vectors", "hold NaN or Inf and count as mismatches"),
        ("shape", "wrong_shape_vectors", "have a wrong length and count as mismatches"),
    ):
        nonces = [entry.nonce for entry in distances if entry.cause == cause]
        if nonces:
            notes.append(Reason(code, f"{len(nonces)} vectors {text}, first nonce {nonces[0]}"))
    return tuple(notes)
