"""Claims and verdicts in SQL: a SQLite file by default, any SQLAlchemy URL otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from assay.claims.claim import CLAIM_SCHEMA_VERSION
from assay.errors import StoreError
from assay.store.result import RESULT_SCHEMA_VERSION, VerifyResult
from assay.store.tables import MIGRATIONS, STORE_VERSION, claims, meta, metadata, verdicts

BUSY_TIMEOUT_MS = 30_000
"""How long a SQLite writer waits for another one."""
WRITERS, OUTBOX_OWNER = 0x617373_01, 0x617373_02
"""First halves of PostgreSQL advisory locks ("ass", counted); the second names the schema."""


def store_url(where: str | Path) -> str:
    """A database URL from a URL or from the path of a SQLite file."""
    text = str(where)
    return text if "://" in text else f"sqlite:///{text}"


class Store:
    """An open database. Safe for several processes and threads that write at once.

    Frozen models go in and come out. Raises StoreError for a database that cannot be opened,
    that a newer assay wrote, or that holds a row of an unknown version.
    """

    def __init__(self, where: str | Path) -> None:
        url = store_url(where)
        self._engine = open_engine(url)
        try:
            with self._write() as connection:
                _prepare(connection)
        except SQLAlchemyError as error:
            self.close()
            raise StoreError(f"cannot open the store {shown_url(url)}: {_cause(error)}") from error
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    def add(self, result: VerifyResult) -> None:
        """Keep a result and its claim. The same work done again replaces the older verdict."""
        with self._guarded(), self._write() as connection:
            _add_claim(connection, result)
            same = (
                (verdicts.c.claim_digest == result.claim_digest)
                & (verdicts.c.server_digest == result.server_digest)
                & (verdicts.c.options_digest == result.options_digest)
                & (verdicts.c.label == result.label)
            )
            connection.execute(delete(verdicts).where(same))
            connection.execute(insert(verdicts), [_verdict_row(result)])

    def results(self, label: str | None = None) -> list[VerifyResult]:
        """Results in the order they were decided, all or those of one label."""
        query = select(verdicts, claims.c.body, claims.c.schema_version).join_from(verdicts, claims)
        if label is not None:
            query = query.where(verdicts.c.label == label)
        with self._guarded(), self._engine.connect() as connection:
            rows = connection.execute(query.order_by(verdicts.c.decided_at, verdicts.c.id)).all()
        return [_result(row) for row in rows]

    def latest(self, count: int) -> list[VerifyResult]:
        """The ``count`` results decided last, newest first."""
        query = (
            select(verdicts, claims.c.body, claims.c.schema_version)
            .join_from(verdicts, claims)
            .order_by(verdicts.c.decided_at.desc(), verdicts.c.id.desc())
            .limit(count)
        )
        with self._guarded(), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [_result(row) for row in rows]

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with (
            self._engine.connect().execution_options(assay_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(
                f"the store {shown_url(self._engine.url)} refused: {_cause(error)}"
            ) from error


def open_engine(url: str) -> Engine:
    """An engine for a database URL; StoreError when the URL or its driver is not usable."""
    try:
        parsed = make_url(url)
        if in_memory(parsed):
            # One connection for all threads: each would have an empty database of its own. Whoever
            # opens one in memory lets one thread at a time use it.
            engine = create_engine(
                parsed, poolclass=StaticPool, connect_args={"check_same_thread": False}
            )
        else:
            engine = create_engine(parsed, connect_args=_connect_arguments(parsed))
    except (ArgumentError, NoSuchModuleError) as error:
        # The text of a URL that cannot be read may hold a password anywhere: only its scheme is shown.
        raise StoreError(
            f"{url.partition('://')[0]}://...: not a database URL that SQLAlchemy knows;"
            " give the path of a SQLite file or a URL such as postgresql+psycopg://host/name"
        ) from error
    except ModuleNotFoundError as error:
        raise StoreError(
            f"the driver of {shown_url(url)} is not installed: pip install {error.name}"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
    elif parsed.get_backend_name() == "postgresql":
        event.listen(engine, "begin", _postgresql_begin)
    return engine


def in_memory(url: URL) -> bool:
    """Whether the database ends with its last connection."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _connect_arguments(url: URL) -> dict[str, str]:
    # A server made in the C locale has databases of no encoding, from which libpq's drivers read
    # bytes instead of text unless told what they are.
    libpq = url.get_backend_name() == "postgresql" and url.get_driver_name().startswith("psycopg")
    return {"client_encoding": "utf8"} if libpq else {}


