"""Claims and replays made by hand, and the recorded pairs."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.claims.claim import Claim, Prompt, Replay
from assay.claims.positions import Position, TopEntry
from assay.claims.read_json import read_replay, read_response

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "inference"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="shared/data/inference is not beside the repository"
)
Listed = Sequence[tuple[int | str, float]]


def position(listed: Listed, token: int | str | None = None) -> Position:
    """A position that lists ``listed``; the first is chosen unless ``token`` says otherwise."""
    values = dict(listed)
    chosen = listed[0][0] if token is None else token
    return Position(
        token=chosen,
        logprob=values.get(chosen, -3.0),
        top=tuple(TopEntry(key=key, logprob=logprob) for key, logprob in listed),
    )


def distribution(seed: int, *, k: int = 5, noise: float = 0.0, sharpness: float = 1.0) -> Listed:
    """The top ``k`` of a random distribution over 40 ids; ``noise`` (nats) makes it a copy by other
    weights, the same seed and noise give the same numbers."""
    rng, other = random.Random(seed), random.Random(f"{seed} other weights")
    logits = [rng.gauss(0, 2.5 * sharpness) + noise * other.gauss(0, 1) for _ in range(40)]
    total = math.log(sum(map(math.exp, logits)))
    ranked = sorted(enumerate(logits), key=lambda item: -item[1])[:k]
    return [(100 + token, logit - total) for token, logit in ranked]


def positions(count: int, *, first: int = 0, **how: Any) -> tuple[Position, ...]:
    """``count`` positions whose chosen tokens do not depend on ``how``."""
    return tuple(
        position(distribution(first + index, **how), token=1000 + index) for index in range(count)
    )


def claim_of(held: tuple[Position, ...] | None, **fields: Any) -> Claim:
    fields = {"logprobs_mode": "raw_logprobs"} | fields
    return Claim(id="c", endpoint="chat", prompt=Prompt(token_ids=(1, 2)), positions=held, **fields)


def replay_of(held: tuple[Position, ...] | None, **fields: Any) -> Replay:
    fields = {"logprobs_mode": "raw_logprobs", "path": "decode"} | fields
    return Replay(id="r", positions=held, **fields)


@dataclass(frozen=True)
class Pair:
    """One row of labels.csv with its two answers."""

    row: dict[str, str]
    claim: Claim
    replay: Replay

    @property
    def name(self) -> str:
        return f"{self.row['case']} {self.row['validation']}"


@cache
def recorded_pairs() -> tuple[Pair, ...]:
    return tuple(_read_pairs())


def _read_pairs() -> Iterator[Pair]:
    with (DATA / "labels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            folder = DATA / row["case"]
            yield Pair(
                row,
                read_response((folder / row["inference"]).read_bytes()),
                read_replay((folder / row["validation"]).read_bytes(), "file"),
            )


def recorded_pair(case: str, validation: str = "validation-1.json") -> Pair:
    return next(
        pair
        for pair in recorded_pairs()
        if pair.row["case"].endswith(case) and pair.row["validation"] == validation
    )
