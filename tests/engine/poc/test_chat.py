"""Chat in flight while forwards run: nothing of it may change, to the last bit.

The engine is stepped by hand, so both runs of a comparison take the same steps and only the
proof-of-compute calls between them differ.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.poc.process import EngineProcess

both = pytest.mark.parametrize("engines", ["v1", "v2"], indirect=True)
every = pytest.mark.parametrize("engines", ["v1", "v1-async", "v2", "v2-async"], indirect=True)

REQUESTS, PREFIX = 16, 64
PROMPTS = [
    [5 + (7 * at) % 500 for at in range(PREFIX)] + [5 + (31 * row + at) % 500 for at in range(9)]
    for row in range(REQUESTS)
]
"""All begin with the same two blocks, which the prefix cache keeps."""
TOKENS = 7
CALL = ["probe_vectors", ["BLOCK", "KEY", list(range(8)), 256]]
SAMPLE = ["probe_vectors", ["BLOCK", "KEY", [3], 50]]


def chat(engine: EngineProcess, **calls: Any) -> dict[str, Any]:
    return dict(engine.ask("chat", PROMPTS, TOKENS, **calls))


@every
def test_f49_f50_sixteen_requests_in_flight(engine: EngineProcess) -> None:
    """F49, F50: a forward before every step of 16 greedy requests, prefix cache in use."""
    chat(engine)  # fills the prefix cache
    without = chat(engine)
    assert {answer["cached"] for answer in without["answers"]} == {PREFIX}
    with_calls = chat(engine, calls={"each": CALL}, between=1000)
    assert with_calls["in_flight"] == REQUESTS
    assert len(with_calls["calls"]) >= TOKENS
    vectors = [workers[0]["vectors"] for workers in with_calls["calls"]]
    assert all(vector == vectors[0] for vector in vectors)  # chat does not reach PoC either
    assert with_calls["answers"] == without["answers"]
    # The prefix cache still holds what it held: the same hits, the same numbers.
    assert chat(engine)["answers"] == without["answers"]


@both
def test_case_49_before_and_after_twice(engine: EngineProcess) -> None:
    """Case 49: inference, PoC, inference, PoC, inference; bit-compared."""
    chat(engine)
    before = chat(engine)
    for _ in range(2):
        assert engine.vectors(range(8), 256)["finite"] == [True] * 8
        assert chat(engine)["answers"] == before["answers"]


@both
def test_f49_live_caches_keep_every_byte(engine: EngineProcess) -> None:
    """F49: every layer's cache, bytes and binding, with answers of 16 requests in it."""
    chat(engine)
    caches = engine.rpc("probe_caches")
    for nonces, length in ((range(8), 256), (range(32), 33), ([5], 512)):
        engine.vectors(nonces, length)
        assert engine.rpc("probe_caches") == caches
    for fault in ("raise", "nan_cache", "skipped"):
        engine.rpc("probe_faulty", fault, [1, 2], 64)
        assert engine.rpc("probe_caches") == caches
    chat(engine, calls={"3": SAMPLE})
    assert engine.rpc("probe_caches") != caches  # or the digests would see nothing
