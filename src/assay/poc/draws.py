"""Subsets of a labelled pair's nonces, judged many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from assay.poc.constants import INVALID_DISTANCE
from assay.poc.nulls import Nulls, combined
from assay.poc.own_part import coverage, own_terms
from assay.poc.settings import StatTest
from assay.poc.spread import Floats, bulk_and_tail
from assay.poc.statistics import Rows, usable_rows
from assay.poc.table import LabelledSet, hidden_size_of
from assay.poc.unit import is_unit
from assay.poc.verdict import mismatch_p_value

Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class NonceTerms:
    """Per common nonce ``[N]``: distance, and the two terms of the own part where measured."""

    nonces: tuple[int, ...]
    distances: Floats
    own: tuple[Floats, Floats] | None

    def __len__(self) -> int:
        return len(self.nonces)

    def only(self, wanted: frozenset[int]) -> NonceTerms:
        keep = [place for place, nonce in enumerate(self.nonces) if nonce in wanted]
        own = None if self.own is None else (self.own[0][keep], self.own[1][keep])
        return NonceTerms(tuple(self.nonces[i] for i in keep), self.distances[keep], own)

    def without(self, known: frozenset[int]) -> NonceTerms:
        return self.only(frozenset(self.nonces) - known)


def terms(claimed: LabelledSet, computed: LabelledSet, predicted: dict[int, Rows]) -> NonceTerms:
    """``predicted``: what the claim's own vectors say of each nonce; empty where unknown."""
    theirs = claimed.vectors.vectors
    ours = dict(zip(*usable_rows(computed.vectors), strict=True))
    common = [nonce for nonce in ours if nonce in theirs and is_unit(theirs[nonce])]
    a = np.array([theirs[nonce] for nonce in common], dtype=np.float64)
    b = np.array([ours[nonce] for nonce in common])
    distances = np.minimum(np.linalg.norm(a - b, axis=1), INVALID_DISTANCE)
    hidden = hidden_size_of(computed.labels["model"])
    own = None
    if predicted and hidden is not None:
        shown = coverage(len(predicted), b.shape[1], hidden)
        if shown >= 1:
            own = own_terms(a, b, np.array([predicted[nonce] for nonce in common]), shown)
    return NonceTerms(tuple(common), distances, own)


@lru_cache(maxsize=64)
def subsets(total: int, n: int, draws: int) -> Index:
    """``[draws, n]`` places, without repeats inside a draw; the same for the same numbers."""
    return np.argsort(np.random.default_rng(n).random((draws, total)), axis=1)[:, :n]


def p_values(nulls: Nulls, distances: Floats, own: Floats | None = None) -> Floats:
    """Combined p ``[draws]`` of ``distances [draws, n]`` and ``own [draws]`` (weighted Bonferroni)."""
    n = distances.shape[-1]
    near, far = bulk_and_tail(distances)
    each = {
        "bulk": nulls.statistics["bulk"].p_upper(near, n),
        "tail": nulls.statistics["tail"].p_upper(far, n),
    }
    if own is not None and "own" in nulls.statistics:
        each["own"] = nulls.statistics["own"].p_upper(own, n)
    if nulls.mixture is not None:
        each["mixture"] = nulls.mixture.p_upper(distances)
    return combined(each)


def own_values(found: NonceTerms, index: Index) -> Floats | None:
    """ln of the ratio of sums over each drawn subset; None where the own part is not measured."""
    if found.own is None:
        return None
    above, below = found.own
    with np.errstate(divide="ignore"):
        values: Floats = np.log(above[index].sum(axis=1) / below[index].sum(axis=1))
    return np.maximum(values, -20.0)


def count_rule(distances: Floats, test: StatTest) -> npt.NDArray[np.bool_]:
    """Whether the count of mismatches convicts, ``[draws]``."""
    n = distances.shape[-1]
    mismatches = (distances > test.dist_threshold).sum(axis=-1)
    table = np.array([mismatch_p_value(m, n, test.p_mismatch) < test.alpha for m in range(n + 1)])
    convicted: npt.NDArray[np.bool_] = table[mismatches]
    return convicted
