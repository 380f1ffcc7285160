"""A node's mining rounds: which backend mines which nonces, and what has come from it, in SQL.

The tables lie in the outbox's database and change in one transaction with it: an artifact is waiting
for its receiver exactly when its share says that it has been reached. So whatever dies, at whatever
point, a nonce is neither kept twice nor taken for done.

A backend delivers the artifacts of one share in ascending order (its outbox sends posts in order and
repeats one until it is taken), so one number a share tells what is there. A nonce whose vector was
not finite comes with an empty text: it moves that number and goes to nobody. Without it a range whose
last vectors are not finite would never be complete.

Blocking; call it from threads. Safe for several threads at once.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    delete,
    exists,
    insert,
    select,
    update,
)

from assay.errors import StoreError
from assay.poc.nonces import place
from assay.store.outbox import (
    Outbox,
    close_campaigns,
    keep_piece,
    new_campaign,
    take_up_campaign,
)
from assay.store.outbox_tables import CAMPAIGNS, CLOSED, OPEN, Campaign
from assay.store.rounds_tables import (
    META,
    METADATA,
    ROUNDS,
    ROUNDS_VERSION,
    SHARES,
    WORKERS,
    Kept,
    Round,
    RoundSpec,
    Share,
    Worker,
)

LATE_WITHIN = 3600.0
"""Seconds after a round's end in which its workers' last artifacts are still kept."""

Artifact = tuple[int, str]
"""A nonce, and its vector as base64; empty where the vector was not finite."""


class Rounds:
    """The rounds of one node, in the database of its outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        with outbox.write() as connection:
            _prepare(connection)
            # No process of an earlier run of the node lives: its backends ended with it.
            _dismiss(connection, select(WORKERS.c.id))

    def begin(self, spec: RoundSpec, n_groups: int) -> Round:
        """A new round of ``n_groups`` classes, or the same one taken up again, held by nobody.

        Every other round is ended: what comes late from its workers is still kept.
        """
        with self._outbox.write() as connection:
            row = connection.execute(
                select(ROUNDS)
                .where(
                    ROUNDS.c.ended.is_(None),
                    ROUNDS.c.identity == spec.identity,
                    ROUNDS.c.url.is_not_distinct_from(spec.url),
                )
                .order_by(ROUNDS.c.id.desc())
            ).first()
            _end(connection, ROUNDS.c.id != (-1 if row is None else row.id))
            _forget(connection)
            if row is None:
                return Round(_new_round(connection, spec, n_groups), n_groups, 0, resumed=False)
            # Whoever had begun it, without an end to it, may have left it in any state.
            _dismiss(connection, select(WORKERS.c.id).where(WORKERS.c.round_id == row.id))
            if row.campaign_id is not None:
                take_up_campaign(connection, row.campaign_id)
            return Round(row.id, row.n_groups, row.kept, resumed=True)

    def end(self, round_id: int) -> None:
        """Nothing of it will be taken up again."""
        with self._outbox.write() as connection:
            _end(connection, ROUNDS.c.id == round_id)

    def kept(self, round_id: int) -> int:
        """Artifacts that came from backends so far."""
        with self._outbox.read() as connection:
            return int(connection.scalar(select(ROUNDS.c.kept).where(ROUNDS.c.id == round_id)) or 0)

    def shares(self, round_id: int) -> list[Share]:
        """All that is not complete, by class and position."""
        with self._outbox.read() as connection:
            rows = connection.execute(
                select(SHARES)
                .where(SHARES.c.round_id == round_id)
                .order_by(SHARES.c.group_id, SHARES.c.start)
            ).all()
        return [_share(row) for row in rows]

    def hire(self, round_id: int, port: int, generation: int) -> Worker:
        """A worker without shares."""
        token = secrets.token_hex(16)
        with self._outbox.write() as connection:
            result = connection.execute(
                insert(WORKERS).values(
                    token=token, round_id=round_id, port=port, generation=generation
                )
            )
            assert result.inserted_primary_key is not None
            return Worker(int(result.inserted_primary_key[0]), token, round_id, port, generation)

    def give(self, shares: Sequence[Share], worker: Worker) -> None:
        """These, which nobody has, are the worker's from now on. StoreError when somebody has one."""
        with self._outbox.write() as connection:
            given = connection.execute(
                update(SHARES)
                .where(
                    SHARES.c.id.in_([share.id for share in shares]),
                    SHARES.c.round_id == worker.round_id,
                    SHARES.c.worker_id.is_(None),
                )
                .values(worker_id=worker.id)
            )
            if given.rowcount != len(shares):
                raise StoreError(
                    f"{len(shares) - given.rowcount} of {len(shares)} shares of round"
                    f" {worker.round_id} are not there or another's; read the shares again"
                )

    def cut(self, share: Share, position: int) -> None:
        """The holder of an endless share stops before ``position``; the rest is nobody's.

        StoreError when the share is not there any more, or has an end already.
        """
        with self._outbox.write() as connection:
            row = connection.execute(
                select(SHARES).where(SHARES.c.id == share.id, SHARES.c.stop.is_(None))
            ).first()
            if row is None:
                raise StoreError(
                    f"share {share.id} of class {share.group_id} is not there any more, or has an"
                    " end; read the shares again"
                )
            # What is kept is never mined again, whatever the holder thinks it has done.
            stop = max(position, row.reached)
            connection.execute(update(SHARES).where(SHARES.c.id == row.id).values(stop=stop))
            connection.execute(
                insert(SHARES).values(
                    round_id=row.round_id,
                    group_id=row.group_id,
                    start=stop,
                    stop=None,
                    reached=stop,
                )
            )
            _drop_complete(connection, row.round_id)

    def dismiss(self, worker: Worker) -> None:
        """Its process is gone or no longer ours. What it has not delivered is nobody's again."""
        with self._outbox.write() as connection:
            _dismiss(connection, select(WORKERS.c.id).where(WORKERS.c.id == worker.id))

    def keep(self, token: str, artifacts: Sequence[Artifact]) -> Kept | None:
        """Artifacts from a worker, ascending in each share; those not kept yet go to the outbox.

        None for a token of no worker, or of one that was dismissed: nothing is kept.
        """
        with self._outbox.write() as connection:
            row = connection.execute(
                select(
                    ROUNDS,
                    WORKERS.c.id.label("worker_id"),
                    CAMPAIGNS.c.id.label("live_campaign_id"),
                )
                .join_from(WORKERS, ROUNDS)
                .outerjoin(CAMPAIGNS, CAMPAIGNS.c.id == ROUNDS.c.campaign_id)
                .where(WORKERS.c.token == token)
            ).first()
            if row is None:
                return None
            held = connection.execute(
                select(SHARES).where(SHARES.c.worker_id == row.worker_id)
            ).all()
            sorting = _Sorting(row, [_share(one) for one in held])
            fresh = [
                (nonce, vector) for nonce, vector in artifacts if sorting.is_new(nonce) and vector
            ]
            if sorting.reached:
                for share_id, reached in sorting.reached.items():
                    connection.execute(
                        update(SHARES).where(SHARES.c.id == share_id).values(reached=reached)
                    )
                if sorting.completes:
                    _drop_complete(connection, row.id)
            if fresh:
                _append(connection, row, fresh)
        return Kept(len(fresh), sorting.repeated, sorting.foreign, row.url)


