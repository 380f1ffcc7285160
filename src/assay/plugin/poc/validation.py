"""A verdict on claimed vectors by the ones just recomputed, as the wire wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import ClaimError, SettingsError
from assay.plugin.poc.failures import EngineFaultError, RefusedError
from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.artifacts import decode_vector
from assay.poc.bodies import Generate, Validation
from assay.poc.compare import compare
from assay.poc.constants import MAX_EXCLUDED_FRACTION
from assay.poc.settings import StatTest, stat_test

BASELINE_NONCES = 2_048
"""The zero-knowledge baseline hashes every hidden dimension of every nonce: 2048 x 8192 take about
a second. Larger validations go without it; the verdict itself needs no more than a count."""

Row = npt.NDArray[np.float32]


def check_validation(request: Generate) -> StatTest:
    """The test to judge by. RefusedError 400: nothing to judge by (F54), nonce sets that differ, a
    nonce twice (its weight would count twice), or a ``stat_test`` that cannot be used."""
    seen = set(request.nonces)
    if len(seen) != len(request.nonces):
        raise RefusedError(400, "nonces: a nonce is given twice; each counts once")
    try:
        test = stat_test(request.stat_test)
    except SettingsError as error:
        raise RefusedError(400, str(error)) from error
    if request.validation is None:
        return test
    claimed = [artifact.nonce for artifact in request.validation.artifacts]
    if not claimed:
        raise RefusedError(400, "validation.artifacts: empty; there is nothing to validate")
    if len(set(claimed)) != len(claimed):
        raise RefusedError(400, "validation.artifacts: a nonce is given twice; each counts once")
    if set(claimed) != seen:
        one = min(set(claimed) ^ seen)
        raise RefusedError(
            400,
            f"nonces and validation.artifacts are not of the same nonces: {one} is in one only",
        )
    return test


def validated(
    challenge: Challenge,
    validation: Validation,
    computed: Mapping[int, Row],
    test: StatTest,
    profile: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a completed validation. Takes CPU time; run it in a thread.

    ``n_total`` counts the nonces compared, so that ``p_value`` follows from the answer. A
    ``verdict`` of fail is what ``fraud_detected`` says. Raises EngineFaultError when too few nonces
    could be recomputed for any answer: "not fraud" would be a pass that nobody looked at (F55).
    """
    claimed = {artifact.nonce: _claimed(artifact.vector_b64) for artifact in validation.artifacts}
    missing = len(claimed) - len(computed)
    if missing > MAX_EXCLUDED_FRACTION * len(claimed):
        raise EngineFaultError(
            f"{missing} of {len(claimed)} nonces gave no finite vector here; there is no verdict"
        )
    hidden = profile.get("hidden_size")
    result = compare(
        ArtifactSet(challenge, claimed, "validation.artifacts", validation.profile),
        ArtifactSet(challenge, computed, "this engine", profile),
        test,
        hidden_size=int(hidden) if hidden and len(claimed) <= BASELINE_NONCES else None,
    )
    plain = result.as_json()
    return {
        "n_total": plain["n_compared"],
        "n_mismatch": plain["n_mismatch"],
        "mismatch_nonces": list(plain["mismatch_nonces"]),
        "p_value": plain["p_value"],
        "fraud_detected": result.verdict.verdict == "fail",
        "n_excluded": plain["n_excluded"],
        "excluded_nonces": list(plain["excluded_nonces"]),
        "verdict": plain["verdict"],
        "reasons": plain["reasons"],
        "distances": plain["distances"],
        "mean_distance": plain["mean_distance"],
        "stat_test": plain["settings"],
        "profile": dict(profile),
        **{name: plain[name] for name in ("zero_knowledge", "unexplained") if name in plain},
    }


def _claimed(text: str) -> Row:
    """A claimed vector; text that is none is a vector of no numbers, so a mismatch. It is the
    claim's content: refusing the request would let it off (case 46)."""
    try:
        return decode_vector(text)
    except ClaimError:
        return np.empty(0, dtype=np.float32)
