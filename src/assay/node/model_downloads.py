"""Downloads that run: one process each, watched, stopped with the node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.node.failures import NodeRefusal
from assay.node.logs import hide
from assay.node.model_cache import ModelCache

logger = logging.getLogger("assay.node.models")

AT_ONCE = 3
"""Downloads at once; one fills most lines already."""
FETCH = (sys.executable, "-m", "assay.node.model_fetch")
Key = tuple[str, str | None]


@dataclass
class Download:
    """One that runs. ``commit`` and the totals are known once the hub has answered."""

    repo: str
    asked: str | None
    started: float
    process: asyncio.subprocess.Process
    commit: str | None = None
    total_bytes: int | None = None
    files: int | None = None
    cancelled: bool = False
    watched: asyncio.Task[None] = field(init=False)


class Downloads:
    """``errors`` holds why the last download of a model failed, until the next one."""

    def __init__(
        self,
        cache: ModelCache,
        environment: Callable[[], Mapping[str, str]],
        secrets: Sequence[str],
    ) -> None:
        self._cache = cache
        self._environment = environment
        self._secrets = secrets
        self._running: dict[Key, Download] = {}
        self._starting: set[Key] = set()
        self.errors: dict[Key, str] = {}

    def get(self, repo: str, commit: str | None) -> Download | None:
        """The one that was asked for so, or that turned out to be of this commit."""
        found = self._running.get((repo, commit))
        if found is None and commit is not None:
            return next(iter(self.of(repo, commit)), None)
        return found

    def of(self, repo: str, commit: str | None) -> list[Download]:
        """Those of a commit, or all of a repository."""
        return [
            one
            for one in self._running.values()
            if one.repo == repo and commit in (None, one.asked, one.commit)
        ]

    def all(self) -> list[Download]:
        return list(self._running.values())

    async def start(self, repo: str, commit: str | None) -> Download:
        """NodeRefusal 409 when it runs already, 429 when too many others do."""
        key = (repo, commit)
        if self.get(repo, commit) is not None or key in self._starting:
            raise NodeRefusal(409, f"{repo} is being downloaded already; ask for its status")
        if len(self._running) + len(self._starting) >= AT_ONCE:
            raise NodeRefusal(
                429, f"{AT_ONCE} downloads are running; try again", headers={"Retry-After": "60"}
            )
        self._starting.add(key)
        try:
            process = await asyncio.create_subprocess_exec(
                *FETCH,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**self._environment(), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            )
        finally:
            self._starting.discard(key)
        self.errors.pop(key, None)
        download = Download(repo, commit, time.time(), process)
        self._running[key] = download
        download.watched = asyncio.create_task(self._watch(key, download))
        return download

    async def cancel(self, downloads: Sequence[Download]) -> None:
        """Return when their processes are gone."""
        for one in downloads:
            one.cancelled = True
            with contextlib.suppress(ProcessLookupError):
                one.process.kill()
        if downloads:
            await asyncio.wait([one.watched for one in downloads])

    async def _watch(self, key: Key, download: Download) -> None:
        error: str | None = "the process that downloads it ended without a word"
        try:
            process = download.process
            assert process.stdin is not None
            assert process.stdout is not None
            request = {"repo": download.repo, "commit": download.asked}
            request["cache_dir"] = str(self._cache.folder)
            # Stays open: when the node dies it closes, and the process ends.
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
            async for line in process.stdout:
                try:
                    said: dict[str, Any] = json.loads(line)
                except ValueError:  # something a library printed
                    continue
                if "total_bytes" in said:
                    download.commit = said["commit"]
                    download.total_bytes, download.files = said["total_bytes"], said["files"]
                elif "done" in said:
                    download.commit, error = said["done"], None
                else:
                    error = hide(str(said.get("error")), self._secrets)
            await process.wait()
            process.stdin.close()
        finally:
            del self._running[key]
            if error is not None and not download.cancelled:
                self.errors[key] = error
                logger.error("download of %s failed: %s", download.repo, error)
            elif error is None:
                logger.info("%s is here, commit %s", download.repo, download.commit)
