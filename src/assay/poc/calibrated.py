"""The verdict by a profile: how likely these distances are for honest engines of this kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet
from assay.poc.calibrated_result import CalibratedVerdict, StatisticResult
from assay.poc.compare import check_same_challenge, profile_difference
from assay.poc.constants import (
    INVALID_DISTANCE,
    INVALID_RATE,
    MAX_EXCLUDED_FRACTION,
    MIN_NONCES,
    OWN_COVERAGE,
    PROFILE_ALPHA,
)
from assay.poc.nulls import Basis, Nulls, combined, nulls_for
from assay.poc.own_part import coverage, log_own_share
from assay.poc.profile import Profile, VectorKey
from assay.poc.spread import Floats, bulk_and_tail
from assay.poc.statistics import Rows, predicted_vectors
from assay.poc.unit import is_unit
from assay.poc.verdict import Outcome, Reason, mismatch_p_value

_UNRELATED = float(np.sqrt(2))
"""Distance of two unit vectors that have nothing to do with each other."""


@dataclass(frozen=True)
class _Compared:
    """``distances [n]``; ``valid`` are the nonces with vectors on both sides."""

    distances: Floats
    valid: tuple[int, ...]
    n_excluded: int

    @property
    def n(self) -> int:
        return len(self.distances)

    @property
    def n_invalid(self) -> int:
        return self.n - len(self.valid)


@dataclass(frozen=True)
class _Case:
    """``guess``: what the claim's own vectors say of each nonce; empty where not known."""

    claimed: ArtifactSet
    computed: ArtifactSet
    nulls: Nulls
    compared: _Compared
    guess: dict[int, Rows]
    hidden_size: int | None


def judge_by_profile(
    claimed: ArtifactSet,
    computed: ArtifactSet,
    profile: Profile,
    *,
    key: VectorKey,
    hardware: tuple[str | None, str | None],
    hidden_size: int | None = None,
    alpha: float = PROFILE_ALPHA,
    sampled: bool = False,
) -> CalibratedVerdict | None:
    """Judge ``claimed`` by ``computed``; None when ``profile`` holds nothing for ``key``.

    ``key`` is the configuration of the engine that recomputed, ``hardware`` that of the claim and
    of the recomputation. A fail between engines that say they differ in an identity field is
    withheld: the profile is for equal ones (case 50). Raises ClaimError ``challenge_differs`` and
    SettingsError on an alpha outside 0..1.
    """
    if not 0 < alpha < 1:
        raise SettingsError(f"alpha: {alpha} given; give a number between 0 and 1")
    check_same_challenge(claimed, computed)
    nulls = nulls_for(profile, key, hardware)
    if nulls is None:
        return None
    compared = _compare(claimed, computed, sampled)
    blank = CalibratedVerdict(
        verdict="inconclusive",
        reasons=(),
        basis=nulls.basis,
        profile=profile.digest,
        alpha=alpha,
        n_total=compared.n + compared.n_excluded,
        n_compared=compared.n,
        n_excluded=compared.n_excluded,
        n_invalid=compared.n_invalid,
        mean_distance=float(compared.distances.mean()) if compared.n else None,
    )
    refused = _too_little(blank) or _proves_nothing(nulls, compared.n, alpha)
    if refused is not None:
        return replace(blank, reasons=(refused,))
    guess = _guess(claimed, hidden_size)
    case = _Case(claimed, computed, nulls, compared, guess, hidden_size)
    return _decide(_measure(blank, case), case)


