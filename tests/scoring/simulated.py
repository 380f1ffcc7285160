"""Measured claims drawn from known laws: the truth that calibration is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from assay.claims.claim import EngineIdentity
from assay.scoring.measure import Measurement, summarise
from assay.scoring.profile import Group, Profile, ProfileKey
from assay.scoring.profile_key import Side
from assay.scoring.samples import record_of

MODE = "raw_logprobs"
ENGINE = EngineIdentity(model="m", engine_version="0.32.0", runner="v1", dtype="bfloat16")


@dataclass(frozen=True)
class Law:
    """Claims whose level varies between them (lognormal, ``between``), positions within.

    ``distance`` is the mean value distance, ``mismatch`` the mean rate of other draws.
    """

    distance: float = 0.006
    mismatch: float = 0.02
    between: float = 0.3

    def draw(self, rng: np.random.Generator, name: str, length: int = 64) -> Measurement:
        level = float(np.exp(self.between * rng.normal()))
        values = np.minimum(0.5, self.distance * level * rng.gamma(1.2, 1 / 1.2, size=length))
        other = (rng.random(length) < min(0.95, self.mismatch * level)).astype(float)
        margins = other * rng.exponential(0.1, size=length)
        series = {
            "value_distance": values,
            "value_peak": values,
            "choice_mismatch": other,
            "choice_margin": margins,
        }
        return measurement(name, series)


HONEST = Law()
INT4 = Law(distance=0.087, mismatch=0.38)
INT8 = Law(distance=0.0115, mismatch=0.05)


def measurement(name: str, series: dict[str, np.ndarray], path: str = "decode") -> Measurement:
    return Measurement(
        claim_id=name,
        path=path,
        mode=MODE,
        positions=max(map(len, series.values()), default=0),
        series={key: tuple(map(float, values)) for key, values in series.items()},
        statistics={key: summarise(key, values) for key, values in series.items()},
    )


@cache
def draws(law: Law, count: int, seed: int, length: int = 64) -> tuple[Measurement, ...]:
    """``count`` claims; the same arguments give the same claims."""
    rng = np.random.default_rng(seed)
    return tuple(law.draw(rng, f"{seed}-{index}", length) for index in range(count))


def key(path: str = "decode", hardware: str | None = "A") -> ProfileKey:
    side = Side.of(ENGINE.model_copy(update={"hardware": hardware}))
    return ProfileKey(path=path, mode=MODE, executor=side, validator=side)


def group(measured: Sequence[Measurement], hardware: str | None = "A") -> Group:
    return Group(key=key(measured[0].path, hardware), records=tuple(record_of(m) for m in measured))


def profile(
    measured: Sequence[Measurement], hardware: str | None = "A", name: str = "m"
) -> Profile:
    path = measured[0].path
    return Profile(name=name, path=path, mode=MODE, groups=(group(measured, hardware),))
