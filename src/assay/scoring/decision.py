"""From distances to pass, fail or cannot tell: one statistical rule for claims of any length.

The published similarity divides by at least 100 positions, so a short claim borrows similarity it
did not earn. Here a claim is measured only by its *informative* positions, and a limit is never
compared with a mean without asking how far that mean could be luck:

- Distances within a claim spread about as wide as they are large (measured: deviation / mean 0.4
  to 1.0 in raw mode, 0.6 to 1.4 over the informative positions of recorded processed pairs), so
  they are taken as draws of a gamma law of shape 1 (exponential) with the executor's own mean m.
  The sum S of n of them then follows Gamma(n, m).
- **Pass** when an executor whose true mean lies *at* the pass limit would show a sum as small as S
  with probability at most 1 %, and n >= 12.
- **Fail** when an executor whose true mean lies *at* the fail limit would show a sum as large as S
  with probability at most 1 %, and n >= 5. One honestly below the limit is in less danger still.
  The published similarity, which forgives short claims, must reject the claim too: by distance
  alone nobody is accused whom the networks' own rule accepts at the same threshold.
- Else the claim is too short, or too near the limit, to tell.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from assay.claims.claim import LogprobsMode
from assay.errors import SettingsError
from assay.scoring.arrays import Bools, Floats, ScoreArrays
from assay.scoring.constants import (
    DEFAULT_THRESHOLD,
    DISTANCE_SHAPE,
    ERROR_RATE,
    FLAT_FAIL_LIMIT,
    MIN_INFORMATIVE,
    MIN_INFORMATIVE_FAIL,
    PROCESSED_FAIL_LIMIT,
    PUBLISHED_THRESHOLDS,
    RAW_FAIL_LIMIT,
)


@dataclass(frozen=True)
class Limits:
    """Mean distances that decide, per informative position.

    ``similarity`` is the published score to exceed. ``over_all_positions``: the fail limit is a
    published similarity margin, which means a mean over all positions, degenerate ones included;
    ``source`` says where the limits come from.
    """

    similarity: float
    pass_limit: float
    fail_limit: float
    over_all_positions: bool
    source: str


def choose_limits(
    threshold: float | None,
    model: str | None,
    mode: LogprobsMode | None,
    *,
    flat: bool,
    cut: bool,
) -> Limits:
    """The limits for a claim. Raises SettingsError for a threshold outside [0, 1).

    A given threshold decides both ways. Without one, a model with a published threshold is held to
    that in processed (or unknown) mode, the mode it was published for. Any other claim passes
    by the published default 0.99 and fails only where no calibrated margin known would accept it;
    between the two it is inconclusive, because nobody has measured what honest hardware does there.
    There, a pair whose mode nobody declared is held to the limit of raw mode unless a sampler
    ``cut`` it (padding on either side). A flat claim never fails below the worst honest flat claim
    on record (case 51).
    """
    if threshold is not None:
        if not 0 <= threshold < 1:
            raise SettingsError(f"threshold {threshold}: expected a similarity in [0, 1)")
        limits = Limits(threshold, 1 - threshold, 1 - threshold, True, "the threshold given")
    elif mode != "raw_logprobs" and (name := published_name(model)) is not None:
        published = PUBLISHED_THRESHOLDS[name]
        margin = 1 - published
        limits = Limits(published, margin, margin, True, f"the published threshold of {name}")
    else:
        whole = mode == "raw_logprobs" or (mode is None and not cut)
        fail = RAW_FAIL_LIMIT if whole else PROCESSED_FAIL_LIMIT
        limits = Limits(
            DEFAULT_THRESHOLD, 1 - DEFAULT_THRESHOLD, fail, False, "the default, not calibrated"
        )
    if flat and limits.fail_limit < FLAT_FAIL_LIMIT:
        source = f"{limits.source}, widened for a flat claim"
        limits = dataclasses.replace(limits, fail_limit=FLAT_FAIL_LIMIT, source=source)
    return limits


def published_name(model: str | None) -> str | None:
    """The entry of the published thresholds that the name of a model contains."""
    known = (name for name in PUBLISHED_THRESHOLDS if model and name.lower() in model.lower())
    return max(known, key=len, default=None)


def informative_positions(arrays: ScoreArrays, distances: Floats) -> Bools:
    """[positions]: the position can tell two executors apart.

    Not informative: both sides know a single possible alternative and agree on it, or both give
    all alternatives the same value. Agreement there is free.
    """
    claim, replay = arrays.claim_possible, arrays.replay_possible
    several = (claim.sum(axis=1) > 1) | (replay.sum(axis=1) > 1)
    shaped = _spread(arrays.claim_logprobs, claim) | _spread(arrays.replay_logprobs, replay)
    with np.errstate(invalid="ignore"):
        return np.asarray(arrays.comparable & ((several & shaped) | (distances > 0)))


def _spread(values: Floats, possible: Bools) -> Bools:
    if not values.shape[1]:
        return np.zeros(len(values), dtype=np.bool_)
    low = np.where(possible, values, np.inf).min(axis=1)
    high = np.where(possible, values, -np.inf).max(axis=1)
    return np.asarray(high > low)


@dataclass(frozen=True)
class Decision:
    """``outcome`` None: cannot tell. ``p_pass`` and ``p_fail`` are the two probabilities of the
    rule; ``mean`` is the mean distance per informative position."""

    outcome: bool | None
    informative: int
    mean: float | None
    p_pass: float | None
    p_fail: float | None


def decide(distances: Floats, informative: Bools, similarity: float, limits: Limits) -> Decision:
    """Apply the rule above to ``distances`` [positions]; ``similarity`` is the published score."""
    chosen = distances[informative]
    count, positions = len(chosen), int(np.isfinite(distances).sum())
    if not count:
        return Decision(None, 0, None, None, None)
    total = float(chosen.sum())
    # A margin on the mean over all positions allows the informative ones proportionally more.
    fail_limit = limits.fail_limit * (positions / count if limits.over_all_positions else 1.0)
    shape = DISTANCE_SHAPE * count
    p_pass = gamma_below(shape, DISTANCE_SHAPE * total / limits.pass_limit)
    p_fail = 1 - gamma_below(shape, DISTANCE_SHAPE * total / fail_limit)
    outcome = None
    rejected = similarity <= limits.similarity
    if count >= MIN_INFORMATIVE_FAIL and p_fail <= ERROR_RATE and rejected:
        outcome = False
    elif count >= MIN_INFORMATIVE and p_pass <= ERROR_RATE:
        outcome = True
    return Decision(outcome, count, total / count, p_pass, p_fail)


def gamma_below(shape: float, value: float) -> float:
    """Probability that a Gamma(shape, 1) variable is at most ``value``: the regularised lower
    incomplete gamma function P(shape, value), to about 1e-12.

    Power series below the mean, Lentz's continued fraction above (Abramowitz and Stegun 6.5.29
    and 6.5.31).
    """
    if value <= 0:
        return 0.0
    if math.isinf(value):
        return 1.0
    factor = math.exp(shape * math.log(value) - value - math.lgamma(shape))
    if value < shape + 1:
        term = total = 1 / shape
        step = shape
        while term > total * 1e-16:
            step += 1
            term *= value / step
            total += term
        return min(1.0, total * factor)
    tiny = 1e-300
    b = value + 1 - shape
    c, d = 1 / tiny, 1 / b
    fraction = d
    for i in range(1, 100_000):
        a = -i * (i - shape)
        b += 2
        d = 1 / _away_from_zero(a * d + b, tiny)
        c = _away_from_zero(b + a / c, tiny)
        change = c * d
        fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return max(0.0, 1 - factor * fraction)


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
