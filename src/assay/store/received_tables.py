"""Tables of the receiver, and the rows that go in and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

RECEIVED_VERSION = 1
"""Version of the tables below; a database with another one is refused."""
NAME_LENGTH = 512
"""Longest block hash, public key, request id or idempotency key that is kept."""

METADATA = MetaData()
META = Table("assay_received_meta", METADATA, Column("version", Integer, nullable=False))
CHALLENGES = Table(
    "assay_received_challenges",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("block_hash", String(NAME_LENGTH), nullable=False),
    Column("public_key", String(NAME_LENGTH), nullable=False),
    Column("node_id", BigInteger, nullable=False),
    Column("block_height", BigInteger),
    Column("k_dim", Integer),  # of the first vectors; those that follow must agree
    Column("artifacts", BigInteger, nullable=False),
    Column("nonce_min", BigInteger),
    Column("nonce_max", BigInteger),
    Column("results", Integer, nullable=False),
    Column("fraud_detected", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),  # requests
    Column("last_rejection", Text),
    Column("last_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("block_hash", "public_key", "node_id", name="assay_received_challenges_once"),
)
VECTORS = Table(
    "assay_received_vectors",
    METADATA,
    Column("challenge_id", Integer, ForeignKey("assay_received_challenges.id"), primary_key=True),
    Column("nonce", BigInteger, primary_key=True, autoincrement=False),
    Column("vector", LargeBinary, nullable=False),  # float16 little endian, [k_dim]
)
RESULTS = Table(
    "assay_received_results",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column(
        "challenge_id",
        Integer,
        ForeignKey("assay_received_challenges.id"),
        nullable=False,
        index=True,
    ),
    Column("request_id", String(NAME_LENGTH)),
    Column("n_total", BigInteger, nullable=False),
    Column("n_mismatch", BigInteger, nullable=False),
    Column("p_value", Float),
    Column("fraud_detected", Boolean, nullable=False),
    Column("body", Text, nullable=False),  # JSON as it came
    Column("received_at", DateTime(timezone=True), nullable=False),
)
REQUESTS = Table(
    "assay_received_requests",
    METADATA,
    Column("key", String(NAME_LENGTH), primary_key=True),
    Column("digest", String(64), nullable=False),  # SHA-256 of the route's name and the body
    Column("received_at", DateTime(timezone=True), nullable=False),
)


@dataclass(frozen=True)
class Sender:
    """Whose vectors: what one node owes for one block."""

    block_hash: str
    public_key: str
    node_id: int
    block_height: int | None = None


@dataclass(frozen=True)
class Arrival:
    """One request: its ``Idempotency-Key``, where it has one, and the digest of its body."""

    key: str | None
    digest: str


@dataclass(frozen=True)
class Vectors:
    """``raw[i]``: float16 little endian of ``nonces[i]``, ``k_dim`` values each."""

    k_dim: int
    nonces: Sequence[int]
    raw: Sequence[bytes]


@dataclass(frozen=True)
class Result:
    """What a validation came to; ``body`` is its JSON as it came."""

    request_id: str | None
    n_total: int
    n_mismatch: int
    p_value: float | None
    fraud_detected: bool
    body: str


@dataclass(frozen=True)
class Received:
    """All of one sender. ``nonce_min`` and ``nonce_max`` are None while it has no artifact.

    ``rejected`` counts requests, of which nothing was kept.
    """

    sender: Sender
    k_dim: int | None
    artifacts: int
    nonce_min: int | None
    nonce_max: int | None
    results: int
    fraud_detected: int
    rejected: int
    last_rejection: str | None
    last_at: datetime

    @property
    def porosity(self) -> float | None:
        """max|nonce| / count: how thinly the nonces are spread; None without artifacts."""
        return _porosity(self.nonce_min, self.nonce_max, self.artifacts)


def _porosity(least: int | None, most: int | None, count: int) -> float | None:
    if least is None or most is None or not count:
        return None
    return max(abs(least), abs(most)) / count
