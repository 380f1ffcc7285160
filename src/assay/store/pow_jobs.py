"""Jobs whose results a receiver waits for, kept until their callback lies in the outbox, in SQL.

The callback goes to the outbox in the transaction that forgets the job: a repeated one finds no job,
and a job without one is sent to a backend again, after a restart of the node too. Blocking; call it
from threads. The tables are those of :class:`assay.store.rounds.Rounds`, which makes them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select, update

from assay.store.outbox import Outbox, keep_whole
from assay.store.outbox_tables import Campaign, Kind
from assay.store.rounds_tables import JOBS, KeptJob


class PowJobs:
    """The jobs of one node, in the database of its outbox; open its rounds first."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        with outbox.write() as connection:
            # Their client was never told that they are queued; it will ask again.
            connection.execute(delete(JOBS).where(JOBS.c.id.is_(None)))

    def add(self, url: str, caller: str | None, body: str) -> KeptJob:
        """Keep a job before a backend is asked, without an id."""
        job = KeptJob(secrets.token_hex(16), None, url, caller, body, time.time())
        with self._outbox.write() as connection:
            connection.execute(
                insert(JOBS).values(
                    token=job.token, id=None, url=url, caller=caller, body=body, begun=job.begun
                )
            )
        return job

    def name(self, token: str, job_id: str) -> None:
        """A backend has queued it, and the client knows it by ``job_id``."""
        with self._outbox.write() as connection:
            connection.execute(update(JOBS).where(JOBS.c.token == token).values(id=job_id))

    def all(self) -> list[KeptJob]:
        """Every job without a callback yet, the oldest first."""
        with self._outbox.read() as connection:
            rows = connection.execute(select(JOBS).order_by(JOBS.c.begun, JOBS.c.token)).all()
        return [KeptJob(**row._mapping) for row in rows]

    def drop(self, token: str) -> None:
        """No callback will come: refused, failed, or called off."""
        with self._outbox.write() as connection:
            connection.execute(delete(JOBS).where(JOBS.c.token == token))

    def finish(
        self, token: str, kind: Kind, head: Mapping[str, Any], count: int, body: str
    ) -> KeptJob | None:
        """Its callback, for the outbox; ``body``: ``count`` artifacts as text.

        None when there is no such job, or its callback is there already: nothing is kept.
        """
        with self._outbox.write() as connection:
            row = connection.execute(select(JOBS).where(JOBS.c.token == token)).first()
            if row is None:
                return None
            job = KeptJob(**row._mapping)
            keep_whole(connection, Campaign(job.url, job.caller, kind, head), count, body)
            connection.execute(delete(JOBS).where(JOBS.c.token == token))
        return job
