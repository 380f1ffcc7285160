"""What a receiver was sent: vectors once a nonce, results, and the requests they came in.

Everything of one request is kept in one transaction, or nothing of it. Blocking; call it from
threads. Safe for several threads, and for several receivers on one database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from assay.errors import AssayError, StoreError
from assay.store.database import open_engine, shown_url, store_url
from assay.store.received_tables import (
    CHALLENGES,
    META,
    METADATA,
    RECEIVED_VERSION,
    REQUESTS,
    RESULTS,
    VECTORS,
    Arrival,
    Received,
    Result,
    Sender,
    Vectors,
)

ASKED_AT_ONCE = 5_000
"""Nonces looked up by one query; SQLite takes 32,766 variables."""


class ConflictError(AssayError):
    """The request contradicts what is kept. ``index``: of the artifact that does, where one does."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class PorousError(AssayError):
    """The nonces kept, with those that came, would be spread too thinly."""


class ReceivedStore:
    """An open database of a receiver. StoreError when it cannot be opened or used."""

    def __init__(self, where: str | Path) -> None:
        url = store_url(where)
        self._engine = open_engine(url)
        try:
            with self._write() as connection:
                _prepare(connection, url)
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def add_vectors(
        self,
        sender: Sender,
        vectors: Vectors,
        arrival: Arrival,
        *,
        most_porous: float | None = None,
    ) -> tuple[Received, bool]:
        """Keep them; the sender's state, and False when the request was here before.

        ConflictError: a nonce is kept already, ``k_dim`` is another, or the key came with another
        body. PorousError: max|nonce| / count would reach ``most_porous``.
        """
        with self._write() as connection:
            row = _challenge(connection, sender)
            if _repeated(connection, arrival):
                return _received(row), False
            if row.k_dim is not None and row.k_dim != vectors.k_dim:
                raise ConflictError(
                    f"k_dim is {vectors.k_dim}, and {row.k_dim} for the vectors kept before"
                )
            _check_new(connection, row.id, vectors)
            if vectors.nonces:
                connection.execute(insert(VECTORS), _rows(row.id, vectors))
            after = _with(_received(row), vectors)
            if (
                most_porous is not None
                and after.porosity is not None
                and after.porosity >= most_porous
            ):
                raise PorousError(
                    f"max|nonce| / count would be {after.porosity:.1f} over the"
                    f" {after.artifacts} artifacts of this sender; {most_porous:g} is too porous"
                )
            _update(
                connection,
                row.id,
                k_dim=vectors.k_dim,
                artifacts=after.artifacts,
                nonce_min=after.nonce_min,
                nonce_max=after.nonce_max,
                last_at=after.last_at,
            )
            return after, True

    def add_result(self, sender: Sender, result: Result, arrival: Arrival) -> bool:
        """Keep it; False when the request was here before. ConflictError as for vectors."""
        with self._write() as connection:
            row = _challenge(connection, sender)
            if _repeated(connection, arrival):
                return False
            now = datetime.now(UTC)
            connection.execute(
                insert(RESULTS),
                [
                    {
                        "challenge_id": row.id,
                        "request_id": result.request_id,
                        "n_total": result.n_total,
                        "n_mismatch": result.n_mismatch,
                        "p_value": result.p_value,
                        "fraud_detected": result.fraud_detected,
                        "body": result.body,
                        "received_at": now,
                    }
                ],
            )
            _update(
                connection,
                row.id,
                results=CHALLENGES.c.results + 1,
                fraud_detected=CHALLENGES.c.fraud_detected + int(result.fraud_detected),
                last_at=now,
            )
            return True

    def reject(self, sender: Sender, reason: str) -> None:
        """Count a request of which nothing was kept."""
        with self._write() as connection:
            row = _challenge(connection, sender)
            _update(
                connection,
                row.id,
                rejected=CHALLENGES.c.rejected + 1,
                last_rejection=reason[:1000].replace("\0", ""),
                last_at=datetime.now(UTC),
            )

    def senders(self, most: int) -> tuple[int, list[Received]]:
        """How many there are, and the ``most`` that were heard last."""
        query = select(CHALLENGES).order_by(CHALLENGES.c.last_at.desc(), CHALLENGES.c.id)
        with self._guarded(), self._engine.connect() as connection:
            count = connection.scalar(select(func.count()).select_from(CHALLENGES)) or 0
            rows = connection.execute(query.limit(most)).all()
        return count, [_received(row) for row in rows]

    def vectors(self, sender: Sender) -> dict[int, bytes]:
        """Every vector of a sender, by nonce."""
        query = (
            select(VECTORS.c.nonce, VECTORS.c.vector)
            .join_from(VECTORS, CHALLENGES)
            .where(*_of(sender))
            .order_by(VECTORS.c.nonce)
        )
        with self._guarded(), self._engine.connect() as connection:
            return {nonce: bytes(vector) for nonce, vector in connection.execute(query)}

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with (
            self._guarded(),
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
                f"the store {shown_url(self._engine.url)} refused:"
                f" {getattr(error, 'orig', None) or error}"
            ) from error


