"""Digests of model files: computed once, in a thread, one folder at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from assay.errors import SettingsError
from assay.replay.weights import file_digest, joined, weight_files

logger = logging.getLogger("assay.node.models")

BESIDE = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")
"""Files beside the weights that change what is served: configuration, tokenizer, template, code."""
State = Literal["known", "computing", "unknown"]
Stamp = tuple[tuple[str, int, int], ...]
"""Name, bytes and time of change (ns) of each file: what it takes for them to be the same files."""


@dataclass(frozen=True)
class FileDigests:
    """``files``: SHA-256 (hexadecimal) by name. ``weights``: ``sha256:<hex>`` of the weight files
    together, as ``assay record --model-files`` writes it into claims. ``why``: of ``unknown``."""

    state: State
    weights: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


COMPUTING = FileDigests("computing")


class _Stopped(Exception):  # noqa: N818 - the node ends; nothing went wrong
    pass


class Digests:
    """``cache``: folder that remembers digests of files over restarts of the node."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._stop = threading.Event()
        self._one = asyncio.Lock()
        self._known: dict[Path, tuple[Stamp, FileDigests]] = {}
        self._running: dict[Path, asyncio.Task[None]] = {}

    async def look(self, folder: Path) -> FileDigests:
        """The digests of a model folder (or single file) as it is now.

        ``computing`` while they are not known yet; asking starts the work. Hundreds of gigabytes
        take minutes, so nobody is made to wait for it.
        """
        try:
            stamp = await asyncio.to_thread(stamp_of, folder)
        except (OSError, SettingsError) as error:
            return FileDigests("unknown", why=str(error))
        known = self._known.get(folder)
        if known is not None and known[0] == stamp:
            return known[1]
        if folder not in self._running and not self._stop.is_set():
            self._running[folder] = asyncio.create_task(self._compute(folder, stamp))
        return COMPUTING

    async def close(self) -> None:
        """Stop what is being computed; what is done of it is kept."""
        self._stop.set()
        if self._running:
            await asyncio.wait(set(self._running.values()))

    async def _compute(self, folder: Path, stamp: Stamp) -> None:
        try:
            async with self._one:
                found = await asyncio.to_thread(self._digests, folder)
            logger.info("digests of %s: weights %s", folder, found.weights)
        except _Stopped:
            return
        except (OSError, SettingsError) as error:
            logger.warning("no digests of %s: %s", folder, error)
            found = FileDigests("unknown", why=str(error))
        finally:
            del self._running[folder]
        self._known[folder] = (stamp, found)

    def _digests(self, folder: Path) -> FileDigests:
        def go_on() -> None:
            if self._stop.is_set():
                raise _Stopped

        weights = {file.name for file in weight_files(folder)}
        files = {f.name: file_digest(f, self._cache, go_on) for f in _files(folder)}
        only = {name: digest for name, digest in files.items() if name in weights}
        return FileDigests("known", joined(only), files)


def stamp_of(folder: Path) -> Stamp:
    """Blocking. Raises SettingsError where there are no weights, OSError where one is gone."""
    stats = ((file.name, file.stat()) for file in _files(folder))
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _files(folder: Path) -> list[Path]:
    weights = weight_files(folder)
    if not folder.is_dir():
        return weights
    beside = {p for p in folder.iterdir() if p.suffix in BESIDE and p.is_file()}
    return sorted({*weights, *beside}, key=lambda file: file.name)
