"""From a profile's records to the null of each statistic for one claim.

A claim's statistic differs from what the profile saw for three reasons, in the order of their size:
another pair of hardware than those recorded (or another configuration of the model), another
recording of the same pair, and the finite number of nonces. The first dominates, and more nonces do
not make it smaller; so a null is a t distribution whose variance is the sum of the three, with the
degrees of freedom of the first. The spread between pairs is the moderated variance of Smyth (2004):
that of the claim's own configuration, drawn towards the one pooled over all of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr  # type: ignore[import-untyped]

from assay.poc.constants import (
    CONFIGURATION_SPREAD,
    P_FLOOR,
    PAIR_SPREAD,
    PRIOR_DOF,
    SESSION_SPREAD,
    WEIGHTS,
)
from assay.poc.profile import Name, PairRecord, Profile, VectorKey
from assay.poc.spread import Floats, MixtureScore

Basis = Literal["pair", "configuration", "model", "architecture"]
"""What a null rests on: records of the claim's own pair of hardware; of other pairs in the same
configuration; of other configurations of the same model; of other models of one architecture, whose
rounding noise grows through the same layers."""

_SESSION_DOF = 30.0


@dataclass(frozen=True)
class Null:
    """t distribution of a statistic: ``centre``, ``spread`` between recordings, ``variance_n`` / n
    over nonces, ``dof``. ``pairs`` records went into it."""

    centre: float
    spread: float
    variance_n: float
    dof: float
    pairs: int

    def p_upper(self, value: npt.ArrayLike, n: int) -> Floats:
        """P[statistic of ``n`` nonces >= ``value``], never below P_FLOOR."""
        scale = np.sqrt(self.spread**2 + self.variance_n / n)
        t = (np.asarray(value, dtype=np.float64) - self.centre) / scale
        p: Floats = np.maximum(stdtr(self.dof, -t), P_FLOOR)
        return p

    @property
    def words(self) -> str:
        """The method, for a report."""
        return (
            f"t, {self.dof:g} degrees of freedom, centre {self.centre:.3f}, spread "
            f"{self.spread:.3f} between recordings, from {self.pairs} pairs"
        )


@dataclass(frozen=True)
class MixtureNull:
    """Mean mixture score of n nonces against the pair's own distances (``m`` of them)."""

    score: MixtureScore
    m: int
    drift: float

    def p_upper(self, distances: npt.ArrayLike) -> Floats:
        """For ``distances [..., n]``: P[mean score >= theirs], never below P_FLOOR.

        The variance counts the claim's nonces, the profile's, and a drift of all distances by
        the spread between recordings of one pair.
        """
        distances = np.asarray(distances, dtype=np.float64)
        n = distances.shape[-1]
        mean = self.score.scores(distances).mean(axis=-1)
        drift = self.score.shifted_mean(self.drift) - self.score.mean
        scale = np.sqrt(self.score.variance * (1 / n + 1 / self.m) + drift**2)
        t = (mean - self.score.mean) / max(scale, 1e-12)
        p: Floats = np.maximum(stdtr(_SESSION_DOF, -t), P_FLOOR)
        return p

    @property
    def words(self) -> str:
        """The method, for a report."""
        return (
            f"mean likelihood-ratio score against {self.m} honest nonces of this pair, "
            f"t, {_SESSION_DOF:g} degrees of freedom, drift {self.drift:.3f}"
        )


def combined(p_values: Mapping[str, Floats]) -> Floats:
    """One p-value from those of several statistics: weighted Bonferroni, valid whatever their
    dependence. Weights are WEIGHTS, shared out among the statistics given."""
    total = sum(WEIGHTS[name] for name in p_values)
    scaled = [p * (total / WEIGHTS[name]) for name, p in p_values.items()]
    least: Floats = np.clip(np.min(scaled, axis=0), P_FLOOR, 1.0)
    return least


