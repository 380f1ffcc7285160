"""Replays at once: chunked prefill, queueing, preemption, prefix-cache hits.

Cases 15, 17 and 19; fault 1. Seeds on V2 only: a stock V1 CPU engine cannot take a discarded
sample of a seeded request back (``Generator.set_offset``), so one dies there without any plugin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.engine.answers import CLOSE, Answer, Body, check_evidence, furthest
from tests.engine.servers import BLOCK, ROWS, STEP_TOKENS
from tests.engine.talk import Talk, replay_of, text

pytestmark = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
# The ids of the tiny model that are ordinary text; the first five are special tokens.
FIRST, LAST = 5, 512


def ids(rng: np.random.Generator, size: int) -> list[int]:
    return [int(token) for token in rng.integers(FIRST, LAST, size=size)]


def replay(prompt: list[int], trace: list[int], salt: str, runner: str = "v1") -> Body:
    """``salt`` keeps runs from finding each other's prompts in the prefix cache."""
    seed = {"seed": len(trace)} if runner == "v2" else {}
    return replay_of(text(prompt, temperature=0.9, cache_salt=salt, **seed), trace)


def check_alike(alone: Sequence[Answer], together: Sequence[Answer], runner: str) -> None:
    """Same ids, same numbers, same evidence; the draw and its noise too, where it has a seed."""
    for single, mixed in zip(alone, together, strict=True):
        assert mixed.ids == single.ids
        assert furthest(single, mixed) <= CLOSE
        one, other = check_evidence(single, runner=runner), check_evidence(mixed, runner=runner)
        for name in ("logprob_raw", "logprob_processed"):
            assert one[name] == pytest.approx(other[name], abs=CLOSE)
        if None not in one["noise_drawn"]:
            assert one["drawn"] == other["drawn"]
            for name in ("noise_drawn", "noise_forced"):
                assert one[name] == other[name]


def test_case_15_eight_replays_one_with_a_chunked_prompt(talk: Talk, runner: str) -> None:
    """Case 15, fault 1: each equals its solo run; discarded samples advance no trace."""
    rng = np.random.default_rng(15)
    prompts = [ids(rng, STEP_TOKENS + 60), *(ids(rng, 10 + 3 * n) for n in range(ROWS - 1))]
    traces = [ids(rng, 10 + n) for n in range(ROWS)]
    pairs = list(zip(prompts, traces, strict=True))
    alone = [talk.ask(replay(p, t, "alone", runner)) for p, t in pairs]
    assert [answer.ids for answer in alone] == traces
    together = talk.together(replay(p, t, "both", runner) for p, t in pairs)
    check_alike(alone, together, runner)
    assert together[0].usage["prompt_tokens"] > STEP_TOKENS


def test_case_15_preempted_replays_resume_where_they_were(talk: Talk, runner: str) -> None:
    """Case 15, fault 1: eight replays need more than the 19 blocks, so that some are preempted."""
    # V1 is ten times as fast here: short replays would end before the last one has arrived.
    length = {"v1": 200, "v2": 60}[runner]
    rng = np.random.default_rng(51)
    prompts = [ids(rng, 20 + n) for n in range(ROWS)]
    traces = [ids(rng, length + n) for n in range(ROWS)]
    before = talk.metric("vllm:num_preemptions_total")
    pairs = list(zip(prompts, traces, strict=True))
    alone = [talk.ask(replay(p, t, "alone", runner)) for p, t in pairs]
    assert talk.metric("vllm:num_preemptions_total") == before
    together = talk.together(replay(p, t, "both", runner) for p, t in pairs)
    assert talk.metric("vllm:num_preemptions_total") > before
    assert [answer.ids for answer in together] == traces
    check_alike(alone, together, runner)
    assert talk.at_rest()


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_case_19_a_cached_prefix_changes_nothing(talk: Talk, runner: str, size: int) -> None:
    """Case 19: the second and third replay of one claim hit the prefix cache (block -1, 0, +1)."""
    rng = np.random.default_rng(size)
    prompt, trace = ids(rng, size), ids(rng, 6)
    hits = talk.metric("vllm:prefix_cache_hits_total")
    first, *again = [talk.ask(replay(prompt, trace, f"hits-{size}")) for _ in range(3)]
    assert first.ids == trace
    check_alike([first, first], again, runner)
    found = talk.metric("vllm:prefix_cache_hits_total") - hits
    # The last prompt token is always computed, so a prompt of one block exactly has no hit.
    assert found == 2 * ((size - 1) // BLOCK) * BLOCK


def test_case_17_the_order_of_replays_changes_nothing(talk: Talk, runner: str) -> None:
    """Case 17: prompts that share a prefix, in one order and reversed, with the cache on."""
    rng = np.random.default_rng(17)
    shared = ids(rng, BLOCK + 4)
    claims = [(shared + ids(rng, n), ids(rng, 5)) for n in range(1, 7)]
    forward = [talk.ask(replay(p, t, "order")) for p, t in claims]
    backward = [talk.ask(replay(p, t, "order")) for p, t in reversed(claims)]
    check_alike(forward, backward[::-1], runner)
    fresh = [talk.ask(replay(p, t, f"fresh-{n}")) for n, (p, t) in enumerate(claims)]
    check_alike(forward, fresh, runner)
