"""The value channel of one claim: every distance and signal, and the rule for claims without a
profile."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.claims.claim import Claim, LogprobsMode, Replay
from assay.scoring import findings as find
from assay.scoring.arrays import Floats, ScoreArrays
from assay.scoring.constants import CEILING_DISTANCE, CEILING_MIN_POSITIONS, FLAT_ALTERNATIVES
from assay.scoring.decision import Decision, Limits, choose_limits, decide, informative_positions
from assay.scoring.findings import Finding, finding
from assay.scoring.pairing import Pairing
from assay.scoring.result import Outcome
from assay.scoring.signals import (
    Count,
    above_ceiling,
    entropies,
    has_padding,
    near_best,
    top1_agreement,
    without_support,
)
from assay.scoring.value import distances, published_distances, similarity_first, similarity_second

_OUTCOMES: dict[bool | None, Outcome] = {True: "pass", False: "fail", None: "inconclusive"}


@dataclass(frozen=True)
class ValueLook:
    """``findings`` are the pairing's and the channel's own. ``outcome`` is what the distances alone
    say by the rule for claims without a profile, ``None`` where they mean nothing;
    ``informative`` are the positions that say anything. ``fields`` are those of the verdict."""

    findings: tuple[Finding, ...]
    outcome: Outcome | None = None
    decision: Decision | None = None
    limits: Limits | None = None
    informative: tuple[int, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)


def look_at_values(
    claim: Claim,
    replay: Replay,
    pairing: Pairing,
    *,
    threshold: float | None,
    calibrated: Container[str],
) -> ValueLook:
    """Look at the pair. ``calibrated`` are the channels that p-values of a profile judge: the fixed
    limits of mean and ceiling (``value``) and of support (``choice``) then count for nothing.

    Raises SettingsError for a threshold outside [0, 1).
    """
    if not pairing.usable:
        # The threshold is checked even where nothing can be compared with it.
        choose_limits(threshold, None, None, flat=False, cut=False)
        return ValueLook(pairing.findings)
    pair = _Pair(claim, replay, pairing.arrays, threshold)
    return _compare(pair, list(pairing.findings), calibrated=calibrated)


@dataclass(frozen=True)
class _Pair:
    claim: Claim
    replay: Replay
    arrays: ScoreArrays
    threshold: float | None

    @property
    def mode(self) -> LogprobsMode | None:
        return self.replay.logprobs_mode or self.claim.logprobs_mode

    @property
    def model(self) -> str | None:
        asked = self.claim.request.get("model")
        return self.claim.engine.model or (asked if isinstance(asked, str) else None)


def _compare(pair: _Pair, found: list[Finding], *, calibrated: Container[str]) -> ValueLook:
    """The distances and every signal."""
    arrays = pair.arrays
    compared = arrays.take(np.flatnonzero(arrays.comparable))
    published = published_distances(compared)
    ours = distances(arrays)
    informative = informative_positions(arrays, ours)
    entropy = entropies(arrays.replay_logprobs, arrays.replay_possible)
    near = near_best(arrays.replay_logprobs, arrays.replay_possible)
    mean_near = float(near[arrays.comparable].mean())
    flat = mean_near >= FLAT_ALTERNATIVES
    cut = has_padding(arrays)
    limits = choose_limits(pair.threshold, pair.model, pair.mode, flat=flat, cut=cut)
    similarity = similarity_second(published)
    decision = decide(ours, informative, similarity, limits)
    ceiling = above_ceiling(ours)
    support = without_support(pair.replay, len(arrays))
    blocked = any(f.effect == "block" for f in found)
    # A guessed mode, or numbers that cannot be compared, may never count against the claim.
    fair = not blocked and pair.replay.mode_source != "inferred"
    if "choice" not in calibrated:
        found += _support(support, fair=fair)
    if not blocked:
        found += find.not_constant(arrays, informative)
        if "value" not in calibrated:
            found += _ceiling(ceiling, len(compared), fair=fair and not flat)
            found += _by_distance(pair, decision, limits, flat)
    fields = {
        "positions": len(compared),
        "by_distance": None if blocked else _OUTCOMES[decision.outcome],
        "similarity": similarity,
        "similarity_v1": similarity_first(compared, published),
        "top1_agreement": top1_agreement(arrays),
        "informative_positions": decision.informative,
        "mean_distance": decision.mean,
        "pass_limit": limits.pass_limit,
        "fail_limit": limits.fail_limit,
        "limits_source": limits.source,
        "p_pass": decision.p_pass,
        "p_fail": decision.p_fail,
        "above_ceiling": ceiling.count,
        "without_support": None if support is None else support.count,
        "flat": flat,
        "mean_entropy": float(entropy[arrays.comparable].mean()),
        "mean_near_best": mean_near,
        "distances": _listed(ours),
        "entropies": _listed(np.where(arrays.comparable, entropy, np.nan)),
        "near_best": tuple(
            int(n) if seen else None for n, seen in zip(near, arrays.comparable, strict=True)
        ),
    }
    outcome = None if blocked else _OUTCOMES[decision.outcome]
    told = tuple(map(int, np.flatnonzero(informative)))
    return ValueLook(tuple(found), outcome, decision, limits, told, fields)


def _listed(values: Floats) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def _support(support: Count | None, *, fair: bool) -> list[Finding]:
    if support is None or not support.exceeded:
        return []
    return [
        finding(
            "fail" if fair else "hold",
            "sampler_support",
            f"at {support.count} positions the sampler with the claim's own parameters cannot draw"
            f" the claimed token; {support.allowed} are allowed",
            support.first,
        )
    ]


def _ceiling(ceiling: Count, compared: int, *, fair: bool) -> list[Finding]:
    if not ceiling.exceeded:
        return []
    return [
        finding(
            "fail" if fair and compared >= CEILING_MIN_POSITIONS else "hold",
            "ceiling",
            f"{ceiling.count} positions are farther than {CEILING_DISTANCE} from the replay;"
            f" {ceiling.allowed} of {compared} are allowed",
            ceiling.first,
        )
    ]


def _by_distance(pair: _Pair, decision: Decision, limits: Limits, flat: bool) -> list[Finding]:
    """The finding that goes with the decision; none when it is a pass."""
    if decision.outcome is True:
        return []
    mean = 0.0 if decision.mean is None else decision.mean
    about = f"mean distance {mean:.4f} over {decision.informative} informative positions"
    if decision.outcome is False:
        message = f"{about}, above the limit {limits.fail_limit:.4f} ({limits.source})"
        if pair.replay.mode_source == "inferred":
            return [
                finding(
                    "hold",
                    "mode_inferred",
                    f"{message}, but the server only guessed the log probability mode (case 53);"
                    " name it and replay again",
                )
            ]
        return [finding("fail", "similarity_below", message)]
    if decision.informative == 0:
        return [
            finding("hold", "no_evidence", "no position has more than one possible alternative")
        ]
    if mean > limits.pass_limit:
        found = [
            finding(
                "hold",
                "similarity_below",
                f"{about}, above the pass limit {limits.pass_limit:.4f}, and not clearly above the"
                f" fail limit {limits.fail_limit:.4f} ({limits.source})",
            )
        ]
        if flat:
            found.append(
                finding(
                    "hold",
                    "flat_distribution",
                    "the validator's own distributions are flat here, where honest engines differ"
                    " most (case 51); the fail limit is wider",
                )
            )
        return found
    return [
        finding(
            "hold",
            "too_short_to_tell",
            f"{about} look honest, but so few can by luck (chance"
            f" {decision.p_pass or 0:.2g} at the pass limit {limits.pass_limit:.4f}); a longer"
            " claim is needed",
        )
    ]
