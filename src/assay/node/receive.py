"""A receiver of callbacks, for tests and small deployments: checks what comes, keeps it once.

Its routes are at the root and under any base path, as ``<host>/v2/poc-batches/<model>/generated``.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from fastapi import FastAPI
from pydantic import BaseModel, PositiveInt, SecretStr, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay import __version__
from assay.node.access import Access
from assay.node.bodies import parse, read_body
from assay.node.config import MIB, Keys, Port, Section, is_loopback
from assay.node.failures import NodeRefusal
from assay.node.part import Route, attach, describe
from assay.node.receive_bodies import Body, Generated, Validated
from assay.store.received import ConflictError, PorousError, ReceivedStore
from assay.store.received_tables import NAME_LENGTH, Arrival, Received

logger = logging.getLogger("assay.receive")

MAX_POROSITY = 100.0
"""max|nonce| / count at which a node's nonces are too thin (../shared/spec/http.md, issue 5)."""
SHOWN = 1000
"""Senders in one summary, the last heard first."""
KEY_IN_PATH = "key/"
USABLE_KEY = re.compile(r"[A-Za-z0-9._~-]{8,}")


class ReceiverConfig(Section):
    """Everything ``assay node receive`` can be told."""

    host: str = "127.0.0.1"
    port: Port = 8090
    store: SecretStr
    """Path of a SQLite file, or a database URL, which may hold a password."""
    key: SecretStr | None = None
    body_bytes: PositiveInt = 64 * MIB
    """100,000 artifacts are 7 MB; a post of the engine plugin holds a tenth of it."""
    refuse_porous: bool = False

    @field_validator("key")
    @classmethod
    def _usable(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not USABLE_KEY.fullmatch(key.get_secret_value()):
            raise ValueError("give 8 or more letters, digits, and . _ ~ -, so that it fits a path")
        return key

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.key is None and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from other machines and there is no key; set"
                " ASSAY_RECEIVE_KEY or --key-file, or listen on 127.0.0.1"
            )
        return self


class Kept(BaseModel):
    """``repeated``: this request was here before, and was kept once. ``porous``: porosity >= 100."""

    status: str = "OK"
    stored: int
    repeated: bool
    artifacts: int | None = None
    porosity: float | None = None
    porous: bool | None = None


class Summary(BaseModel):
    """``senders``: the last heard first, at most 1000 of ``count``."""

    count: int
    senders: list[dict[str, Any]]


