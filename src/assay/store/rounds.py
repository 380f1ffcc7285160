"""A node's mining rounds: which backend mines which nonces, and what has come from it, in SQL.

The tables lie in the outbox's database and change in one transaction with it: an artifact is waiting
for its receiver exactly when its share says that it has been reached. So whatever dies, at whatever
point, a nonce is neither kept twice nor taken for done.

A backend delivers the artifacts of one share in ascending order (its outbox sends posts in order and
repeats one until it is taken), so one number a share tells what is there. Positions missing below it
were not finite.

Blocking; call it from threads. Safe for several threads at once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, Row, delete, exists, insert, select, update

from assay.errors import StoreError
from assay.poc.nonces import place
from assay.store.outbox import Outbox, keep_piece, new_campaign
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

Artifact = tuple[int, str]
"""A nonce, and its vector as base64."""


class Rounds:
    """The rounds of one node, in the database of its outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        with outbox.write() as connection:
            _prepare(connection)
            # No process of an earlier run of the node lives: its backends ended with it.
            _dismiss(connection, select(WORKERS.c.id))

    def begin(self, spec: RoundSpec, n_groups: int) -> Round:
        """A new round of ``n_groups`` classes, or the same one taken up again.

        Every other round is closed: what comes late from its workers is still kept.
        """
        with self._outbox.write() as connection:
            row = connection.execute(
                select(ROUNDS)
                .where(
                    ROUNDS.c.open,
                    ROUNDS.c.identity == spec.identity,
                    ROUNDS.c.url.is_not_distinct_from(spec.url),
                )
                .order_by(ROUNDS.c.id.desc())
            ).first()
            _close(connection, ROUNDS.c.open & (ROUNDS.c.id != (-1 if row is None else row.id)))
            _forget(connection)
            if row is not None:
                return Round(row.id, row.n_groups, row.kept, resumed=True)
            return Round(_new_round(connection, spec, n_groups), n_groups, 0, resumed=False)

    def end(self, round_id: int) -> None:
        """Nothing of it will be taken up again."""
        with self._outbox.write() as connection:
            _close(connection, ROUNDS.c.id == round_id)

    def kept(self, round_id: int) -> int:
        """Artifacts that came from backends so far."""
        with self._outbox.write() as connection:
            return int(connection.scalar(select(ROUNDS.c.kept).where(ROUNDS.c.id == round_id)) or 0)

    def shares(self, round_id: int) -> list[Share]:
        """All that is not complete, by class and position."""
        with self._outbox.write() as connection:
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

    def give(self, shares: Iterable[Share], worker: Worker) -> None:
        """These, which nobody has, are the worker's from now on."""
        with self._outbox.write() as connection:
            connection.execute(
                update(SHARES)
                .where(SHARES.c.id.in_([share.id for share in shares]))
                .values(worker_id=worker.id)
            )

    def cut(self, share: Share, position: int) -> None:
        """The holder of an endless share stops before ``position``; the rest is nobody's."""
        with self._outbox.write() as connection:
            connection.execute(update(SHARES).where(SHARES.c.id == share.id).values(stop=position))
            connection.execute(insert(SHARES).values(**_rest(connection, share, position)))
            _drop_complete(connection)

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
                select(ROUNDS, WORKERS.c.id.label("worker_id"))
                .join_from(WORKERS, ROUNDS)
                .where(WORKERS.c.token == token)
            ).first()
            if row is None:
                return None
            held = connection.execute(
                select(SHARES).where(SHARES.c.worker_id == row.worker_id)
            ).all()
            sorting = _Sorting(row, [_share(one) for one in held])
            fresh = [artifact for artifact in artifacts if sorting.is_new(artifact[0])]
            for share_id, reached in sorting.reached.items():
                connection.execute(
                    update(SHARES).where(SHARES.c.id == share_id).values(reached=reached)
                )
            _drop_complete(connection)
            if fresh:
                _append(connection, row, fresh)
        return Kept(len(fresh), sorting.repeated, sorting.foreign, row.url)


class _Sorting:
    """Tells new artifacts of one post from repeated and foreign ones."""

    def __init__(self, round_row: Row[tuple[object, ...]], shares: Sequence[Share]) -> None:
        self._round = round_row
        self._shares = shares
        self.reached: dict[int, int] = {}
        self.repeated = self.foreign = 0

    def is_new(self, nonce: int) -> bool:
        found = place(nonce, self._round.node_id, self._round.node_count, self._round.n_groups)
        group_id, position = found if found is not None else (-1, -1)
        mine = [share for share in self._shares if share.group_id == group_id]
        for share in mine:
            if share.start <= position and (share.stop is None or position < share.stop):
                if position < self.reached.get(share.id, share.reached):
                    break
                self.reached[share.id] = position + 1
                return True
        # A complete share is forgotten, so what it held can only be told by its class.
        if found is None:
            self.foreign += 1
        else:
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
            open=True,
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


def _append(
    connection: Connection, row: Row[tuple[object, ...]], fresh: Sequence[Artifact]
) -> None:
    connection.execute(
        update(ROUNDS).where(ROUNDS.c.id == row.id).values(kept=ROUNDS.c.kept + len(fresh))
    )
    if row.url is None:
        return
    campaign_id = row.campaign_id
    there = connection.scalar(select(exists().where(CAMPAIGNS.c.id == campaign_id)))
    if not there:
        # Late, after its round was closed and everything before it delivered.
        campaign_id = new_campaign(
            connection, _campaign(row.url, row.caller, json.loads(row.head)), CLOSED
        )
    body = ",".join(
        f'{{"nonce":{nonce},"vector_b64":{json.dumps(vector)}}}' for nonce, vector in fresh
    )
    keep_piece(connection, campaign_id, len(fresh), body)


def _dismiss(connection: Connection, workers: object) -> None:
    connection.execute(
        update(SHARES)
        .where(SHARES.c.worker_id.in_(workers))
        .values(worker_id=None, start=SHARES.c.reached)
    )
    connection.execute(delete(WORKERS).where(WORKERS.c.id.in_(workers)))


def _drop_complete(connection: Connection) -> None:
    connection.execute(delete(SHARES).where(SHARES.c.reached >= SHARES.c.stop))


def _rest(connection: Connection, share: Share, position: int) -> dict[str, object]:
    round_id = connection.scalar(select(SHARES.c.round_id).where(SHARES.c.id == share.id))
    return {
        "round_id": round_id,
        "group_id": share.group_id,
        "start": position,
        "stop": None,
        "reached": position,
    }


def _close(connection: Connection, which: object) -> None:
    closing = select(ROUNDS.c.campaign_id).where(which)
    connection.execute(update(CAMPAIGNS).where(CAMPAIGNS.c.id.in_(closing)).values(state=CLOSED))
    connection.execute(update(ROUNDS).where(which).values(open=False))


def _forget(connection: Connection) -> None:
    """Closed rounds none of whose workers can still send anything."""
    workers = exists().where(WORKERS.c.round_id == ROUNDS.c.id)
    gone = select(ROUNDS.c.id).where(~ROUNDS.c.open, ~workers)
    connection.execute(delete(SHARES).where(SHARES.c.round_id.in_(gone)))
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


def _share(row: Row[tuple[object, ...]]) -> Share:
    return Share(row.id, row.worker_id, row.group_id, row.start, row.stop, row.reached)
