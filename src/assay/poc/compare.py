"""Two artifact sets of one challenge: is it one challenge, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.errors import ClaimError, SettingsError
from assay.poc.artifact_file import ArtifactSet
from assay.poc.constants import PROFILE_IDENTITY
from assay.poc.settings import StatTest
from assay.poc.statistics import (
    Unexplained,
    ZeroKnowledge,
    predicted_vectors,
    unexplained_share,
    usable_rows,
    zero_knowledge,
)
from assay.poc.verdict import PocVerdict, judge, mismatch_p_value, withhold


@dataclass(frozen=True)
class Comparison:
    """A verdict and, where the model's hidden_size is known, what a forger without it reaches."""

    verdict: PocVerdict
    baseline: ZeroKnowledge | None = None
    unexplained: Unexplained | None = None

    def as_json(self) -> dict[str, Any]:
        plain = self.verdict.as_json()
        if self.baseline is not None:
            threshold = self.verdict.settings.dist_threshold
            plain["zero_knowledge"] = {
                "n": self.baseline.n,
                "mean_distance": self.baseline.mean_distance,
                "pass_rate": self.baseline.pass_rate(threshold),
            }
        if self.unexplained is not None:
            plain["unexplained"] = vars(self.unexplained)
        return plain


def compare(
    claimed: ArtifactSet,
    computed: ArtifactSet,
    test: StatTest,
    *,
    hidden_size: int | None = None,
    sampled: bool = False,
) -> Comparison:
    """Judge ``claimed`` by ``computed``, the recomputation.

    Raises ClaimError ``challenge_differs`` when the two were not made for the same challenge.
    A fail between engines whose profiles differ in a field the threshold is calibrated for is
    withheld (case 50), and so is a pass at a threshold that the zero-knowledge forger passes
    too. ``hidden_size`` defaults to what a file says.
    """
    check_same_challenge(claimed, computed)
    verdict = judge(
        claimed.vectors, computed.vectors, test, k=computed.challenge.k, sampled=sampled
    )
    if verdict.verdict == "fail" and (differs := profile_difference(claimed, computed)):
        verdict = withhold(
            verdict,
            "configuration_differs",
            f"the engines differ in {differs}; compare with an engine of the same configuration "
            "or calibrate a profile for this pair",
        )
    hidden_size = _hidden_size(claimed, computed, hidden_size)
    if hidden_size is None or len(usable_rows(computed)[0]) < 2:
        return Comparison(verdict)
    predicted = predicted_vectors(computed, hidden_size)
    baseline = zero_knowledge(computed, hidden_size, predicted)
    forged = mismatch_p_value(baseline.mismatches(test.dist_threshold), baseline.n, test.p_mismatch)
    if verdict.verdict == "pass" and forged >= test.alpha:
        verdict = withhold(
            verdict,
            "threshold_proves_nothing",
            f"vectors guessed from other nonces, with no model run, pass these settings too "
            f"({baseline.pass_rate(test.dist_threshold):.0%} within {test.dist_threshold}); "
            "use a smaller dist_threshold",
        )
    return Comparison(verdict, baseline, unexplained_share(claimed, computed, predicted))


def check_same_challenge(a: ArtifactSet, b: ArtifactSet) -> None:
    """Raise ClaimError naming the first field of the challenge that differs.

    A field that a file is silent about is not compared.
    """
    for name in ("block_hash", "public_key", "k", "seq_len", "model", "poc_stronger_rng"):
        left, right = getattr(a.challenge, name), getattr(b.challenge, name)
        if left is not None and right is not None and left != right:
            raise ClaimError(
                f"{left!r} in {a.name or 'the first set'}, {right!r} in "
                f"{b.name or 'the second set'}; vectors of two challenges are unrelated",
                code="challenge_differs",
                field=name,
            )


def profile_difference(a: ArtifactSet, b: ArtifactSet) -> str:
    """Identity fields both profiles give and that differ, as text; empty when there are none."""
    return ", ".join(
        f"{name} ({a.profile[name]} and {b.profile[name]})"
        for name in PROFILE_IDENTITY
        if name in a.profile and name in b.profile and a.profile[name] != b.profile[name]
    )


def _hidden_size(a: ArtifactSet, b: ArtifactSet, given: int | None) -> int | None:
    sizes = {size for size in (given, a.hidden_size, b.hidden_size) if size is not None}
    if len(sizes) > 1:
        raise SettingsError(f"hidden_size: {sorted(sizes)} given for one model; give one")
    size = next(iter(sizes), None)
    if size is not None and size < b.challenge.k:
        raise SettingsError(f"hidden_size: {size} is below k = {b.challenge.k}")
    return size
