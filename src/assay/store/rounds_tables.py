"""Tables of a node's mining rounds, and the rows that go in and out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

ROUNDS_VERSION = 1
"""Version of the tables below; a database with another one is refused."""

METADATA = MetaData()
META = Table("assay_rounds_meta", METADATA, Column("version", Integer, nullable=False))
ROUNDS = Table(
    "assay_rounds",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("identity", String(64), nullable=False),
    Column("url", Text),
    Column("caller", String(64)),
    Column("head", Text, nullable=False),  # JSON object, what every callback of the round repeats
    Column("node_id", BigInteger, nullable=False),
    Column("node_count", BigInteger, nullable=False),
    Column("n_groups", Integer, nullable=False),
    Column("kept", BigInteger, nullable=False),
    Column("campaign_id", Integer),  # of the outbox; none where nobody is to be told
    Column("ended", Float),  # seconds since 1970; none while it may be taken up
    sqlite_autoincrement=True,
)
WORKERS = Table(
    "assay_round_workers",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("token", String(32), nullable=False, unique=True),
    Column("round_id", Integer, ForeignKey("assay_rounds.id"), nullable=False, index=True),
    Column("port", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    sqlite_autoincrement=True,
)
SHARES = Table(
    "assay_round_shares",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("round_id", Integer, ForeignKey("assay_rounds.id"), nullable=False, index=True),
    Column("worker_id", Integer, ForeignKey("assay_round_workers.id"), index=True),
    Column("group_id", Integer, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger),  # first position that is not in it; none: to the end of the class
    Column("reached", BigInteger, nullable=False),  # everything below has been kept
    sqlite_autoincrement=True,
)
JOBS = Table(
    "assay_pow_jobs",
    METADATA,
    Column("token", String(32), primary_key=True),
    Column("id", String(64)),  # what the client knows it by; none until a backend has queued it
    Column("url", Text, nullable=False),
    Column("caller", String(64)),
    Column("body", Text, nullable=False),  # JSON, as the client sent it
    Column("begun", Float, nullable=False),  # seconds since 1970
)


@dataclass(frozen=True)
class RoundSpec:
    """What is mined and who is told. ``identity`` names the work: an interrupted round of the same
    one, for the same ``url``, is taken up where it stopped."""

    identity: str
    url: str | None
    caller: str | None
    head: Mapping[str, Any]
    node_id: int
    node_count: int


@dataclass(frozen=True)
class Round:
    """``resumed``: taken up after the node had ended in the middle of it. ``kept``: artifacts that
    came from backends so far."""

    id: int
    n_groups: int
    kept: int
    resumed: bool


@dataclass(frozen=True)
class Worker:
    """One process of a backend in one round; its token is the address of its callbacks."""

    id: int
    token: str
    round_id: int
    port: int
    generation: int


@dataclass(frozen=True)
class Share:
    """Positions ``start`` up to ``stop`` of one residue class; ``stop`` None: without an end.

    Position p of class g is the nonce node_id + (g + p * n_groups) * node_count. All below
    ``reached`` is kept, or was not finite.
    """

    id: int
    worker_id: int | None
    group_id: int
    start: int
    stop: int | None
    reached: int


@dataclass(frozen=True)
class Kept:
    """What became of artifacts that a backend sent. ``repeated`` are kept already, or not of its
    shares; ``foreign`` are nonces of another node. ``url``: whom the kept ones wait for."""

    kept: int
    repeated: int
    foreign: int
    url: str | None


@dataclass(frozen=True)
class KeptJob:
    """A job whose result somebody waits for. ``id`` is the client's, ``token`` its callback's."""

    token: str
    id: str | None
    url: str
    caller: str | None
    body: str
    begun: float