def _prepare(connection: Connection, url: str) -> None:
    METADATA.create_all(connection)
    version = connection.scalar(select(META.c.version))
    if version is None:
        connection.execute(insert(META).values(version=RECEIVED_VERSION))
    elif version != RECEIVED_VERSION:
        raise StoreError(
            f"the store {shown_url(url)} has version {version} of what was received and this assay"
            f" knows {RECEIVED_VERSION}; choose another store"
        )


def _of(sender: Sender) -> tuple[Any, ...]:
    return (
        CHALLENGES.c.block_hash == sender.block_hash,
        CHALLENGES.c.public_key == sender.public_key,
        CHALLENGES.c.node_id == sender.node_id,
    )


def _challenge(connection: Connection, sender: Sender) -> Row[Any]:
    """The sender's row, made when it is new. There is one writer at a time."""
    query = select(CHALLENGES).where(*_of(sender))
    row = connection.execute(query).first()
    if row is not None:
        return row
    connection.execute(
        insert(CHALLENGES).values(
            block_hash=sender.block_hash,
            public_key=sender.public_key,
            node_id=sender.node_id,
            block_height=sender.block_height,
            artifacts=0,
            results=0,
            fraud_detected=0,
            rejected=0,
            last_at=datetime.now(UTC),
        )
    )
    return connection.execute(query).one()


def _update(connection: Connection, challenge_id: int, **values: Any) -> None:
    connection.execute(update(CHALLENGES).where(CHALLENGES.c.id == challenge_id).values(**values))


def _repeated(connection: Connection, arrival: Arrival) -> bool:
    """Whether this very request was kept before; notes it when not."""
    if arrival.key is None:
        return False
    known = connection.scalar(select(REQUESTS.c.digest).where(REQUESTS.c.key == arrival.key))
    if known is None:
        connection.execute(
            insert(REQUESTS).values(
                key=arrival.key, digest=arrival.digest, received_at=datetime.now(UTC)
            )
        )
        return False
    if known != arrival.digest:
        raise ConflictError("Idempotency-Key: it came before with another body")
    return True


def _check_new(connection: Connection, challenge_id: int, vectors: Vectors) -> None:
    for first in range(0, len(vectors.nonces), ASKED_AT_ONCE):
        asked = vectors.nonces[first : first + ASKED_AT_ONCE]
        kept = set(
            connection.scalars(
                select(VECTORS.c.nonce).where(
                    VECTORS.c.challenge_id == challenge_id, VECTORS.c.nonce.in_(asked)
                )
            )
        )
        for index, nonce in enumerate(asked, start=first):
            if nonce in kept:
                raise ConflictError(
                    f"nonce {nonce} was received before from this sender; each counts once",
                    index=index,
                )


def _rows(challenge_id: int, vectors: Vectors) -> list[dict[str, Any]]:
    return [
        {"challenge_id": challenge_id, "nonce": nonce, "vector": raw}
        for nonce, raw in zip(vectors.nonces, vectors.raw, strict=True)
    ]


def _with(before: Received, vectors: Vectors) -> Received:
    known = [n for n in (before.nonce_min, before.nonce_max) if n is not None]
    all_ends = [*known, *vectors.nonces]
    return replace(
        before,
        k_dim=vectors.k_dim,
        artifacts=before.artifacts + len(vectors.nonces),
        nonce_min=min(all_ends, default=None),
        nonce_max=max(all_ends, default=None),
        last_at=datetime.now(UTC),
    )


def _received(row: Row[Any]) -> Received:
    # SQLite forgets the zone, which is always UTC here.
    last = row.last_at if row.last_at.tzinfo is not None else row.last_at.replace(tzinfo=UTC)
    return Received(
        sender=Sender(row.block_hash, row.public_key, row.node_id, row.block_height),
        k_dim=row.k_dim,
        artifacts=row.artifacts,
        nonce_min=row.nonce_min,
        nonce_max=row.nonce_max,
        results=row.results,
        fraud_detected=row.fraud_detected,
        rejected=row.rejected,
        last_rejection=row.last_rejection,
        last_at=last,
    )
