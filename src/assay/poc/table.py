"""Same-challenge pairs of a folder of labelled sets, and each set's zero-knowledge baseline."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from assay.errors import ClaimError
from assay.poc.artifact_file import ArtifactSet, read_artifact_file
from assay.poc.compare import check_same_challenge
from assay.poc.constants import HIDDEN_SIZES
from assay.poc.settings import NETWORK
from assay.poc.statistics import (
    NonceFrame,
    Rows,
    Unexplained,
    ZeroKnowledge,
    nonce_frame,
    predicted_vectors,
    unexplained_share,
    usable_rows,
    zero_knowledge,
)
from assay.poc.verdict import PocVerdict, judge

LABELS = "labels.csv"
_COLUMNS = (
    "path",
    "group",
    "model",
    "weights",
    "label",
    "gpu",
    "block_hash",
    "public_key",
    "seq_len",
)
# Reference recordings of the network: each is a group of its own, comparable with every set of
# the same model and challenge.
_REFERENCE_GROUP = "golden:"
_CHEAT = "fraud"


@dataclass(frozen=True)
class LabelledSet:
    """One row of labels.csv with its vectors and what their neighbours predict of them."""

    labels: dict[str, str]
    vectors: ArtifactSet
    predicted: dict[int, Rows]

    @property
    def is_cheat(self) -> bool:
        return self.labels["label"] == _CHEAT

    @property
    def title(self) -> str:
        return f"{self.labels['weights']} {self.labels['gpu']}".strip()


@dataclass(frozen=True)
class Pair:
    """``counts`` is the comparison at the first threshold; ``rates`` mismatch rates at all."""

    first: LabelledSet
    second: LabelledSet
    counts: PocVerdict
    rates: tuple[float, ...]
    unexplained: Unexplained | None

    @property
    def kind(self) -> str:
        if self.first.is_cheat != self.second.is_cheat:
            return "honest/cheat"
        return "cheat/cheat" if self.first.is_cheat else "honest/honest"

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.first.labels["group"],
            "kind": self.kind,
            "a": self.first.labels["path"],
            "b": self.second.labels["path"],
            "n_compared": self.counts.n_compared,
            "mean_distance": self.counts.mean_distance,
            "mismatch_rates": self.rates,
            "unexplained": None if self.unexplained is None else self.unexplained.share,
        }


def read_labelled_sets(folder: Path) -> list[LabelledSet]:
    """The sets that ``folder/labels.csv`` lists. Raises ClaimError naming the file or the row.

    Paths in it are relative to ``folder`` or to its parent. The challenge of a file that names
    none is taken from its row.
    """
    labels_file = folder / LABELS
    try:
        with labels_file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
            lacking = sorted(set(_COLUMNS) - set(reader.fieldnames or ()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ClaimError(f"{labels_file}: cannot be read: {error}", code="unreadable") from error
    if lacking:
        raise ClaimError(f"no column {lacking[0]!r}", field=str(labels_file))
    # Sets of one challenge mostly answer the same nonces: their frame is made once.
    frames: dict[tuple[object, ...], NonceFrame] = {}
    return [_labelled(folder, row, frames) for row in rows]


def _labelled(
    folder: Path, row: dict[str, str], frames: dict[tuple[object, ...], NonceFrame]
) -> LabelledSet:
    path = folder / row["path"]
    if not path.is_file():
        path = folder.parent / row["path"]
    vectors = read_artifact_file(
        path, block_hash=row["block_hash"] or None, public_key=row["public_key"] or None
    )
    hidden = hidden_size_of(row["model"])
    if hidden is None:
        return LabelledSet(row, vectors, {})
    nonces, _ = usable_rows(vectors)
    challenge = vectors.challenge
    key = (challenge.block_hash, challenge.public_key, challenge.k, hidden, tuple(nonces))
    if key not in frames:
        frames[key] = nonce_frame(challenge, nonces, hidden)
    return LabelledSet(row, vectors, predicted_vectors(vectors, hidden, frames[key]))


def hidden_size_of(model: str) -> int | None:
    """hidden_size of a model of the labelled sets by its name; None for another model."""
    name = model.rsplit("/", 1)[-1]
    return next((size for start, size in HIDDEN_SIZES.items() if name.startswith(start)), None)


def pairs(sets: Sequence[LabelledSet], thresholds: Sequence[float]) -> list[Pair]:
    """All comparable pairs, in the order of the labels."""
    return [_pair(a, b, thresholds) for a, b in combinations(sets, 2) if comparable(a, b)]


def comparable(a: LabelledSet, b: LabelledSet) -> bool:
    """Same group; or a reference recording and a set of the same model, challenge and length.

    The challenge alone is not enough: some groups repeat it with another version of the
    algorithm (without layer reflections), whose vectors are unrelated.
    """
    if a.labels["group"] == b.labels["group"]:
        check_same_challenge(a.vectors, b.vectors)
        return True
    references = sum(s.labels["group"].startswith(_REFERENCE_GROUP) for s in (a, b))
    return references > 0 and _identity(a) == _identity(b)


def _identity(one: LabelledSet) -> tuple[str, ...]:
    model = one.labels["model"].rsplit("/", 1)[-1].removesuffix("-FP8")
    return (model, *(one.labels[name] for name in ("block_hash", "public_key", "seq_len")))


def _pair(a: LabelledSet, b: LabelledSet, thresholds: Sequence[float]) -> Pair:
    k = a.vectors.challenge.k
    counts = judge(a.vectors.vectors, b.vectors.vectors, NETWORK, k=k)
    n = max(1, counts.n_compared)
    rates = tuple(
        sum(e.distance is None or e.distance > threshold for e in counts.distances) / n
        for threshold in thresholds
    )
    return Pair(a, b, counts, rates, unexplained_share(a.vectors, b.vectors, b.predicted))


def baseline(one: LabelledSet) -> ZeroKnowledge | None:
    """The zero-knowledge forger against this set; None where the hidden size is unknown."""
    hidden = hidden_size_of(one.labels["model"])
    return zero_knowledge(one.vectors, hidden, one.predicted) if hidden else None
