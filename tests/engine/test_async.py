"""Case 16: forced ids do not depend on the output list, which async scheduling fills with -1.

vLLM's CPU platform switches async scheduling off at the end of its configuration; the test helper
in ``tests/support/async_cpu`` switches it on again. The scheduler, the placeholders and the output
thread are then stock, on both runners.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.answers import CLOSE, Answer, check_evidence, furthest
from tests.engine.talk import Talk, replay_of, text

LENGTH = 64


@pytest.fixture(scope="module")
def recorded() -> dict[str, Answer]:
    """The first answer of each runner; the other kind of scheduling must equal it."""
    return {}


@pytest.mark.parametrize("talk", ["v1", "v1-async", "v2", "v2-async"], indirect=True)
def test_case_16_sixty_four_forced_ids_one_by_one(
    talk: Talk, runner: str, recorded: dict[str, Answer], request: pytest.FixtureRequest
) -> None:
    """Case 16: the ids are unlikely ones, so that a skipped or shifted one shows."""
    asked = "async" in request.node.callspec.params["talk"]
    assert talk.status()["async_scheduling"] is asked
    trace = np.random.default_rng(16).integers(5, 512, size=LENGTH).tolist()
    body = text([7, 8, 9, 10, 11], temperature=0.9, seed=16, ignore_eos=True)
    replay = talk.ask(replay_of(body, trace))
    wrong = [at for at in range(LENGTH) if replay.ids[at] != trace[at]]
    assert wrong == []
    assert len(replay.ids) == LENGTH
    assert check_evidence(replay, runner=runner)["positions"] == LENGTH
    other = recorded.setdefault(runner, replay)
    assert furthest(replay, other) <= CLOSE
    assert other.assay is not None
    assert replay.assay is not None
    assert replay.assay["drawn"] == other.assay["drawn"]


@pytest.mark.parametrize("talk", ["v1-async", "v2-async"], indirect=True)
def test_case_16_a_self_replay_draws_what_was_claimed(talk: Talk, runner: str) -> None:
    """Case 16: claimed and replayed under async scheduling, then on past the end of the trace."""
    body = text([7, 8, 9, 10, 11], temperature=0.9, seed=61, ignore_eos=True)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    replay = talk.ask(replay_of(body, origin.ids))
    assert furthest(origin, replay) <= CLOSE
    assert check_evidence(replay, runner=runner)["drawn"] == origin.ids
    half = talk.ask(replay_of({**body, "max_tokens": LENGTH}, origin.ids[: LENGTH // 2]))
    assert furthest(origin, half) <= CLOSE


@pytest.mark.parametrize("talk", ["v1-async", "v2-async"], indirect=True)
def test_case_16_ten_replays_at_once(talk: Talk, runner: str) -> None:
    """Case 16: rows are added, freed and reused while steps are still in flight."""
    rng = np.random.default_rng(160)
    bodies = [
        replay_of(
            text(rng.integers(5, 512, size=12).tolist(), temperature=0.9),
            rng.integers(5, 512, size=20 + 2 * n).tolist(),
        )
        for n in range(10)
    ]
    alone = [talk.ask(body) for body in bodies]
    for single, mixed in zip(alone, talk.together(bodies), strict=True):
        assert furthest(single, mixed) <= CLOSE
        check_evidence(mixed, runner=runner)
    assert talk.at_rest()
