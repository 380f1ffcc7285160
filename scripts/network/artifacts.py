"""What a network checks of callbacks: identity, nonces, vectors, verdicts.

Read from the SQLite file of an ``assay node receive``. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import math
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_POROSITY = 100.0
"""max|nonce| / count from which on a network takes nonces for picked (http.md, issue 5)."""
Vectors = dict[int, tuple[float, ...]]
"""Vectors by nonce, ``[k_dim]`` each."""


class CheckError(Exception):
    """Something is not as the wire promises; the message says what was found instead."""


class NotYetError(CheckError):
    """Wrong now, and may still come right while callbacks arrive."""


@dataclass(frozen=True)
class Identity:
    """Whose nonces: ``node_id + x * node_count`` of one block."""

    block_hash: str
    block_height: int
    public_key: str
    node_id: int
    node_count: int


@dataclass(frozen=True)
class Received:
    """All the receiver has of one block. ``results``: the ``/validated`` bodies."""

    vectors: Vectors = field(default_factory=dict)
    results: Sequence[Mapping[str, Any]] = ()
    rejected: int = 0
    last_rejection: str | None = None


def received(store: Path, identity: Identity) -> Received:
    """What came for ``identity``; CheckError when callbacks of its block name anybody else."""
    with _sender(store, identity) as (database, sender):
        if sender is None:
            return Received()
        rows = database.execute(
            "SELECT nonce, vector FROM assay_received_vectors WHERE challenge_id = ?",
            (sender["id"],),
        ).fetchall()
        results = database.execute(
            "SELECT request_id, n_total, n_mismatch, p_value, fraud_detected"
            " FROM assay_received_results WHERE challenge_id = ?",
            (sender["id"],),
        ).fetchall()
    return Received(
        {row["nonce"]: floats(row["vector"]) for row in rows},
        [dict(row) for row in results],
        sender["rejected"],
        sender["last_rejection"],
    )


def received_nonces(store: Path, identity: Identity) -> list[int]:
    """The nonces alone, which is quick enough to look again and again."""
    with _sender(store, identity) as (database, sender):
        if sender is None:
            return []
        rows = database.execute(
            "SELECT nonce FROM assay_received_vectors WHERE challenge_id = ?", (sender["id"],)
        ).fetchall()
    return [row["nonce"] for row in rows]


@contextmanager
def _sender(
    store: Path, identity: Identity
) -> Iterator[tuple[sqlite3.Connection, sqlite3.Row | None]]:
    """The database, and the one sender of this block; None before anything came."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=30)) as database:
        database.row_factory = sqlite3.Row
        senders = database.execute(
            "SELECT * FROM assay_received_challenges WHERE block_hash = ?", (identity.block_hash,)
        ).fetchall()
        for name in ("public_key", "node_id", "block_height") if senders else ():
            found = {sender[name] for sender in senders}
            if found != {getattr(identity, name)}:
                raise CheckError(f"callbacks of this block have {name} {found}")
        yield database, senders[0] if senders else None


def floats(raw: bytes) -> tuple[float, ...]:
    """float16 little endian; CheckError for bytes that are none."""
    if not raw or len(raw) % 2:
        raise CheckError(f"{len(raw)} bytes are no vector of float16")
    return struct.unpack(f"<{len(raw) // 2}e", raw)


def packed(vector: Sequence[float]) -> bytes:
    """The inverse of :func:`floats`; rounds to float16."""
    return struct.pack(f"<{len(vector)}e", *vector)


def read_artifacts(artifacts: Sequence[Mapping[str, Any]]) -> Vectors:
    """``[{nonce, vector_b64}]`` of an answer; CheckError for a nonce given twice or no base64."""
    vectors: Vectors = {}
    for artifact in artifacts:
        nonce = artifact["nonce"]
        if nonce in vectors:
            raise CheckError(f"nonce {nonce} is given twice")
        try:
            vectors[nonce] = floats(base64.b64decode(artifact["vector_b64"], validate=True))
        except binascii.Error as error:
            raise CheckError(f"the vector of nonce {nonce} is no base64: {error}") from error
    return vectors


def written(nonce: int, vector: Sequence[float]) -> dict[str, Any]:
    """The wire's artifact; exact for values that came from float16."""
    return {"nonce": nonce, "vector_b64": base64.b64encode(packed(vector)).decode()}


def swapped(vectors: Vectors) -> Vectors:
    """Vectors that are real but belong to other nonces: what a miner who cheats might send."""
    nonces = sorted(vectors)
    return {
        nonce: vectors[other] for nonce, other in zip(nonces, nonces[1:] + nonces[:1], strict=True)
    }


def counts(nonces: Iterable[int], identity: Identity, n_groups: int) -> list[int]:
    """How many nonces came of each class; CheckError for another node's.
    NotYetError unless each class is whole from its first on.

    Class g holds node_id + (g + p * n_groups) * node_count for the positions p = 0, 1, ...
    """
    positions: list[set[int]] = [set() for _ in range(n_groups)]
    for nonce in nonces:
        turn, node = divmod(nonce, identity.node_count)
        if node != identity.node_id:
            raise CheckError(f"nonce {nonce} is node {node}'s, not {identity.node_id}'s")
        position, group = divmod(turn, n_groups)
        positions[group].add(position)
    for group, found in enumerate(positions):
        missing = set(range(len(found))) - found
        if missing:
            raise NotYetError(
                f"class {group}: {len(missing)} or more positions are missing below {max(found)},"
                f" the first is {min(missing)}"
            )
    return [len(found) for found in positions]


def check_vectors(got: Received, k_dim: int) -> float:
    """Porosity; CheckError for a request that was refused, another shape, no finite value."""
    if got.rejected:
        raise CheckError(f"{got.rejected} callbacks were refused: {got.last_rejection}")
    if not got.vectors:
        raise CheckError("no artifact came")
    for nonce, vector in got.vectors.items():
        if len(vector) != k_dim:
            raise CheckError(f"nonce {nonce}: {len(vector)} values, not {k_dim}")
        if not all(map(math.isfinite, vector)):
            raise CheckError(f"nonce {nonce}: a value is not finite")
        if not any(vector):
            raise CheckError(f"nonce {nonce}: all values are zero")
    porosity = max(got.vectors) / len(got.vectors)
    if porosity >= MAX_POROSITY:
        raise CheckError(f"porosity {porosity:.1f}, must be below {MAX_POROSITY:g}")
    return porosity


def farthest(claimed: Vectors, computed: Vectors) -> float:
    """Largest distance between two vectors of a nonce; CheckError when the nonces differ."""
    if claimed.keys() != computed.keys():
        one = min(claimed.keys() ^ computed.keys())
        raise CheckError(f"not the same nonces: {one} is in one only")
    if not claimed:
        raise CheckError("nothing to compare")
    return max(math.dist(claimed[nonce], computed[nonce]) for nonce in claimed)
