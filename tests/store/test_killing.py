"""Kill -9 at random points of the node's rounds, on SQLite and on a real PostgreSQL (F46).

Fewer rounds than the 200 of ``python -m tests.store.killing``, which takes minutes where nothing else
runs; the seed is in the failure's message.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.store.killing import kill

ROUNDS = 25


async def test_f46_nodes_killed_at_random_lose_nothing_and_double_nothing(
    database: str, tmp_path: Path
) -> None:
    seed = random.getrandbits(31)
    found = await kill(database, str(tmp_path / "received.db"), ROUNDS, seed)
    assert not found.refused, f"seed {seed}: doubled, by round: {found.refused}"
    assert not found.wrong, f"seed {seed}: lost or too much, by round: {found.wrong}"
    assert found.hit >= ROUNDS, f"seed {seed}: {found}"