def _sqlite_connect(connection: Any, _record: object) -> None:
    # The driver must not open transactions by itself: it does so too late for BEGIN IMMEDIATE
    # and commits DDL behind our back.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # A deferred transaction that first reads and then writes fails with "database is locked"
    # when another writer was in between; taking the write lock at once waits instead.
    write = connection.get_execution_options().get("assay_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _postgresql_begin(connection: Connection) -> None:
    # The same promise as BEGIN IMMEDIATE: one writer at a time. Without it two that create the
    # tables, or replace the same verdict, at once fail with a violated constraint.
    if connection.get_execution_options().get("assay_write", False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock_of(WRITERS)})")


def lock_of(number: int) -> str:
    """SQL of the two keys of an advisory lock that every schema has for itself."""
    return f"{number}, hashtext(coalesce(current_schema(), ''))"


def _prepare(connection: Connection) -> None:
    """Create the tables, or check and raise their version."""
    if not inspect(connection).has_table(meta.name):
        metadata.create_all(connection)
        connection.execute(insert(meta), [{"name": "version", "value": str(STORE_VERSION)}])
        return
    found = connection.scalar(select(meta.c.value).where(meta.c.name == "version"))
    version = int(found) if found is not None and found.isdigit() else None
    if version is None or version > STORE_VERSION:
        raise StoreError(
            f"the store has version {found!r} and this assay knows up to {STORE_VERSION};"
            " upgrade assay or choose another store"
        )
    while version < STORE_VERSION:
        MIGRATIONS[version](connection)
        version += 1
        connection.execute(meta.update().where(meta.c.name == "version").values(value=str(version)))


def _add_claim(connection: Connection, result: VerifyResult) -> None:
    claim = result.claim
    known = select(claims.c.digest).where(claims.c.digest == result.claim_digest)
    if connection.scalar(known) is not None:
        return
    row = {
        "digest": result.claim_digest,
        "claim_id": claim.id,
        "schema_version": claim.schema_version,
        "model": claim.engine.model,
        "endpoint": claim.endpoint,
        "body": claim.model_dump_json(),
    }
    try:
        with connection.begin_nested():
            connection.execute(insert(claims), [row])
    except IntegrityError:
        # Another writer was first; rows are named by their content, so theirs is ours.
        if connection.scalar(known) is None:
            raise


def _verdict_row(result: VerifyResult) -> dict[str, Any]:
    return {
        "claim_digest": result.claim_digest,
        "server_digest": result.server_digest,
        "options_digest": result.options_digest,
        "label": result.label,
        "schema_version": result.schema_version,
        "verdict": result.verdict.verdict,
        "similarity": result.verdict.similarity,
        "decided_at": result.decided_at,
        "body": result.model_dump_json(exclude={"claim"}),
    }


def _result(row: Row[Any]) -> VerifyResult:
    columns = row._mapping
    _known("verdict", columns[verdicts.c.schema_version], RESULT_SCHEMA_VERSION)
    _known("claim", columns[claims.c.schema_version], CLAIM_SCHEMA_VERSION)
    body = json.loads(columns[verdicts.c.body])
    body["claim"] = json.loads(columns[claims.c.body])
    return VerifyResult.model_validate_json(json.dumps(body))


def _known(what: str, version: int, ours: int) -> None:
    if version != ours:
        raise StoreError(
            f"the store holds a {what} of schema version {version} and this assay reads {ours};"
            " upgrade assay"
        )


def shown_url(url: object) -> str:
    """The URL without its password."""
    return make_url(str(url)).render_as_string(hide_password=True)


def _cause(error: SQLAlchemyError) -> str:
    original = getattr(error, "orig", None)
    return str(original if original is not None else error)
