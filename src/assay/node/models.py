"""``/api/v1/models``: the model files of this machine, over huggingface_hub."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.node.bodies import read_model
from assay.node.failures import NodeRefusal
from assay.node.logs import environment_secrets
from assay.node.model_cache import ModelCache, OnDisk, cache_folder, is_offline
from assay.node.model_digests import State
from assay.node.model_downloads import Download, Downloads
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.plan import backend_environment
from assay.node.served import ServedModel
from assay.settings import process_environment

GB = 1024**3
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"


class Model(BaseModel):
    """``hf_commit``: 40 hexadecimal digits. Without it the branch main is meant, as it is then."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hf_repo: Annotated[str, Field(pattern=rf"^{_NAME}(/{_NAME})?$")]
    hf_commit: Annotated[str | None, Field(pattern=r"^[0-9a-f]{40}$")] = None

    @field_validator("hf_repo")
    @classmethod
    def _one_folder(cls, repo: str) -> str:
        # The hub has no such names, and "a--b" would be the folder of "a/b".
        if "--" in repo or ".." in repo:
            raise ValueError("no name of the hub holds -- or ..")
        return repo

    def shown(self) -> dict[str, str | None]:
        return {"hf_repo": self.hf_repo, "hf_commit": self.hf_commit}


class Progress(BaseModel):
    """Seconds, bytes; the totals are null until the hub has answered."""

    start_time: float
    elapsed_seconds: float
    downloaded_bytes: int
    total_bytes: int | None
    files: int | None
    percent: float | None


class ModelStatus(BaseModel):
    """``status``: DOWNLOADED, DOWNLOADING, PARTIAL, NOT_FOUND, or IGNORED (offline).

    ``commit``: the one on disk or on its way. ``missing_files``: at most ten of those missing.
    ``digests``: known, computing (ask again) or unknown, of one that is downloaded; then
    ``weights_digest`` and ``files`` are as in ``/models/served``.
    """

    model: dict[str, str | None]
    status: str
    commit: str | None = None
    size_bytes: int = 0
    progress: Progress | None = None
    missing_files: list[str] = []
    error_message: str | None = None
    digests: State | None = None
    weights_digest: str | None = None
    files: dict[str, str] = {}


class Started(BaseModel):
    task_id: str
    status: str
    model: dict[str, str | None]


class ServedAnswer(BaseModel):
    """``served``: null while no model is up."""

    served: ServedModel | None


class Deleted(BaseModel):
    """``status``: deleted, or cancelled when it was being downloaded."""

    status: str
    model: dict[str, str | None]
    freed_bytes: int


class ModelList(BaseModel):
    models: list[ModelStatus]


class Space(BaseModel):
    """GB are 2^30 bytes."""

    cache_size_gb: float
    available_gb: float
    cache_size_bytes: int
    available_bytes: int
    cache_path: str


def part(node: Node) -> Part:
    routes = _Models(node)
    base = "/api/v1/models"
    return Part(
        [
            Route("POST", f"{base}/status", routes.status, body=Model, answer=ModelStatus),
            Route("POST", f"{base}/download", routes.download, body=Model, answer=Started),
            Route("DELETE", base, routes.delete, body=Model, answer=Deleted),
            Route("GET", f"{base}/list", routes.list, answer=ModelList),
            Route("GET", f"{base}/space", routes.space, answer=Space),
            Route("GET", f"{base}/served", routes.served, answer=ServedAnswer),
        ],
        routes.running,
    )