def create_receiver(config: ReceiverConfig) -> FastAPI:
    """The app; its lifespan opens the store, reachable as ``app.state.store``."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = await asyncio.to_thread(ReceivedStore, config.store.get_secret_value())
        app.state.store = store
        try:
            yield
        finally:
            await asyncio.to_thread(store.close)

    app = FastAPI(
        title="assay receiver",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    routes = _Receiver(config)
    listed = [
        Route("GET", "/health", routes.health, key="none"),
        Route("GET", "/summary", routes.summary, key="none", answer=Summary),
    ]
    for name, handler, body in (
        ("generated", routes.generated, Generated),
        ("validated", routes.validated, Validated),
    ):
        path = f"/{name}"
        listed.append(Route("POST", path, handler, key="none", body=body, answer=Kept))
        listed.append(Route("POST", f"/{{base:path}}{path}", handler, key="none", hidden=True))
    # The key is the receiver's own affair: it may come in the path as well.
    attach(app, Access(Keys()), listed)
    describe(app, listed)
    return app


class _Receiver:
    def __init__(self, config: ReceiverConfig) -> None:
        self._config = config
        key = config.key
        self._key = None if key is None else _digest(key.get_secret_value())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "OK"})

    async def generated(self, request: Request) -> Response:
        self._check_key(request)
        raw = await read_body(request, self._config.body_bytes)
        arrival = _arrival(request, "generated", raw)
        return await asyncio.to_thread(self._keep_vectors, _store(request), raw, arrival)

    async def validated(self, request: Request) -> Response:
        self._check_key(request)
        raw = await read_body(request, self._config.body_bytes)
        arrival = _arrival(request, "validated", raw)
        return await asyncio.to_thread(self._keep_result, _store(request), raw, arrival)

    async def summary(self, request: Request) -> Response:
        """What was received, a sender at a time."""
        self._check_key(request)
        count, senders = await asyncio.to_thread(_store(request).senders, SHOWN)
        shown = Summary(count=count, senders=[_shown(sender) for sender in senders])
        return JSONResponse(shown.model_dump())

    def _keep_vectors(self, store: ReceivedStore, raw: bytes, arrival: Arrival) -> Response:
        body = parse(Generated, raw)
        try:
            after, new = store.add_vectors(
                body.sender(),
                body.vectors(),
                arrival,
                most_porous=MAX_POROSITY if self._config.refuse_porous else None,
            )
        except NodeRefusal as refusal:
            raise _rejected(store, body, refusal) from refusal
        except ConflictError as error:
            where = "" if error.index is None else f"artifacts[{error.index}].nonce: "
            raise _rejected(store, body, NodeRefusal(409, f"{where}{error}")) from error
        except PorousError as error:
            raise _rejected(store, body, NodeRefusal(422, f"artifacts: {error}")) from error
        kept = Kept(
            stored=len(body.artifacts) if new else 0,
            repeated=not new,
            artifacts=after.artifacts,
            porosity=after.porosity,
            porous=_porous(after),
        )
        return JSONResponse(kept.model_dump())

    def _keep_result(self, store: ReceivedStore, raw: bytes, arrival: Arrival) -> Response:
        body = parse(Validated, raw)
        try:
            new = store.add_result(body.sender(), body.result(), arrival)
        except NodeRefusal as refusal:
            raise _rejected(store, body, refusal) from refusal
        except ConflictError as error:
            raise _rejected(store, body, NodeRefusal(409, str(error))) from error
        kept = Kept(stored=int(new), repeated=not new)
        return JSONResponse(kept.model_dump(exclude_none=True))

    def _check_key(self, request: Request) -> None:
        """NodeRefusal 401 unless the key came as a bearer token or as ``/key/<key>/`` of the path.

        Senders of callbacks know nothing but an address, so the address may hold the key.
        """
        if self._key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        base = str(request.path_params.get("base", ""))
        in_path = base.removeprefix(KEY_IN_PATH).partition("/")[0]
        given = [token if scheme.lower() == "bearer" else ""]
        given.append(in_path if base.startswith(KEY_IN_PATH) else "")
        if not any([hmac.compare_digest(_digest(one), self._key) for one in given]):
            raise NodeRefusal(
                401,
                "Unauthorized: send the receiver's key as a bearer token, or give senders"
                " <host>/key/<key> as the address",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _store(request: Request) -> ReceivedStore:
    store: ReceivedStore = request.app.state.store
    return store


def _arrival(request: Request, kind: str, raw: bytes) -> Arrival:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= NAME_LENGTH:
        raise NodeRefusal(400, f"Idempotency-Key: give 1 to {NAME_LENGTH} characters")
    return Arrival(key, hashlib.sha256(kind.encode() + b"\n" + raw).hexdigest())


def _rejected(store: ReceivedStore, body: Body, refusal: NodeRefusal) -> NodeRefusal:
    """``refusal``, after it was counted for the sender."""
    sender = body.sender()
    logger.warning(
        "refused %d of node %d for block %s: %s",
        *(refusal.status, sender.node_id, sender.block_hash[:16], refusal),
    )
    store.reject(sender, str(refusal))
    return refusal


def _shown(received: Received) -> dict[str, Any]:
    return {
        "block_hash": received.sender.block_hash,
        "public_key": received.sender.public_key,
        "node_id": received.sender.node_id,
        "block_height": received.sender.block_height,
        "k_dim": received.k_dim,
        "artifacts": received.artifacts,
        "nonce_min": received.nonce_min,
        "nonce_max": received.nonce_max,
        "porosity": received.porosity,
        "porous": _porous(received),
        "results": received.results,
        "fraud_detected": received.fraud_detected,
        "rejected": received.rejected,
        "last_rejection": received.last_rejection,
        "last_at": received.last_at.isoformat(timespec="milliseconds"),
    }


def _porous(received: Received) -> bool | None:
    return None if received.porosity is None else received.porosity >= MAX_POROSITY


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
