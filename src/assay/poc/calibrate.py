"""Honest sets in, a profile out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from assay.errors import ClaimError, SettingsError
from assay.poc.artifact_file import ArtifactSet
from assay.poc.compare import check_same_challenge
from assay.poc.constants import DISTANCE_FLOOR, MIN_CALIBRATION_NONCES
from assay.poc.own_part import log_own_share
from assay.poc.profile import (
    Baseline,
    Name,
    PairRecord,
    Profile,
    Statistic,
    VectorKey,
    from_records,
    set_digest,
    width_of,
)
from assay.poc.spread import bulk_and_tail, log_quantiles, sampling_variances
from assay.poc.statistics import Rows, predicted_vectors, usable_rows
from assay.poc.unit import is_unit


def calibrate(
    sets: Sequence[ArtifactSet],
    keys: Sequence[VectorKey],
    hardware: Sequence[str],
    hidden_size: int | None = None,
) -> Profile:
    """A profile of every two of ``sets`` that answer one challenge under one key.

    ``hidden_size`` (default: what the files say) adds the shared-mean statistic and the
    zero-knowledge baseline. Raises SettingsError when no two sets make a pair.
    """
    sizes = [width_of(one) or hidden_size for one in sets]
    predicted = [
        {} if size is None or len(usable_rows(one)[0]) < 2 else predicted_vectors(one, size)
        for one, size in zip(sets, sizes, strict=True)
    ]
    records = []
    for i, j in combinations(range(len(sets)), 2):
        if keys[i] != keys[j] or not _one_challenge(sets[i], sets[j]):
            continue
        record = pair_record(
            (sets[i], sets[j]),
            keys[i],
            (hardware[i], hardware[j]),
            predicted=(predicted[i], predicted[j]),
            hidden_size=sizes[i],
        )
        if record is not None:
            records.append(record)
    if not records:
        raise SettingsError(
            "calibrate: no two of the sets have one challenge, one configuration and "
            f"{MIN_CALIBRATION_NONCES} nonces in common; record the same nonces on two engines"
        )
    return from_records(records)


def pair_record(
    sets: tuple[ArtifactSet, ArtifactSet],
    key: VectorKey,
    hardware: tuple[str, str],
    *,
    predicted: tuple[Mapping[int, Rows], Mapping[int, Rows]] = ({}, {}),
    hidden_size: int | None = None,
    only: frozenset[int] | None = None,
) -> PairRecord | None:
    """What two honest sets say; None when they share too few usable nonces.

    ``predicted`` are each set's ``predicted_vectors``; ``only`` restricts to some nonces.
    """
    order = sorted((0, 1), key=lambda side: (hardware[side], set_digest(sets[side])))
    sets = (sets[order[0]], sets[order[1]])
    predicted = (predicted[order[0]], predicted[order[1]])
    left, right = (dict(zip(*usable_rows(one), strict=True)) for one in sets)
    common = [
        nonce
        for nonce in left
        if nonce in right
        and is_unit(left[nonce])
        and is_unit(right[nonce])
        and (only is None or nonce in only)
    ]
    if len(common) < MIN_CALIBRATION_NONCES:
        return None
    a = np.array([left[nonce] for nonce in common])
    b = np.array([right[nonce] for nonce in common])
    distances = np.linalg.norm(a - b, axis=1)
    n = len(common)
    near, far = bulk_and_tail(distances)
    near_variance, far_variance = sampling_variances(distances)
    statistics: dict[Name, Statistic] = {
        "bulk": Statistic(value=float(near), variance_n=near_variance, n=n),
        "tail": Statistic(value=float(far), variance_n=far_variance, n=n),
    }
    identical = float(np.mean(distances < DISTANCE_FLOOR))
    baseline = None
    if hidden_size is not None and predicted[0] and predicted[1]:
        own = [
            log_own_share(mine, ours, common, guess, hidden_size)
            for mine, ours, guess in ((left, right, predicted[0]), (right, left, predicted[1]))
        ]
        measured = [one for one in own if one is not None]
        if len(measured) == 2 and identical < 0.5:
            statistics["own"] = Statistic(
                value=float(np.mean([one.value for one in measured])),
                variance_n=float(np.mean([one.variance_n for one in measured])),
                n=n,
            )
        guesses = np.array([predicted[1][nonce] for nonce in common])
        forged = np.linalg.norm(b - guesses, axis=1)
        forged_near, forged_far = bulk_and_tail(forged)
        baseline = Baseline(
            n=n,
            mean_distance=float(min(2.0, forged.mean())),
            bulk=float(forged_near),
            tail=float(forged_far),
        )
    return PairRecord(
        key=key,
        hardware=(hardware[order[0]], hardware[order[1]]),
        sets=(set_digest(sets[0]), set_digest(sets[1])),
        n=n,
        identical=identical,
        statistics=statistics,
        log_quantiles=log_quantiles(distances),
        zero_knowledge=baseline,
    )


def _one_challenge(a: ArtifactSet, b: ArtifactSet) -> bool:
    try:
        check_same_challenge(a, b)
    except ClaimError:
        return False
    return True
