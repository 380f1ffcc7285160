"""Folders that take long to make, are made once, and are never seen half made."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Hold an advisory lock on the file ``lock``; the kernel drops it when the process dies."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``make(scratch)`` unless it exists.

    ``make`` writes into an empty folder beside the target, which is renamed when it returns: a
    crash leaves no folder under the final name. Two callers, threads or processes, do the work
    once: the second waits for the lock and finds the folder made.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            return folder
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new-"))
        try:
            make(scratch)
            scratch.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder
