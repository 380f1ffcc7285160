"""One outbox, one server: two would both send what waits."""

from __future__ import annotations

import fcntl
import time
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import make_url

from assay.errors import StoreError
from assay.store.database import OUTBOX_OWNER, in_memory, lock_of, shown_url

OWNER_GONE_WITHIN = 3.0
"""Seconds PostgreSQL may take to notice that the server before was killed."""


def make_folder(url: str) -> None:
    path = _file_of(url)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder of the outbox {path}: {error}") from error


def hold_alone(url: str, engine: Engine, closing: ExitStack) -> None:
    """Hold a lock until ``closing``: two servers would both send what waits."""
    if engine.dialect.name == "postgresql":
        holder = closing.enter_context(
            engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        )
        # Of the session, not of a transaction: a server that dies loses its connection with it.
        closing.callback(holder.invalidate)
        query = f"SELECT pg_try_advisory_lock({lock_of(OUTBOX_OWNER)})"
        until = time.monotonic() + OWNER_GONE_WITHIN
        while not holder.exec_driver_sql(query).scalar():
            if time.monotonic() > until:
                raise StoreError(
                    f"the outbox {shown_url(url)} is in use by another server; set POC_STORE to a"
                    " database or schema of this server's own"
                )
            time.sleep(0.05)
        return
    path = _file_of(url)
    if path is None:
        return
    try:
        handle = closing.enter_context(path.with_name(path.name + ".lock").open("ab"))
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(
            f"the outbox {path} is in use by another server; set POC_STORE to a file of this"
            " server's own"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot open the outbox {path}: {error}") from error


def _file_of(url: str) -> Path | None:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or in_memory(parsed):
        return None
    return Path(str(parsed.database))
