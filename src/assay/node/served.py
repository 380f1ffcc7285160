"""Which files the backends serve: the commit and the digests a reader can hold against others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict

from assay.errors import SettingsError
from assay.node.backend import Backend, BackendState
from assay.node.model_digests import Digests, Stamp, State, stamp_of
from assay.node.pool import Change, Pool

CHANGED = "the files have changed since port {} loaded them"


class ServedModel(BaseModel):
    """``digests``: known, computing (ask again) or unknown, with the ``reason``.

    ``commit``: of the hub; null for a folder that is no snapshot of it. ``weights_digest``:
    ``sha256:<hex>`` of the weight files together, the ``model_digest`` of claims and replays.
    ``files``: SHA-256 by name of the weights, and of the configuration, tokenizer and templates.
    """

    model_config = ConfigDict(protected_namespaces=())

    model: str
    commit: str | None = None
    folder: str | None = None
    digests: State
    weights_digest: str | None = None
    files: dict[str, str] = {}
    reason: str = ""


@dataclass(frozen=True)
class _Loaded:
    """What the process of one generation found when it had just loaded its files."""

    generation: int
    stamp: Stamp


class Served:
    """Begins to compute digests as soon as a backend is ready."""

    def __init__(self, pool: Pool, digests: Digests) -> None:
        self._digests = digests
        self._loaded: WeakKeyDictionary[Backend, _Loaded] = WeakKeyDictionary()
        self._noting: set[asyncio.Task[None]] = set()
        pool.listen(self._note)

    async def of(self, backend: Backend) -> ServedModel | None:
        """What a backend serves; None for one that the node did not start."""
        source = backend.source
        if source is None:
            return None
        found = await asyncio.to_thread(source.locate)
        if found.folder is None:
            return ServedModel(model=source.model, digests="unknown", reason=found.why)
        shown = ServedModel(
            model=source.model, commit=found.commit, folder=str(found.folder), digests="unknown"
        )
        loaded = self._loaded.get(backend)
        if loaded is not None and loaded.generation == backend.generation:
            try:
                now = await asyncio.to_thread(stamp_of, found.folder)
            except (OSError, SettingsError) as error:
                return shown.model_copy(update={"reason": str(error)})
            if loaded.stamp != now:
                return shown.model_copy(update={"reason": CHANGED.format(backend.port)})
        digests = await self._digests.look(found.folder)
        update = {
            "digests": digests.state,
            "weights_digest": digests.weights,
            "files": dict(digests.files),
            "reason": digests.why,
        }
        return shown.model_copy(update=update)

    async def close(self) -> None:
        """Wait for the notes being taken, then stop computing."""
        if self._noting:
            await asyncio.wait(set(self._noting))
        await self._digests.close()

    def _note(self, change: Change) -> None:
        backend = change.backend
        loaded = self._loaded.get(backend)
        known = loaded is not None and loaded.generation == change.generation
        if change.new is BackendState.READY and backend.source is not None and not known:
            task = asyncio.create_task(self._take_down(backend, change.generation))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)

    async def _take_down(self, backend: Backend, generation: int) -> None:
        assert backend.source is not None
        found = await asyncio.to_thread(backend.source.locate)
        if found.folder is None:
            return
        try:
            stamp = await asyncio.to_thread(stamp_of, found.folder)
        except (OSError, SettingsError):
            return  # whoever asks is told why
        self._loaded[backend] = _Loaded(generation, stamp)
        await self._digests.look(found.folder)