class _Sorting:
    """Tells new artifacts of one post from repeated and foreign ones."""

    def __init__(self, round_row: Row[Any], shares: Sequence[Share]) -> None:
        self._of = (round_row.node_id, round_row.node_count, round_row.n_groups)
        self._shares: dict[int, list[Share]] = {}
        for share in shares:
            self._shares.setdefault(share.group_id, []).append(share)
        self.reached: dict[int, int] = {}
        self.repeated = self.foreign = 0
        self.completes = False

    def is_new(self, nonce: int) -> bool:
        found = place(nonce, *self._of)
        if found is None:
            self.foreign += 1
            return False
        group_id, position = found
        for share in self._shares.get(group_id, ()):
            if share.start <= position and (share.stop is None or position < share.stop):
                if position < self.reached.get(share.id, share.reached):
                    break
                self.reached[share.id] = position + 1
                self.completes |= position + 1 == share.stop
                return True
        # A complete share is forgotten, so what it held can only be told by its class.
        self.repeated += 1
        return False


def _new_round(connection: Connection, spec: RoundSpec, n_groups: int) -> int:
    campaign_id = None
    if spec.url is not None:
        campaign_id = new_campaign(connection, _campaign(spec.url, spec.caller, spec.head), OPEN)
    result = connection.execute(
        insert(ROUNDS).values(
            identity=spec.identity,
            url=spec.url,
            caller=spec.caller,
            head=json.dumps(spec.head),
            node_id=spec.node_id,
            node_count=spec.node_count,
            n_groups=n_groups,
            kept=0,
            campaign_id=campaign_id,
            ended=None,
        )
    )
    assert result.inserted_primary_key is not None
    round_id = int(result.inserted_primary_key[0])
    connection.execute(
        insert(SHARES),
        [
            {"round_id": round_id, "group_id": group_id, "start": 0, "stop": None, "reached": 0}
            for group_id in range(n_groups)
        ],
    )
    return round_id


