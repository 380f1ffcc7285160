"""What waits for a receiver: proof-of-compute artifacts and validation results, in SQL.

A *campaign* is one mining run or one job: receiver, and the fields every request of it repeats.
*Pieces* are artifacts as they come from the device, committed before they count as delivered by
the engine. A *post* is pieces sealed together under one idempotency key: a repeat after a lost
answer, or after a crash, has the same key and the same artifacts, so no receiver that looks at
the key counts one twice. Rows go only when the receiver has accepted the post.

One server, one outbox: a lock beside a SQLite file, an advisory lock in PostgreSQL, that its
connection holds for as long as the outbox is open. Blocking; call it from threads. Safe for
several threads at once.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from sqlalchemy import (
    Connection,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from assay.errors import StoreError
from assay.store.database import (
    in_memory,
    open_engine,
    shown_url,
    store_url,
)
from assay.store.one_server import hold_alone, make_folder
from assay.store.outbox_tables import (
    CAMPAIGNS,
    CLOSED,
    INTERRUPTED,
    META,
    METADATA,
    OPEN,
    OUTBOX_VERSION,
    PIECES,
    POSTS,
    Campaign,
    OpenCampaign,
    Post,
    Waiting,
)
from assay.store.users import Users

__all__ = ["OUTBOX_VERSION", "Campaign", "OpenCampaign", "Outbox", "Post", "Waiting"]


class Outbox:
    """An open outbox. Raises StoreError when it cannot be opened or another server has it open."""

    def __init__(self, where: str | Path) -> None:
        url = store_url(where)
        self._closing = ExitStack()
        self._lock = threading.Lock()
        self._users = Users("the outbox")
        try:
            self._engine = open_engine(url)
            self._closing.callback(self._engine.dispose)
            make_folder(url)
            with self._guarded():
                hold_alone(url, self._engine, self._closing)
            with self.write() as connection:
                _prepare(connection, url)
                connection.execute(
                    update(CAMPAIGNS).where(CAMPAIGNS.c.state == OPEN).values(state=INTERRUPTED)
                )
        except StoreError:
            self._closing.close()
            raise

    def close(self) -> None:
        self._users.close()
        self._closing.close()

    def open_campaign(self, campaign: Campaign) -> OpenCampaign:
        """Begin, or take up what a crash of this server interrupted."""
        with self.write() as connection:
            row = connection.execute(
                select(CAMPAIGNS.c.id, CAMPAIGNS.c.position)
                .where(
                    CAMPAIGNS.c.state == INTERRUPTED,
                    CAMPAIGNS.c.identity == campaign.identity,
                    CAMPAIGNS.c.identity != "",
                    CAMPAIGNS.c.url == campaign.url,
                )
                .order_by(CAMPAIGNS.c.id.desc())
            ).first()
            if row is None:
                opened = OpenCampaign(new_campaign(connection, campaign, OPEN), 0)
            else:
                opened = OpenCampaign(row.id, row.position)
                connection.execute(
                    update(CAMPAIGNS)
                    .where(CAMPAIGNS.c.id == row.id)
                    .values(state=OPEN, caller=campaign.caller)
                )
            connection.execute(
                update(CAMPAIGNS).where(CAMPAIGNS.c.state == INTERRUPTED).values(state=CLOSED)
            )
            _forget_finished(connection)
            return opened

    def append(self, campaign_id: int, count: int, body: str, position: int) -> None:
        """Keep ``count`` artifacts and how far the partition is mined, in one commit."""
        with self.write() as connection:
            if count:
                keep_piece(connection, campaign_id, count, body)
            connection.execute(
                update(CAMPAIGNS).where(CAMPAIGNS.c.id == campaign_id).values(position=position)
            )

    def close_campaign(self, campaign_id: int) -> None:
        """Nothing more will be appended; what waits is still delivered."""
        with self.write() as connection:
            close_campaigns(connection, [campaign_id])

    def add(self, campaign: Campaign, count: int = 0, body: str = "") -> None:
        """A whole campaign at once: the artifacts of a job, or a validation result."""
        with self.write() as connection:
            keep_whole(connection, campaign, count, body)

    def next_post(self, url: str, most: int) -> Post | None:
        """The oldest post for ``url`` that is not yet accepted; seals a new one when there is none.

        A new post takes pieces of one campaign, up to ``most`` artifacts and at least one piece.
        None when nothing waits.
        """
        with self.write() as connection:
            row = connection.execute(
                select(POSTS, CAMPAIGNS)
                .join_from(POSTS, CAMPAIGNS)
                .where(CAMPAIGNS.c.url == url)
                .order_by(POSTS.c.id)
                .limit(1)
            ).first()
            if row is None:
                if not _seal(connection, url, most):
                    return None
                row = connection.execute(
                    select(POSTS, CAMPAIGNS)
                    .join_from(POSTS, CAMPAIGNS)
                    .where(CAMPAIGNS.c.url == url)
                    .limit(1)
                ).one()
            columns = row._mapping
            pieces = connection.execute(
                select(PIECES.c.body, PIECES.c.count)
                .where(PIECES.c.post_id == columns[POSTS.c.id])
                .order_by(PIECES.c.id)
            ).all()
        return Post(
            id=columns[POSTS.c.id],
            key=columns[POSTS.c.key],
            url=columns[CAMPAIGNS.c.url],
            caller=columns[CAMPAIGNS.c.caller],
            kind=columns[CAMPAIGNS.c.kind],
            head=columns[CAMPAIGNS.c.head],
            pieces=tuple(piece.body for piece in pieces),
            count=sum(piece._mapping[PIECES.c.count] for piece in pieces),
            attempts=columns[POSTS.c.attempts],
        )

    def accepted(self, post_id: int) -> None:
        """The receiver has it: forget the post and its pieces."""
        with self.write() as connection:
            connection.execute(delete(PIECES).where(PIECES.c.post_id == post_id))
            connection.execute(delete(POSTS).where(POSTS.c.id == post_id))
            _forget_finished(connection)

    def failed(self, post_id: int, error: str) -> None:
        """The receiver did not take it; it stays the next post of its receiver."""
        with self.write() as connection:
            connection.execute(
                update(POSTS)
                .where(POSTS.c.id == post_id)
                .values(attempts=POSTS.c.attempts + 1, last_error=error[:1000].replace("\0", ""))
            )

    def waiting(self) -> dict[str, Waiting]:
        """What waits, by receiver."""
        query = (
            select(
                CAMPAIGNS.c.url,
                func.sum(PIECES.c.count),
                func.sum(case((CAMPAIGNS.c.kind == "validated", 1), else_=0)),
            )
            .join_from(PIECES, CAMPAIGNS)
            .group_by(CAMPAIGNS.c.url)
        )
        with self.read() as connection:
            rows = connection.execute(query).all()
        return {url: Waiting(int(artifacts), int(results)) for url, artifacts, results in rows}

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that only reads. Raises StoreError. Not to be nested, nor within a write."""
        # A database in memory has one connection, which a writer may be in the middle of.
        alone = self._lock if in_memory(self._engine.url) else nullcontext()
        with self._users.one(), self._guarded(), alone, self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction on the outbox's database, for tables that change together with it.

        Raises StoreError. Not to be nested.
        """
        # One writer at a time anyway; waiting here is cheaper than in SQLite's busy loop.
        with (
            self._users.one(),
            self._guarded(),
            self._lock,
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
                f"the outbox {shown_url(self._engine.url)} refused:"
                f" {getattr(error, 'orig', None) or error}"
            ) from error


def keep_whole(connection: Connection, campaign: Campaign, count: int, body: str) -> None:
    """A whole campaign at once, in the transaction of ``connection``."""
    keep_piece(connection, new_campaign(connection, campaign, CLOSED), count, body)


def keep_piece(connection: Connection, campaign_id: int, count: int, body: str) -> None:
    """``count`` artifacts of a campaign, in the transaction of ``connection``."""
    connection.execute(insert(PIECES), [{"campaign_id": campaign_id, "count": count, "body": body}])


def new_campaign(connection: Connection, campaign: Campaign, state: str) -> int:
    """A campaign's id, in the transaction of ``connection``."""
    result = connection.execute(
        insert(CAMPAIGNS).values(
            url=campaign.url,
            caller=campaign.caller,
            kind=campaign.kind,
            head=json.dumps(campaign.head),
            identity=campaign.identity,
            position=0,
            state=state,
        )
    )
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


