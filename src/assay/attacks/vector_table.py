"""Attack by statistic for proof of compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.attacks.figures import Rate
from assay.attacks.forge import porosity
from assay.attacks.vectors import HIDDEN_SIZE, VectorAttack
from assay.poc.artifact_file import ArtifactSet
from assay.poc.compare import compare
from assay.poc.settings import NETWORK, StatTest
from assay.poc.statistics import predicted_vectors, unexplained_share

POROUS: float = 2.0
"""A set whose largest nonce is above this many times the honest miner's was searched: a miner that
drops every second nonce would already waste half its work."""


@dataclass(frozen=True)
class VectorRow:
    """One set of vectors against the validator's own.

    ``mean_distance`` is over the nonces compared; ``mismatches`` counts those beyond the network's
    threshold; ``verdict`` is the count rule's. ``unexplained`` is the share of
    ``poc/statistics.py`` (0 equal, 1 guessed without the model); ``porosity`` as in ``forge``.
    """

    attack: VectorAttack
    mean_distance: float | None
    mismatches: Rate
    verdict: str
    unexplained: float | None
    porosity: float | None

    @property
    def porous(self) -> bool:
        return self.porosity is not None and self.porosity > POROUS


def vector_row(
    attack: VectorAttack, claimed: ArtifactSet, computed: ArtifactSet, test: StatTest = NETWORK
) -> VectorRow:
    """The figures of one set. Raises ClaimError when the two are of different challenges."""
    result = compare(claimed, computed, test, hidden_size=HIDDEN_SIZE).verdict
    share = unexplained_share(claimed, computed, predicted_vectors(computed, HIDDEN_SIZE))
    return VectorRow(
        attack=attack,
        mean_distance=result.mean_distance,
        mismatches=Rate(result.n_mismatch, result.n_compared),
        verdict=result.verdict,
        unexplained=None if share is None else share.share,
        porosity=porosity(_mined(list(claimed.vectors))),
    )


def _mined(nonces: Sequence[int]) -> list[int]:
    """Counted from the first one sent: gaps are what a search leaves, wherever it began."""
    first = min(nonces)
    return [nonce - first for nonce in nonces]
