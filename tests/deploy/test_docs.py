"""docs/container.md against the recipe and the arithmetic it explains."""

from __future__ import annotations

import re
from pathlib import Path

from assay.node.config import NodeConfig
from assay.plugin.constants import RING_CHUNKS_SETTING
from assay.plugin.ring import BROADCAST_CHUNK, MIB, needed_bytes

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "container.md").read_text()


def test_the_table_of_shared_memory_is_what_the_rings_take() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        workers, *sizes = map(int, row)
        assert sizes == [needed_bytes(workers, chunks) // MIB for chunks in (None, 32, 64)]
    assert f"`{RING_CHUNKS_SETTING}=64`" in PAGE
    assert f"The table is for {BROADCAST_CHUNK // MIB}." in PAGE


def test_the_size_in_the_example_covers_what_it_says() -> None:
    sizes = set(re.findall(r"--shm-size=(\d+)g", PAGE))
    assert sizes == {"8"}
    for need in (2 * needed_bytes(4, None), needed_bytes(4, 64)):
        assert need < 8 * 1024 * MIB
    assert f"take {2 * needed_bytes(4, None) // MIB} MiB" in PAGE


def test_the_time_to_stop_covers_the_nodes_own_limits() -> None:
    found = re.search(r"--stop-timeout (\d+)", PAGE)
    assert found is not None
    defaults = NodeConfig()
    assert int(found[1]) > defaults.limits.graceful_s + defaults.backends.stop_grace_s
    assert f"`limits.graceful_s` ({defaults.limits.graceful_s:.0f} s)" in PAGE
    assert f"`backends.stop_grace_s`\n  ({defaults.backends.stop_grace_s:.0f} s)" in PAGE


def test_every_file_it_names_is_there() -> None:
    named = set(re.findall(r"(?:deploy|tests|scripts)/[\w/]+\.?\w*", PAGE))
    assert {"deploy/Containerfile", "tests/deploy/test_build.py"} <= named
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_it_says_that_no_real_base_was_used() -> None:
    assert "never built here on a real vLLM image" in PAGE