def _campaign(url: str, caller: str | None, head: object) -> Campaign:
    assert isinstance(head, dict)
    return Campaign(url, caller, "generated", head)


def _append(connection: Connection, row: Row[Any], fresh: Sequence[Artifact]) -> None:
    campaign_id = row.live_campaign_id
    if row.url is not None:
        if campaign_id is None:
            # Late, after its round was ended and everything before it delivered.
            campaign = _campaign(row.url, row.caller, json.loads(row.head))
            campaign_id = new_campaign(connection, campaign, CLOSED)
        body = ",".join(
            f'{{"nonce":{nonce},"vector_b64":{json.dumps(vector)}}}' for nonce, vector in fresh
        )
        keep_piece(connection, campaign_id, len(fresh), body)
    connection.execute(
        update(ROUNDS)
        .where(ROUNDS.c.id == row.id)
        .values(kept=ROUNDS.c.kept + len(fresh), campaign_id=campaign_id)
    )


def _dismiss(connection: Connection, workers: Select[Any]) -> None:
    connection.execute(
        update(SHARES)
        .where(SHARES.c.worker_id.in_(workers))
        .values(worker_id=None, start=SHARES.c.reached)
    )
    connection.execute(delete(WORKERS).where(WORKERS.c.id.in_(workers)))


def _drop_complete(connection: Connection, round_id: int) -> None:
    connection.execute(
        delete(SHARES).where(SHARES.c.round_id == round_id, SHARES.c.reached >= SHARES.c.stop)
    )


def _end(connection: Connection, which: ColumnElement[bool]) -> None:
    rows = connection.execute(
        select(ROUNDS.c.id, ROUNDS.c.campaign_id).where(which, ROUNDS.c.ended.is_(None))
    ).all()
    if not rows:
        return
    close_campaigns(connection, [row.campaign_id for row in rows if row.campaign_id is not None])
    connection.execute(
        update(ROUNDS).where(ROUNDS.c.id.in_([row.id for row in rows])).values(ended=time.time())
    )


def _forget(connection: Connection) -> None:
    """Ended rounds that can have nothing on its way any more."""
    workers = exists().where(WORKERS.c.round_id == ROUNDS.c.id)
    past = ROUNDS.c.ended < time.time() - LATE_WITHIN
    gone = select(ROUNDS.c.id).where(ROUNDS.c.ended.is_not(None), past | ~workers)
    connection.execute(delete(SHARES).where(SHARES.c.round_id.in_(gone)))
    connection.execute(delete(WORKERS).where(WORKERS.c.round_id.in_(gone)))
    connection.execute(delete(ROUNDS).where(ROUNDS.c.id.in_(gone)))


def _prepare(connection: Connection) -> None:
    METADATA.create_all(connection)
    version = connection.scalar(select(META.c.version))
    if version is None:
        connection.execute(insert(META).values(version=ROUNDS_VERSION))
    elif version != ROUNDS_VERSION:
        raise StoreError(
            f"the rounds in the node's store have version {version} and this assay knows"
            f" {ROUNDS_VERSION}; give the node another store, or run the assay that wrote it"
        )


def _share(row: Row[Any]) -> Share:
    return Share(row.id, row.worker_id, row.group_id, row.start, row.stop, row.reached)