def _compare(claimed: ArtifactSet, computed: ArtifactSet, sampled: bool) -> _Compared:
    """A claimed vector that is none counts as the farthest there is; one of our own that is none
    is our failure and no evidence."""
    k = computed.challenge.k
    expected = set(computed.vectors) if sampled else set(claimed.vectors) | set(computed.vectors)
    distances, valid, excluded = [], [], 0
    for nonce in sorted(expected):
        ours, theirs = computed.vectors.get(nonce), claimed.vectors.get(nonce)
        if theirs is None or ours is None or not is_unit(ours, k):
            excluded += 1
        elif not is_unit(theirs, k):
            distances.append(INVALID_DISTANCE)
        else:
            valid.append(nonce)
            difference = np.asarray(theirs, dtype=np.float64) - np.asarray(ours, dtype=np.float64)
            distances.append(float(np.linalg.norm(difference)))
    return _Compared(np.array(distances, dtype=np.float64), tuple(valid), excluded)


def _too_little(blank: CalibratedVerdict) -> Reason | None:
    if blank.n_compared == 0:
        return Reason("nothing_compared", "no nonce is on both sides; ask for the same nonces")
    if blank.n_excluded > MAX_EXCLUDED_FRACTION * blank.n_total:
        return Reason(
            "too_many_excluded",
            f"{blank.n_excluded} of {blank.n_total} nonces were not compared, more than "
            f"{MAX_EXCLUDED_FRACTION:.0%}; recompute the missing ones",
        )
    if blank.n_compared < MIN_NONCES:
        return Reason(
            "too_few_nonces",
            f"{blank.n_compared} nonces compared, a profile needs {MIN_NONCES}; compare more",
        )
    return None


def _proves_nothing(nulls: Nulls, n: int, alpha: float) -> Reason | None:
    """A profile so wide that vectors of another challenge would do."""
    p = _p_of(nulls, np.full(n, _UNRELATED))
    if combined({name: np.asarray(value[1]) for name, value in p.items()}) < alpha:
        return None
    return Reason(
        "profile_too_wide",
        f"with {n} nonces and this profile not even unrelated vectors would fail at {alpha}; "
        "record more pairs of honest engines",
    )


def _guess(claimed: ArtifactSet, hidden_size: int | None) -> dict[int, Rows]:
    """What the claim's own vectors say of each nonce; empty where that is not known."""
    k = claimed.challenge.k
    usable = {nonce: row for nonce, row in claimed.vectors.items() if is_unit(row, k)}
    if hidden_size is None or coverage(len(usable), k, hidden_size) < OWN_COVERAGE:
        return {}
    return predicted_vectors(replace(claimed, vectors=usable), hidden_size)


def _p_of(nulls: Nulls, distances: Floats) -> dict[str, tuple[float, float, str]]:
    """Value, p-value and null of every statistic that distances alone give."""
    near, far = bulk_and_tail(distances)
    n = len(distances)
    found = {}
    for name, value in (("bulk", float(near)), ("tail", float(far))):
        null = nulls.statistics["bulk" if name == "bulk" else "tail"]
        found[name] = (value, float(null.p_upper(value, n)), null.words)
    if nulls.mixture is not None:
        mean = float(nulls.mixture.score.scores(distances).mean())
        found["mixture"] = (mean, float(nulls.mixture.p_upper(distances)), nulls.mixture.words)
    return found


def _measure(blank: CalibratedVerdict, case: _Case) -> CalibratedVerdict:
    nulls, distances = case.nulls, case.compared.distances
    found = _p_of(nulls, distances)
    missing: dict[str, str] = {}
    if nulls.mixture is None:
        missing["mixture"] = "the profile has no recording of this pair of hardware"
    own = _own(case)
    if isinstance(own, str):
        missing["own"] = own
    else:
        found["own"] = own
    p_value = float(combined({name: np.asarray(entry[1]) for name, entry in found.items()}))
    return replace(
        blank,
        p_value=p_value,
        statistics=tuple(StatisticResult(name, *entry) for name, entry in found.items()),
        missing=missing,
        cheating_share=None
        if nulls.mixture is None
        else nulls.mixture.score.cheating_share(distances),
    )


