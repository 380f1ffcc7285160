"""Tables of the store, and the steps from one version of them to the next."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

STORE_VERSION = 1
"""Version of the tables below; a database with a higher one is refused."""

metadata = MetaData()

meta = Table(
    "assay_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(256), nullable=False),
)

claims = Table(
    "assay_claims",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("claim_id", String(256), nullable=False, index=True),
    Column("schema_version", Integer, nullable=False),
    Column("model", String(512)),
    Column("endpoint", String(32), nullable=False),
    Column("body", Text, nullable=False),  # JSON of the claim, without its schema version lost
)

verdicts = Table(
    "assay_verdicts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("claim_digest", String(64), ForeignKey("assay_claims.digest"), nullable=False),
    Column("server_digest", String(64), nullable=False),
    Column("options_digest", String(64), nullable=False),
    Column("label", String(256), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("similarity", Float),
    Column("decided_at", DateTime(timezone=True), nullable=False),
    Column("body", Text, nullable=False),  # JSON of the result without the claim
    UniqueConstraint(
        "claim_digest", "server_digest", "options_digest", "label", name="assay_verdicts_once"
    ),
    Index("assay_verdicts_by_verdict", "label", "verdict"),
)

MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""Version -> step that turns a database of that version into the next one."""
