"""Tables of the outbox, and the rows that go in and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, MetaData, String, Table, Text

OUTBOX_VERSION = 1
"""Version of the tables below; a database with another one is refused."""

Kind = Literal["generated", "validated"]
OPEN, INTERRUPTED, CLOSED = "open", "interrupted", "closed"

METADATA = MetaData()
META = Table("assay_outbox_meta", METADATA, Column("version", Integer, nullable=False))
CAMPAIGNS = Table(
    "assay_outbox_campaigns",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("url", Text, nullable=False),
    Column("caller", String(64)),
    Column("kind", String(16), nullable=False),
    Column("head", Text, nullable=False),  # JSON object, all of the body but the artifacts
    Column("identity", String(64), nullable=False),
    Column("position", BigInteger, nullable=False),  # first index of the partition not yet kept
    Column("state", String(16), nullable=False),
    sqlite_autoincrement=True,
)
POSTS = Table(
    "assay_outbox_posts",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(32), nullable=False, unique=True),
    Column("campaign_id", Integer, ForeignKey("assay_outbox_campaigns.id"), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("last_error", Text),
    sqlite_autoincrement=True,
)
PIECES = Table(
    "assay_outbox_pieces",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column(
        "campaign_id",
        Integer,
        ForeignKey("assay_outbox_campaigns.id"),
        nullable=False,
        index=True,
    ),
    Column("post_id", Integer, ForeignKey("assay_outbox_posts.id"), index=True),
    Column("count", Integer, nullable=False),
    Column("body", Text, nullable=False),  # artifacts as JSON text, comma between, no brackets
    sqlite_autoincrement=True,
)


@dataclass(frozen=True)
class Campaign:
    """``identity`` names the work: an interrupted campaign of the same one to the same ``url`` is
    taken up where it stopped. ``caller`` is the address that asked, for the allow-list."""

    url: str
    caller: str | None
    kind: Kind
    head: Mapping[str, Any]
    identity: str = ""


@dataclass(frozen=True)
class OpenCampaign:
    """``position``: index in the nonce partition to go on from; 0 for a new campaign."""

    id: int
    position: int


@dataclass(frozen=True)
class Post:
    """One request to a receiver. ``pieces`` are JSON texts of artifacts, ``count`` in all."""

    id: int
    key: str
    url: str
    caller: str | None
    kind: Kind
    head: str
    pieces: tuple[str, ...]
    count: int
    attempts: int


@dataclass(frozen=True)
class Waiting:
    """What is not yet accepted by one receiver."""

    artifacts: int
    results: int
