"""Generated bodies: no server error, engine alive, ordinary answers as before (faults 4-9)."""

from __future__ import annotations

import pytest
from tests.engine import fuzz
from tests.engine.answers import CLOSE, furthest
from tests.engine.settings import EngineTestSettings
from tests.engine.talk import Talk, chat, text

SLOWER = 3


@pytest.mark.timeout(3600)  # a bound on hanging; the full size takes minutes
@pytest.mark.parametrize(("talk", "share"), [("v1", 1), ("v2", SLOWER)], indirect=["talk"])
def test_generated_bodies_harm_nothing(talk: Talk, share: int) -> None:
    """Faults 4 to 9 and cases 46 and 47 over forms nobody thought of."""
    options = EngineTestSettings()
    count = max(options.fuzz_bodies // share, 1)
    ordinary = [
        chat("hi", max_tokens=6, temperature=0.7, seed=1),
        text(max_tokens=6, temperature=0.7, seed=1, logprobs_mode="processed_logprobs"),
        chat("hi", enforced_tokens={"tokens": [{"token": "17"}, {"token": "18"}]}),
    ]
    before = [talk.ask(body) for body in ordinary]
    statuses = fuzz.run(talk.http, count, options.fuzz_seed)
    assert statuses.total() >= count
    assert statuses[200] > count // 20  # not only refusals: valid bodies are among them
    assert statuses[400] > count // 20
    for body, was in zip(ordinary, before, strict=True):
        now = talk.ask(body)
        assert now.ids == was.ids
        assert furthest(was, now) <= CLOSE
    assert talk.at_rest()