@dataclass(frozen=True)
class Nulls:
    """What a claim of one key and one pair of hardware is judged by."""

    basis: Basis
    statistics: dict[Name, Null]
    mixture: MixtureNull | None
    records: tuple[PairRecord, ...]


def nulls_for(
    profile: Profile,
    key: VectorKey,
    hardware: tuple[str | None, str | None],
    prior_dof: Mapping[str, float] = PRIOR_DOF,
) -> Nulls | None:
    """The nulls for a claim, from the narrowest records there are; None when there are none.

    ``prior_dof`` differs from the constant only where its effect is measured.

    Pairs whose two recordings are bit-equal count for nothing here: another batch size is enough
    to end that, and distances then jump to what any two engines have.
    """
    usable = [record for record in profile.records if record.informative]
    same = [record for record in usable if record.key == key]
    pair = tuple(sorted(name.lower() for name in hardware if name))
    own = [r for r in same if tuple(sorted(name.lower() for name in r.hardware)) == pair]
    pool = _Pool(_distinct(usable), prior_dof)
    if own:
        return _seen(_distinct(own), pool)
    if same:
        return _build("configuration", _distinct(same), pool, _configuration_null)
    others = [record for record in pool.records if record.key.model == key.model]
    if others:
        return _build("model", others, pool, _wider_null)
    others = [record for record in pool.records if record.key.architecture == key.architecture]
    if others and key.architecture is not None:
        return _build("architecture", others, pool, _wider_null)
    return None


@dataclass(frozen=True)
class _Pool:
    """All records that can be pooled, and what the pooled spread counts for."""

    records: list[PairRecord]
    prior_dof: Mapping[str, float]

    def having(self, name: Name) -> _Pool:
        some = [record for record in self.records if name in record.statistics]
        return _Pool(some, self.prior_dof)


def _distinct(records: list[PairRecord]) -> list[PairRecord]:
    """Without pairs that repeat another bit by bit: engines that are equal are one engine."""
    return list({(r.key, min(r.sets), max(r.sets)): r for r in records}.values())


def _seen(own: list[PairRecord], pool: _Pool) -> Nulls:
    nulls = _build("pair", own, pool, _pair_null)
    edges = np.mean([record.log_quantiles for record in own], axis=0)
    mixture = MixtureNull(
        MixtureScore(tuple(float(edge) for edge in edges)),
        m=sum(record.n for record in own),
        drift=_session_spread("bulk", own, pool),
    )
    return Nulls(nulls.basis, nulls.statistics, mixture, nulls.records)


_Maker = Callable[[Name, list[PairRecord], _Pool], Null]


def _build(basis: Basis, records: list[PairRecord], pool: _Pool, make: _Maker) -> Nulls:
    names: tuple[Name, ...] = ("bulk", "tail", "own")
    found: dict[Name, Null] = {}
    for name in names:
        having = [record for record in records if name in record.statistics]
        if having:
            found[name] = make(name, having, pool.having(name))
    return Nulls(basis, found, None, tuple(records))


def _pair_null(name: Name, own: list[PairRecord], pool: _Pool) -> Null:
    values = _values(name, own)
    variance_n = _variance_n(name, own)
    nonces = sum(record.statistics[name].n for record in own)
    between = _session_spread(name, own, pool) ** 2 + variance_n / nonces
    return Null(float(np.mean(values)), float(np.sqrt(between)), variance_n, _SESSION_DOF, len(own))


def _session_spread(name: Name, own: list[PairRecord], pool: _Pool) -> float:
    """Between one more recording of a pair and the mean of those in the profile."""
    variance = max(SESSION_SPREAD**2, _within(name, _by_pair(pool.records))[0])
    return float(np.sqrt(variance * (1 + 1 / len(own))))


def _configuration_null(name: Name, same: list[PairRecord], pool: _Pool) -> Null:
    variance, dof = _moderated(name, same, pool)
    between = variance * (1 + 1 / max(1, _recordings(same) - 1))
    return Null(
        float(np.mean(_values(name, same))),
        float(np.sqrt(between)),
        _variance_n(name, same),
        dof,
        len(same),
    )


