"""The choice channel's evidence: who would have been drawn, by how much, and by which noise.

Prompts are short and few: a stock V1 CPU engine cannot take a discarded sample of a seeded request
back (``Generator.set_offset``), so a chunked prompt or a preemption ends it without any plugin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.answers import CLOSE, Answer, Body, check_evidence
from tests.engine.talk import Talk, chat, replay_of, text

from assay.scoring.tape import draw_position, gumbel
from assay.scoring.tape_v1 import GENERATION as SPLITMIX
from assay.scoring.tape_v1 import v1_cpu_noise

tiny = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
LENGTH = 16
SHAPED = {"seed": 77, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "ignore_eos": True}


def leads(field: Body) -> list[float]:
    """By how much the drawn id beat the forced one, [positions] nats; infinite where it was cut."""
    columns = ("drawn_processed", "noise_drawn", "logprob_processed", "noise_forced")
    return [
        np.inf if forced is None else drawn + noise - forced - theirs
        for drawn, noise, forced, theirs in zip(*(field[c] for c in columns), strict=True)
    ]


def recomputed(field: Body, seed: int, prompt: int, at: int, token: int) -> float | None:
    """The noise of one id, by numpy; ``None`` for a tape only its own device repeats."""
    tape = field["tape"]
    if tape["runner"] == "v2":
        return float(gumbel(seed, draw_position(prompt, at), token, fp64=tape["fp64"]))
    return float(v1_cpu_noise(seed, at, token)) if tape["generation"] == SPLITMIX else None


def check_noise(field: Body, seed: int, origin: Answer) -> None:
    for at, (drawn, forced) in enumerate(zip(field["drawn"], origin.ids, strict=True)):
        for name, token in (("noise_drawn", drawn), ("noise_forced", forced)):
            exact = recomputed(field, seed, len(origin.prompt_ids), at, token)
            assert exact is None or field[name][at] == pytest.approx(exact, abs=1e-5)


@tiny
@pytest.mark.parametrize("make", [chat, text])
def test_a_seeded_generation_replayed_draws_what_was_claimed(
    talk: Talk, runner: str, make: Any
) -> None:
    """Margin 0 at every position, the noise as numpy computes it from the seed."""
    body = make(**SHAPED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    field = check_evidence(talk.ask(replay_of(body, origin.ids)), runner=runner)
    assert field["drawn"] == origin.ids
    assert leads(field) == [0.0] * LENGTH
    for name in ("raw", "processed"):
        assert field[f"drawn_{name}"] == field[f"logprob_{name}"]
    assert field["tape"] == talk.status()["tape"]
    assert (field["tape"]["runner"], field["tape"]["device"]) == (runner, "cpu")
    check_noise(field, SHAPED["seed"], origin)
    assert talk.status()["hardware"] == "cpu"


@tiny
@pytest.mark.parametrize("changed", [{"seed": 78}, {"temperature": 1.6}], ids=["seed", "temp"])
def test_another_seed_or_temperature_draws_other_ids_by_a_margin(
    talk: Talk, runner: str, changed: dict[str, Any]
) -> None:
    body = text("What follows is", **SHAPED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    field = check_evidence(talk.ask(replay_of(body | changed, origin.ids)), runner=runner)
    other = [at for at in range(LENGTH) if field["drawn"][at] != origin.ids[at]]
    assert len(other) >= LENGTH // 4
    margins = leads(field)
    assert all((margins[at] > 0) == (at in other) for at in range(LENGTH))
    check_noise(field, (body | changed)["seed"], origin)


@tiny
def test_greedy_rows_have_no_noise_and_unseeded_ones_none_to_tell(talk: Talk, runner: str) -> None:
    greedy = text("Where is", temperature=0, ignore_eos=True)
    origin = talk.ask({**greedy, "max_tokens": LENGTH})
    field = check_evidence(talk.ask(replay_of(greedy, origin.ids)), runner=runner)
    assert field["drawn"] == origin.ids
    assert field["noise_drawn"] == field["noise_forced"] == [0.0] * LENGTH
    unlike = [*origin.ids]
    unlike[3] = 5 + (unlike[3] + 100) % 500
    field = check_evidence(talk.ask(replay_of(greedy, unlike)), runner=runner)
    assert field["drawn"][3] == origin.ids[3]
    assert leads(field)[3] > 0
    unseeded = text("Where is", temperature=0.9, ignore_eos=True)
    field = check_evidence(talk.ask(replay_of(unseeded, origin.ids)), runner=runner)
    assert field["noise_drawn"] == field["noise_forced"] == [None] * LENGTH
    assert None not in field["drawn_processed"]


@pytest.mark.parametrize("talk", ["v1", "v1-async", "v2"], indirect=True)
def test_rows_that_come_and_go_keep_every_generator_where_it_was(talk: Talk, runner: str) -> None:
    """Seeded, unseeded and greedy replays and plain seeded requests at once, of many lengths.

    Rows are condensed and moved as neighbours finish. Each seeded replay must draw its own origin,
    and a plain neighbour what it draws alone.
    """
    rng = np.random.default_rng(4)
    bodies = [
        text(rng.integers(5, 512, size=6 + n).tolist(), ignore_eos=True, **fields)
        for n, fields in enumerate(
            [
                {"seed": 1, "temperature": 0.9},
                {"seed": -5, "temperature": 0.7, "top_p": 0.9},
                {"temperature": 1.1},
                {"temperature": 0.0},
                {"seed": 2**40 + 3, "temperature": 1.0},
                {"seed": 9, "temperature": 0.8, "min_p": 0.02},
                {"seed": 10, "temperature": 0.8, "top_k": 9},
            ]
        )
    ]
    lengths = [8, 24, 16, 12, 20, 28, 14]
    origins = [
        talk.ask({**body, "max_tokens": length})
        for body, length in zip(bodies, lengths, strict=True)
    ]
    plain = (0, 5)
    asked = [
        {**body, "max_tokens": length} if at in plain else replay_of(body, origin.ids)
        for at, (body, origin, length) in enumerate(zip(bodies, origins, lengths, strict=True))
    ]
    for at, (body, origin, answer) in enumerate(
        zip(bodies, origins, talk.together(asked), strict=True)
    ):
        assert answer.ids == origin.ids
        if at in plain:
            assert answer.chosen == pytest.approx(origin.chosen, abs=CLOSE)
            continue
        field = check_evidence(answer, runner=runner)
        if "seed" in body or not body["temperature"]:
            assert field["drawn"] == origin.ids
            assert leads(field) == [0.0] * len(origin.ids)
        if "seed" in body:
            check_noise(field, body["seed"], origin)
