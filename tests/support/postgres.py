"""A real PostgreSQL of a test session's own: in a temporary folder, on a socket no one else sees."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/bin", "/usr/pgsql-*/bin")
USERS = ("postgres", "nobody")
"""Whom the server runs as where the tests run as root, which it refuses."""


class NoPostgresError(Exception):
    """Why there is none here."""


@contextmanager
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of the superuser's database. NoPostgresError where none can run."""
    binaries = _binaries()
    user = _user()
    # A socket's path is limited to 107 bytes, which pytest's own folders can pass.
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        _run(
            user, binaries / "initdb", "-D", data, "-U", "assay", "-A", "trust", "-N", "-E", "UTF8"
        )
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
        log = folder / "log"
        _run(user, binaries / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg://assay@/postgres?host={folder}"
        finally:
            _run(user, binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _binaries() -> Path:
    for pattern in FOLDERS:
        for folder in sorted(Path("/").glob(pattern[1:]), reverse=True):
            if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
                return folder
    raise NoPostgresError("no initdb and pg_ctl here")


def _user() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in USERS:
        if name in known and shutil.which("setpriv"):
            return known[name]
    raise NoPostgresError("it must not run as root, and there is no other user to run it as")


def _run(user: pwd.struct_passwd | None, *command: str | Path) -> None:
    as_user: tuple[str, ...] = ()
    if user is not None:
        as_user = (
            *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"),
            "--",
        )
    done = subprocess.run(
        [*as_user, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a pipe would be inherited by the server and never end
        stderr=subprocess.PIPE if "start" not in command else subprocess.DEVNULL,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        check=False,
    )
    if done.returncode:
        raise NoPostgresError(f"{command[0]}: {(done.stderr or b'').decode()[-500:]}")