class _Models:
    def __init__(self, node: Node) -> None:
        self._node = node
        settings = node.config.models
        environment = self._environment()
        self._offline = is_offline(settings, environment)
        self._cache = ModelCache(cache_folder(settings, environment))
        self._downloads = Downloads(
            self._cache, self._environment, environment_secrets(node.config.backends)
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._downloads.cancel(self._downloads.all())

    async def status(self, request: Request) -> Response:
        model = await self._body(request)
        if self._offline:
            return _json(ModelStatus(model=model.shown(), status="IGNORED"))
        return _json(await self._status(model))

    async def download(self, request: Request) -> Response:
        """202 when it has begun; 200 when the very commit is there."""
        model = await self._body(request)
        if self._offline:
            raise NodeRefusal(
                409, "the node is offline (models.offline or HF_HUB_OFFLINE): it downloads nothing"
            )
        if self._node.draining.is_set():
            raise NodeRefusal(503, "the node is about to end")
        _need_hub()
        task = f"{model.hf_repo}@{model.hf_commit or 'main'}"
        there = await asyncio.to_thread(self._cache.look, model.hf_repo, model.hf_commit)
        running = self._downloads.get(model.hf_repo, model.hf_commit)
        # Where no commit is given only the hub knows whether main is still what it was.
        if model.hf_commit is not None and there.state == "DOWNLOADED" and running is None:
            return _json(Started(task_id=task, status="DOWNLOADED", model=model.shown()))
        await self._downloads.start(model.hf_repo, model.hf_commit)
        started = Started(task_id=task, status="DOWNLOADING", model=model.shown())
        return _json(started, status=202)

    async def delete(self, request: Request) -> Response:
        """404 when there is nothing; 409 while backends use it."""
        model = await self._body(request)
        _need_hub()
        supervisor = self._node.supervisor
        used = supervisor.request is not None and supervisor.phase in ("starting", "running")
        if used and supervisor.request is not None and supervisor.request.model == model.hf_repo:
            raise NodeRefusal(409, f"{model.hf_repo} is in use; POST /api/v1/inference/down first")
        running = self._downloads.of(model.hf_repo, model.hf_commit)
        await self._downloads.cancel(running)
        self._downloads.errors.pop((model.hf_repo, model.hf_commit), None)
        freed = await asyncio.to_thread(self._cache.delete, model.hf_repo, model.hf_commit)
        if freed is None and not running:
            raise NodeRefusal(404, f"{model.hf_repo}: there is nothing of it in the cache")
        deleted = Deleted(
            status="cancelled" if running else "deleted",
            model=model.shown(),
            freed_bytes=freed or 0,
        )
        return _json(deleted)

    async def list(self, request: Request) -> Response:
        """What is in the cache, whoever put it there, and what is on its way."""
        found = await asyncio.to_thread(self._cache.models)
        running = self._downloads.all()
        busy = {(one.repo, one.commit) for one in running}
        models = [
            _described(Model.model_construct(hf_repo=repo, hf_commit=there.commit), there)
            for repo, there in found
            if (repo, there.commit) not in busy
        ]
        for one in running:
            asked = Model.model_construct(hf_repo=one.repo, hf_commit=one.asked)
            models.append(await self._progress(asked, one))
        return _json(ModelList(models=models))

    async def space(self, request: Request) -> Response:
        size = await asyncio.to_thread(self._cache.size_bytes)
        free = await asyncio.to_thread(self._cache.free_bytes)
        space = Space(
            cache_size_gb=round(size / GB, 2),
            available_gb=round(free / GB, 2),
            cache_size_bytes=size,
            available_bytes=free,
            cache_path=str(self._cache.folder),
        )
        return _json(space)

    async def served(self, request: Request) -> Response:
        """Commit and digests of what the backends serve, or will serve once they are ready."""
        for backend in self._node.pool.backends:
            if (served := await self._node.served.of(backend)) is not None:
                return _json(ServedAnswer(served=served))
        return _json(ServedAnswer(served=None))

    async def _status(self, model: Model) -> ModelStatus:
        download = self._downloads.get(model.hf_repo, model.hf_commit)
        if download is not None:
            return await self._progress(model, download)
        there = await asyncio.to_thread(self._cache.look, model.hf_repo, model.hf_commit)
        update: dict[str, Any] = {
            "error_message": self._downloads.errors.get((model.hf_repo, model.hf_commit))
        }
        if there.state == "DOWNLOADED" and there.commit is not None:
            folder = self._cache.root(model.hf_repo) / "snapshots" / there.commit
            found = await self._node.digests.look(folder)
            update |= {
                "digests": found.state,
                "weights_digest": found.weights,
                "files": dict(found.files),
            }
        return _described(model, there).model_copy(update=update)

    async def _progress(self, model: Model, download: Download) -> ModelStatus:
        there = await asyncio.to_thread(self._cache.look, download.repo, download.commit)
        total = download.total_bytes
        # Unfinished files of another commit count too: they may not show more than there is.
        done = 0 if total is None else min(there.size_bytes, total)
        progress = Progress(
            start_time=download.started,
            elapsed_seconds=time.time() - download.started,
            downloaded_bytes=done,
            total_bytes=total,
            files=download.files,
            percent=round(100 * done / total, 1) if total else None,
        )
        return ModelStatus(
            model=model.shown(),
            status="DOWNLOADING",
            commit=download.commit,
            size_bytes=done,
            progress=progress,
        )

    def _environment(self) -> dict[str, str]:
        """What backends get too: the same cache, hub and token."""
        return backend_environment(self._node.config.backends, process_environment())

    async def _body(self, request: Request) -> Model:
        return await read_model(request, Model, self._node.config.limits.control_body_bytes)


def _need_hub() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise NodeRefusal(
            503, "huggingface_hub is not installed; it comes with vLLM: pip install huggingface_hub"
        )


def _described(model: Model, there: OnDisk) -> ModelStatus:
    return ModelStatus(
        model=model.shown(),
        status=there.state,
        commit=there.commit,
        size_bytes=there.size_bytes,
        missing_files=list(there.missing[:10]),
    )


def _json(answer: BaseModel, *, status: int = 200) -> Response:
    content: dict[str, Any] = answer.model_dump()
    return JSONResponse(content, status_code=status)
