"""How often honest claims fall below a stated p-value, by simulation: the table of docs/calibration.md.

    python bench/tail_rates.py [--profiles 1500] [--json]

Honest claims are drawn from laws whose tail is known; a profile of N of them gives the critical value of
a stated rate (``scoring/tail.py``); the true chance of a claim beyond it, averaged over profiles, is
printed in units of that rate. 1 is exact, below errs towards innocence. Numpy alone, about a minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.scoring.tail import critical_value

Floats = NDArray[np.float64]
RNG = np.random.default_rng(0)
LAWS: dict[str, Callable[[int], Floats]] = {
    "normal": lambda n: RNG.normal(size=n),
    "gamma 8": lambda n: RNG.gamma(8, size=n),
    "gamma 1": lambda n: RNG.gamma(1, size=n),
    "lognormal 0.3": lambda n: np.exp(0.3 * RNG.normal(size=n)),
    "lognormal 0.7": lambda n: np.exp(0.7 * RNG.normal(size=n)),
    "lognormal 1.0": lambda n: np.exp(RNG.normal(size=n)),
    "Student 5": lambda n: RNG.standard_t(5, size=n),
}
SIZES = (20, 50, 120, 500)
RATES = (1e-2, 1e-3, 1e-4)
REFERENCE = 1_000_000
"""Draws that stand for the law itself."""


def rates(law: Callable[[int], Floats], claims: int, profiles: int) -> dict[float, float]:
    """True chance over stated rate, for each of ``RATES``."""
    truth = np.sort(law(REFERENCE))
    found: dict[float, list[float]] = {rate: [] for rate in RATES}
    for _ in range(profiles):
        honest = law(claims)
        for rate in RATES:
            beyond = len(truth) - np.searchsorted(truth, critical_value(honest, rate))
            found[rate].append(float(beyond) / len(truth))
    return {rate: float(np.mean(values)) / rate for rate, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = {
        claims: {name: rates(law, claims, arguments.profiles) for name, law in LAWS.items()}
        for claims in SIZES
    }
    if arguments.json:
        print(json.dumps(table, indent=2))
        return
    for rate in RATES:
        print(f"\nstated {rate:g}: true chance over stated\n")
        print("| honest claims | " + " | ".join(LAWS) + " |")
        print("|---" * (len(LAWS) + 1) + "|")
        for claims, row in table.items():
            cells = " | ".join(f"{row[name][rate]:.2f}" for name in LAWS)
            print(f"| {claims} | {cells} |")


if __name__ == "__main__":
    main()