def _own(case: _Case) -> tuple[float, float, str] | str:
    """The statistic with the shared mean removed, or why it was not measured."""
    if case.hidden_size is None:
        return "the model's hidden_size is not known"
    if not case.guess:
        shown = coverage(len(case.claimed.vectors), case.claimed.challenge.k, case.hidden_size)
        return (
            f"the claim shows a dimension {shown:.2f} times on average; "
            f"{OWN_COVERAGE:g} is needed to know the shared mean"
        )
    null = case.nulls.statistics.get("own")
    if null is None:
        return "the profile was made without hidden_size"
    own = log_own_share(
        _rows(case.claimed),
        _rows(case.computed),
        case.compared.valid,
        case.guess,
        case.hidden_size,
    )
    if own is None:
        return "no vector differs, or too few are valid"
    return own.value, float(null.p_upper(own.value, len(case.compared.valid))), null.words


def _rows(one: ArtifactSet) -> dict[int, Rows]:
    return {nonce: np.asarray(row, dtype=np.float64) for nonce, row in one.vectors.items()}


def _decide(measured: CalibratedVerdict, case: _Case) -> CalibratedVerdict:
    compared = case.compared
    p, alpha, n = measured.p_value, measured.alpha, compared.n
    notes: list[Reason] = []
    if compared.n_invalid:
        notes.append(
            Reason(
                "invalid_vectors",
                f"{compared.n_invalid} of {n} claimed vectors are no unit vectors of the right "
                "length; an honest engine sends none",
            )
        )
    invalid = mismatch_p_value(compared.n_invalid, n, INVALID_RATE) < alpha
    least = min(measured.statistics, key=lambda result: result.p_value)
    if p is None or p < alpha or invalid:
        if differs := profile_difference(case.claimed, case.computed):
            return _with(
                measured,
                "inconclusive",
                "configuration_differs",
                f"the engines differ in {differs}, and the profile is for equal ones; compare with "
                "an engine of the same configuration",
                notes,
            )
        if p is not None and p < alpha:
            text = (
                f"p-value {p:.3g} below {alpha}, most by {least.name} ({least.value:.3f}); judged "
                f"by {_BASIS[measured.basis]}"
            )
            return _with(measured, "fail", "farther_than_honest", text, notes)
        return _with(measured, "fail", "too_many_invalid", notes[0].message, [])
    if notes:
        return replace(measured, reasons=tuple(notes))
    forged = _forger(case)
    if forged is not None and forged >= alpha:
        text = (
            "vectors guessed from other nonces, with no model run, would pass this profile too "
            f"(p-value {forged:.3g}); compare more nonces or record this pair of hardware"
        )
        return _with(measured, "inconclusive", "threshold_proves_nothing", text, [])
    text = f"p-value {p:.3g} against {alpha}; judged by {_BASIS[measured.basis]}"
    return _with(measured, "pass", "as_far_as_honest", text, [])


_BASIS: dict[Basis, str] = {
    "pair": "recordings of this pair of hardware",
    "configuration": "recordings of other hardware in this configuration",
    "model": "recordings of this model in other configurations",
    "architecture": "recordings of other models of this architecture",
}


def _forger(case: _Case) -> float | None:
    """p-value of a forger without a model: from this claim, or as the profile recorded it."""
    nulls = case.nulls
    near = [nonce for nonce in case.compared.valid if nonce in case.guess]
    if len(near) >= MIN_NONCES:
        ours = np.array([case.computed.vectors[nonce] for nonce in near], dtype=np.float64)
        guesses = np.array([case.guess[nonce] for nonce in near])
        found = _p_of(nulls, np.linalg.norm(ours - guesses, axis=1))
        return float(combined({name: np.asarray(entry[1]) for name, entry in found.items()}))
    recorded = [r.zero_knowledge.bulk for r in nulls.records if r.zero_knowledge is not None]
    if not recorded:
        return None
    return float(nulls.statistics["bulk"].p_upper(min(recorded), case.compared.n))


def _with(
    measured: CalibratedVerdict, verdict: Outcome, code: str, text: str, notes: list[Reason]
) -> CalibratedVerdict:
    return replace(measured, verdict=verdict, reasons=(Reason(code, text), *notes))
