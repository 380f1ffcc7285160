"""Vectorised scoring against a plain-Python loop, in one run on one machine.

    python bench/scoring.py [--positions 50000] [--k 5] [--repeats 9]

Both sides compute the same from the same positions: the published distance of each position, both
similarities, top-1 agreement and the positions above the ceiling; the outputs must agree to 1e-9.
Two ratios are printed. *Kernel*: arrays that are ready, against the loop over the claim's own
objects, which are all it needs. *End to end*: building the arrays counts too; it walks the same
objects in Python, so this ratio is small, and it is what a single claim feels. Times are CPU
seconds, the least of several repeats, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from assay.claims.positions import Position, TopEntry
from assay.scoring.arrays import ScoreArrays, build_arrays
from assay.scoring.signals import above_ceiling, top1_agreement
from assay.scoring.value import published_distances, similarity_first, similarity_second

NOISE = 0.002
"""Relative noise of the replay's log probabilities: what another device of the same dtype makes of it."""
AGREEMENT = 1e-9
REQUIRED_RATIO = 100

T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    distances: Sequence[float]
    first: float
    second: float
    top1: float
    above: int


def make_sides(count: int, k: int, seed: int = 1) -> tuple[list[Position], list[Position]]:
    """A claim and an honest replay of it."""
    rng = random.Random(seed)
    claim, replay = [], []
    for _ in range(count):
        ids = rng.sample(range(50_000), k + 2)
        gaps = [rng.expovariate(0.7) for _ in ids]
        values = [-0.3 - sum(gaps[:rank]) for rank in range(len(ids))]
        claim.append(_position(ids, values, k))
        replay.append(_position(ids, [v * (1 + rng.gauss(0, NOISE)) for v in values], k))
    return claim, replay


def _position(ids: list[int], values: list[float], k: int) -> Position:
    ranked = sorted(zip(ids, values, strict=True), key=lambda item: -item[1])[:k]
    top = tuple(TopEntry(key=key, logprob=value) for key, value in ranked)
    return Position(token=top[0].key, logprob=top[0].logprob, top=top)


def plain(claim: Sequence[Position], replay: Sequence[Position]) -> Scores:
    """The published formulas in plain Python, one position after the other."""
    found: list[float] = []
    agreed = above = 0
    sum_of_terms = 0.0
    for ours, theirs in zip(claim, replay, strict=True):
        claimed = {entry.key: entry.logprob for entry in ours.top}
        ordered = sorted(claimed.values())
        smallest = ordered[0]
        second = ordered[1] if len(ordered) > 1 else smallest - 100
        following = smallest - (second - smallest)
        total = 0.0
        best_key, best = None, -math.inf
        for entry in theirs.top:
            v = entry.logprob
            o = claimed.get(entry.key, following)
            term = abs(v - o) / (1e-6 + abs(v) + abs(o)) / 2
            total += term if math.isfinite(term) else 0.5
            if v > best:
                best_key, best = entry.key, v
        sum_of_terms += total
        distance = total / len(theirs.top)
        found.append(distance)
        above += distance > 0.30
        agreed += max(claimed, key=claimed.__getitem__) == best_key
    count = len(found)
    mean = max(sum(found) / count - 0.10 / math.sqrt(count), sum(found) / max(count, 100))
    k = len(claim[0].top)
    first = max(0.0, 1 - sum_of_terms / (max(100, count) * k))
    return Scores(found, first, 1 - mean, agreed / count, above)


def vectorised(arrays: ScoreArrays) -> Scores:
    distances = published_distances(arrays)
    return Scores(
        distances,  # type: ignore[arg-type]
        similarity_first(arrays, distances),
        similarity_second(distances),
        top1_agreement(arrays),
        above_ceiling(distances).count,
    )


def least_cpu_seconds(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Least CPU time of ``repeats`` runs, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return min(times), result


def check_equal(one: Scores, other: Scores) -> float:
    """Largest difference of two results; exits with a message above 1e-9."""
    worst = float(np.abs(np.asarray(one.distances) - np.asarray(other.distances)).max())
    for name in ("first", "second", "top1", "above"):
        worst = max(worst, abs(getattr(one, name) - getattr(other, name)))
    if not worst <= AGREEMENT:
        sys.exit(f"the outputs differ by {worst}; a ratio would mean nothing")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--positions", type=int, default=50_000)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    claim, replay = make_sides(options.positions, options.k)
    loop_s, by_loop = least_cpu_seconds(lambda: plain(claim, replay), max(3, options.repeats // 3))
    build_s, arrays = least_cpu_seconds(
        lambda: build_arrays(claim, replay), max(3, options.repeats // 3)
    )
    kernel_s, by_arrays = least_cpu_seconds(lambda: vectorised(arrays), options.repeats)
    worst = check_equal(by_loop, by_arrays)
    aligned = float((arrays.claim_keys == arrays.replay_keys).all(axis=1).mean())
    count = options.positions
    print(f"{count} positions, k = {options.k}, {aligned:.1%} list the same ids in the same order")
    print(f"outputs agree to {worst:.1e}")
    for name, seconds in (
        ("plain-Python loop", loop_s),
        ("array building", build_s),
        ("vectorised kernel", kernel_s),
    ):
        print(f"{name:18} {seconds / count * 1e9:9.1f} ns/position {count / seconds:14,.0f}/s")
    ratio = loop_s / kernel_s
    print(f"kernel ratio      {ratio:8.1f}x (required: {REQUIRED_RATIO}x)")
    print(f"end-to-end ratio  {loop_s / (build_s + kernel_s):8.1f}x")
    return 0 if ratio >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
