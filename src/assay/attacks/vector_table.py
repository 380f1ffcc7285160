"""Attack by statistic for proof of compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.attacks.figures import Rate
from assay.attacks.forge import porosity
from assay.attacks.servers import SERVED_NAME
from assay.attacks.vectors import HIDDEN_SIZE, SEQ_LEN, VectorAttack
from assay.poc.artifact_file import ArtifactSet
from assay.poc.calibrate import calibrate
from assay.poc.calibrated import judge_by_profile
from assay.poc.calibrated_result import CalibratedVerdict
from assay.poc.compare import compare
from assay.poc.constants import K_DIM
from assay.poc.profile import Profile, VectorKey
from assay.poc.settings import NETWORK, StatTest
from assay.poc.statistics import predicted_vectors, unexplained_share

POROUS: float = 2.0
"""A set whose largest nonce is above this many times the honest miner's was searched: a miner that
drops every second nonce would already waste half its work."""


KEY = VectorKey(model=SERVED_NAME, seq_len=SEQ_LEN, k_dim=K_DIM)
ENGINES = ("cpu float32", "cpu bfloat16")
"""The two honest kinds of engine a profile is made from, in the place of hardware."""


@dataclass(frozen=True)
class VectorRow:
    """One set of vectors against the validator's own.

    ``mean_distance`` is over the nonces compared; ``mismatches`` counts those beyond the network's
    threshold; ``verdict`` is the count rule's. ``unexplained`` is the share of
    ``poc/statistics.py`` (0 equal, 1 guessed without the model); ``porosity`` as in ``forge``;
    ``by_profile`` is the calibrated verdict, where a profile was given.
    """

    attack: VectorAttack
    mean_distance: float | None
    mismatches: Rate
    verdict: str
    unexplained: float | None
    porosity: float | None
    by_profile: CalibratedVerdict | None = None

    @property
    def porous(self) -> bool:
        return self.porosity is not None and self.porosity > POROUS


def honest_profile(ours: ArtifactSet, other: ArtifactSet) -> Profile:
    """A profile for vectors from two honest engines' answers to another block.

    ``ours`` are the validator's (float32), ``other`` those of a bfloat16 engine. Raises
    SettingsError when they share too few nonces.
    """
    return calibrate((ours, other), (KEY, KEY), ENGINES, HIDDEN_SIZE)


def vector_row(
    attack: VectorAttack,
    claimed: ArtifactSet,
    computed: ArtifactSet,
    profile: Profile | None = None,
    test: StatTest = NETWORK,
) -> VectorRow:
    """The figures of one set. ``profile`` judges it as vectors of an honest bfloat16 engine.

    Raises ClaimError when the two are of different challenges.
    """
    by_profile = None
    if profile is not None:
        by_profile = judge_by_profile(
            claimed,
            computed,
            profile,
            key=KEY,
            hardware=(ENGINES[1], ENGINES[0]),
            hidden_size=HIDDEN_SIZE,
        )
    result = compare(claimed, computed, test, hidden_size=HIDDEN_SIZE).verdict
    share = unexplained_share(claimed, computed, predicted_vectors(computed, HIDDEN_SIZE))
    return VectorRow(
        attack=attack,
        mean_distance=result.mean_distance,
        mismatches=Rate(result.n_mismatch, result.n_compared),
        verdict=result.verdict,
        unexplained=None if share is None else share.share,
        porosity=porosity(_mined(list(claimed.vectors))),
        by_profile=by_profile,
    )


def _mined(nonces: Sequence[int]) -> list[int]:
    """Counted from the first one sent: gaps are what a search leaves, wherever it began."""
    first = min(nonces)
    return [nonce - first for nonce in nonces]