def close_campaigns(connection: Connection, campaign_ids: Sequence[int]) -> None:
    """Nothing more will be appended to them, in the transaction of ``connection``."""
    connection.execute(
        update(CAMPAIGNS).where(CAMPAIGNS.c.id.in_(campaign_ids)).values(state=CLOSED)
    )
    _forget_finished(connection)


def take_up_campaign(connection: Connection, campaign_id: int) -> None:
    """What a crash of this server interrupted goes on, in the transaction of ``connection``."""
    connection.execute(
        update(CAMPAIGNS)
        .where(CAMPAIGNS.c.id == campaign_id, CAMPAIGNS.c.state == INTERRUPTED)
        .values(state=OPEN)
    )


def _seal(connection: Connection, url: str, most: int) -> bool:
    """Put the oldest waiting pieces for ``url`` under one new post; False when none waits."""
    first = connection.execute(
        select(PIECES.c.campaign_id)
        .join_from(PIECES, CAMPAIGNS)
        .where(CAMPAIGNS.c.url == url, PIECES.c.post_id.is_(None))
        .order_by(PIECES.c.id)
        .limit(1)
    ).first()
    if first is None:
        return False
    unsealed = (
        select(PIECES.c.id, PIECES.c.count)
        .where(PIECES.c.campaign_id == first.campaign_id, PIECES.c.post_id.is_(None))
        .order_by(PIECES.c.id)
    )
    last, total = None, 0
    with connection.execute(unsealed) as rows:
        for piece_id, count in rows:
            if last is not None and total + count > most:
                break
            last, total = piece_id, total + count
    post = connection.execute(
        insert(POSTS).values(key=uuid.uuid4().hex, campaign_id=first.campaign_id, attempts=0)
    )
    assert post.inserted_primary_key is not None
    connection.execute(
        update(PIECES)
        .where(
            PIECES.c.campaign_id == first.campaign_id,
            PIECES.c.post_id.is_(None),
            PIECES.c.id <= last,
        )
        .values(post_id=post.inserted_primary_key[0])
    )
    return True


def _forget_finished(connection: Connection) -> None:
    """Remove closed campaigns of which nothing waits."""
    waits = exists().where(PIECES.c.campaign_id == CAMPAIGNS.c.id)
    sent = exists().where(POSTS.c.campaign_id == CAMPAIGNS.c.id)
    connection.execute(delete(CAMPAIGNS).where(CAMPAIGNS.c.state == CLOSED, ~waits, ~sent))


def _prepare(connection: Connection, url: str) -> None:
    METADATA.create_all(connection)
    version = connection.scalar(select(META.c.version))
    if version is None:
        connection.execute(insert(META).values(version=OUTBOX_VERSION))
    elif version != OUTBOX_VERSION:
        raise StoreError(
            f"the outbox {shown_url(url)} has version {version} and this assay knows"
            f" {OUTBOX_VERSION}; set POC_STORE to another file, or run the assay that wrote it"
            " until it is empty"
        )
