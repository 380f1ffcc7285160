"""``/``: a small live page. It holds nothing itself; its script asks for the overview, with the key."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.node.node import Node
from assay.node.overview import Overview, Overviews
from assay.node.part import Part, Route

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
"""Nothing from elsewhere, and no page may frame this one."""


def part(node: Node) -> Part:
    """The page is open to whoever reaches the port; what it shows needs the control key."""
    overviews = Overviews(node)
    document = (files("assay.node") / "page.html").read_text(encoding="utf-8")

    async def page(request: Request) -> Response:
        return Response(
            document,
            media_type="text/html; charset=utf-8",
            headers={
                "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
            },
        )

    async def overview(request: Request) -> Response:
        return JSONResponse((await overviews.now()).model_dump())

    return Part(
        [
            Route("GET", "/", page, key="none", hidden=True),
            Route(
                "GET",
                "/api/v1/overview",
                overview,
                summary="Everything the page shows",
                answer=Overview,
            ),
        ]
    )
