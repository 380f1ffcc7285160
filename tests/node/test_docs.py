"""docs/node.md and docs/node.toml show the node as it is."""

from __future__ import annotations

from pathlib import Path

from assay.node.config_file import as_toml, node_config

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_docs_node_toml_is_current() -> None:
    """Made by: assay node --print-config > docs/node.toml"""
    assert (DOCS / "node.toml").read_text() == as_toml(node_config(environment={}))


def test_docs_node_md_names_every_route_of_section_2() -> None:
    page = (DOCS / "node.md").read_text()
    for path in ("up", "up/async", "up/status", "down", "verify"):
        assert f"/api/v1/inference/{path}" in page
    for path in ("/api/v1/state", "/api/v1/versions", "/readyz", "/metrics", "/gpu/driver"):
        assert path in page