def _wider_null(name: Name, others: list[PairRecord], pool: _Pool) -> Null:
    configurations = list(_by_key(others).values())
    means = [float(np.mean(_values(name, records))) for records in configurations]
    # Spread of configurations of one architecture, pooled over architectures.
    pair = _pooled_pair_variance(name, pool)
    groups: dict[str, list[float]] = {}
    for key, records in _by_key(pool.records).items():
        groups.setdefault(key.architecture or key.model, []).append(
            float(np.mean(_values(name, records)))
        )
    pooled, free = _pool([np.asarray(group) for group in groups.values()])
    prior = pool.prior_dof[name]
    lacking = max(0.0, prior - free)
    pooled = (pooled * free + CONFIGURATION_SPREAD**2 * lacking) / (free + lacking)
    seen = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
    dof = prior + len(means) - 1
    variance = (prior * pooled + (len(means) - 1) * seen) / dof
    between = (variance + pair) * (1 + 1 / len(means))
    return Null(
        float(np.mean(means)), float(np.sqrt(between)), _variance_n(name, others), dof, len(others)
    )


def _moderated(name: Name, records: list[PairRecord], pool: _Pool) -> tuple[float, float]:
    """Variance between pairs and its degrees of freedom (Smyth 2004, s tilde)."""
    pooled, prior = _pooled_pair_variance(name, pool), pool.prior_dof[name]
    free = _degrees(records)
    if free < 1:
        return pooled, prior
    seen = float(np.var(_values(name, records), ddof=1))
    return (prior * pooled + free * seen) / (prior + free), prior + free


def _pooled_pair_variance(name: Name, pool: _Pool) -> float:
    variance, free = _within(name, _by_key(pool.records).values())
    # Few pairs in all: the constant stands in for the degrees of freedom that are lacking.
    lacking = max(0.0, pool.prior_dof[name] - free)
    return (variance * free + PAIR_SPREAD**2 * lacking) / (free + lacking)


def _within(name: Name, groups: Iterable[Sequence[PairRecord]]) -> tuple[float, int]:
    """Pooled variance inside ``groups`` and its degrees of freedom; (0, 0) when there are none."""
    total, free = 0.0, 0
    for group in groups:
        degrees = _degrees(group)
        if degrees > 0:
            total += degrees * float(np.var(_values(name, group), ddof=1))
            free += degrees
    return (total / free if free else 0.0), free


def _pool(groups: list[Floats]) -> tuple[float, int]:
    free = sum(len(group) - 1 for group in groups)
    total = sum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
    return (total / free if free else 0.0), free


def _by_key(records: Iterable[PairRecord]) -> dict[VectorKey, list[PairRecord]]:
    groups: dict[VectorKey, list[PairRecord]] = {}
    for record in records:
        groups.setdefault(record.key, []).append(record)
    return groups


def _by_pair(records: Iterable[PairRecord]) -> list[list[PairRecord]]:
    groups: dict[tuple[VectorKey, tuple[str, str]], list[PairRecord]] = {}
    for record in records:
        groups.setdefault((record.key, record.hardware), []).append(record)
    return list(groups.values())


def _degrees(records: Sequence[PairRecord]) -> int:
    """Degrees of freedom of a variance between ``records``.

    m recordings give m (m - 1) / 2 pairs, which are far from independent: they count for their
    recordings less two, and a single pair for nothing.
    """
    return min(_recordings(records) - 2, len(records) - 1)


def _values(name: Name, records: Sequence[PairRecord]) -> Floats:
    return np.array([record.statistics[name].value for record in records])


def _variance_n(name: Name, records: Sequence[PairRecord]) -> float:
    return float(np.mean([record.statistics[name].variance_n for record in records]))


def _recordings(records: Sequence[PairRecord]) -> int:
    return len({digest for record in records for digest in record.sets})
