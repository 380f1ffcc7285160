"""What goes wrong in the middle of a forward leaves the engine as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.poc.process import EngineProcess

both = pytest.mark.parametrize("engines", ["v1", "v2"], indirect=True)
NONCES = [1, 2, 3]
PROMPTS = [[5 + (11 * row + at) % 500 for at in range(24)] for row in range(4)]


def bound(engine: EngineProcess) -> dict[str, Any]:
    """The tensor objects and addresses every layer is bound to."""
    return {name: cache[:2] for name, cache in engine.rpc("probe_caches")[0].items()}


@both
@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("raise", "InjectedError", "a kernel failed"),
        ("shape", "SurfaceError", "does not return hidden states"),
        ("skipped", "SurfaceError", "reflected once each"),
    ],
)
def test_f32_f74_an_error_in_the_forward(
    engine: EngineProcess, fault: str, error: str, says: str
) -> None:
    """F32, F74: caches bound back, no hook left, chat and the next forward as before.

    ``skipped`` is the fault that other implementations swallowed: vectors without reflections.
    """
    chat = engine.ask("chat", PROMPTS, 6)
    good = engine.vectors(NONCES, 50)
    caches = bound(engine)
    answer = engine.rpc("probe_faulty", fault, NONCES, 50)[0]
    assert answer["error"] == error, answer
    assert says in answer["message"]
    assert bound(engine) == caches
    assert engine.rpc("probe_hooks") == [0]
    assert engine.vectors(NONCES, 50)["vectors"] == good["vectors"]
    assert engine.ask("chat", PROMPTS, 6)["answers"] == chat["answers"]


@both
@pytest.mark.parametrize("fault", ["nan", "nan_cache", "one_nan"])
def test_f27_f28_not_finite_is_said_and_stays_in_its_row(engine: EngineProcess, fault: str) -> None:
    """F27, F28: rows say that they are not finite, and neither a row nor a later batch inherits it.

    Found here: keys and values of a NaN batch stayed in the slots past the end of a shorter one,
    and a weight of 0 does not remove a NaN, so that every later batch was lost.
    """
    good = {length: engine.vectors(NONCES, length) for length in (50, 33, 64)}
    caches = bound(engine)
    # 64 tokens fill two blocks; the shorter ones leave slots of the second as they are.
    bad = engine.rpc("probe_faulty", fault, NONCES, 64)[0]
    assert bad["finite"] == [False, fault == "one_nan", fault == "one_nan"]
    assert np.isnan(bad["vectors"][0]).all()
    if fault == "one_nan":
        assert bad["vectors"][1:] == good[64]["vectors"][1:]
    for length, before in good.items():
        after = engine.vectors(NONCES, length)
        assert after["finite"] == [True] * 3
        assert after["vectors"] == before["vectors"]
    assert bound(engine) == caches


@both
def test_three_lost_batches_in_a_row_leave_the_engine_serving(engine: EngineProcess) -> None:
    """The forward only reports; stopping after three is the miner's part (its own tests)."""
    chat = engine.ask("chat", PROMPTS, 6)
    for _ in range(3):
        assert engine.rpc("probe_faulty", "nan", NONCES, 64)[0]["finite"] == [False] * 3
    assert engine.ask("chat", PROMPTS, 6)["answers"] == chat["answers"]
    assert engine.vectors(NONCES, 64)["finite"] == [True] * 3
