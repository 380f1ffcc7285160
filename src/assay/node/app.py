"""The node's application: its parts put together, everything owned by its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI

from assay import __version__
from assay.node import control, health, models, page, proxy, reports, verify
from assay.node.config import NodeConfig
from assay.node.node import Node
from assay.node.part import Part, attach, describe
from assay.node.pow import routes as pow_routes

PartOf = Callable[[Node], Part]

PARTS: Sequence[PartOf] = (
    control.part,
    health.part,
    reports.part,
    verify.part,
    pow_routes.part,
    models.part,
    page.part,
    proxy.part,
)
"""Each module's ``part(node)``. A path that two of them match goes to the first."""


def create_app(
    config: NodeConfig, *, parts: Sequence[PartOf] = PARTS, node: Node | None = None
) -> FastAPI:
    """An app with a node of its own, reachable as ``app.state.node``. One lifespan, once."""
    node = Node(config) if node is None else node
    made = [part(node) for part in parts]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with node.running(), AsyncExitStack() as stack:
            for one in made:
                await stack.enter_async_context(one.running())
            yield

    app = FastAPI(
        title="assay node",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.node = node
    for one in made:
        attach(app, node.access, one.routes)
    describe(app, [route for one in made for route in one.routes])
    return app
