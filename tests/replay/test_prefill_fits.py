"""Which claims are prefilled, in which mode, and what happens to the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.replay.prefills import (
    AUTO,
    PENALTIES,
    PLAIN,
    TEXT,
    record,
    replay,
    with_request,
)
from tests.support.fake_engine import FakeEngine

from assay.claims.claim import Claim
from assay.claims.positions import IMPOSSIBLE
from assay.errors import ReplayError
from assay.replay.prefill_fits import NOT_AVAILABLE
from assay.replay.request import ReplayOptions

GRAMMARS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "a+"}},
    {"tools": [{"type": "function"}], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    {"guided_json": {}, "guided_regex": "a"},
]


@pytest.mark.parametrize("fields", GRAMMARS)
async def test_a_grammar_shapes_raw_numbers_and_cannot_be_prefilled(
    fields: dict[str, Any],
) -> None:
    claim = with_request(await record(), **fields)
    engine = FakeEngine()
    with pytest.raises(ReplayError, match="grammar") as caught:
        await replay(engine, claim)
    assert (caught.value.blame, caught.value.code) == ("validator", NOT_AVAILABLE)
    assert engine.requests == []
    run = await replay(engine, claim, AUTO)
    assert run.replay.path == "decode"
    assert run.notes[0].code == "path_decode"
    assert "grammar" in run.notes[0].message
    with pytest.raises(ReplayError, match="grammar"):
        await replay(FakeEngine(plugin=False), claim, AUTO)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"tools": [{"type": "function"}]},
        {"logit_bias": {"5": 3.0}, "bad_words": ["x"], "presence_penalty": 1.0},
    ],
)
async def test_raw_numbers_that_nothing_shaped_are_prefilled(fields: dict[str, Any]) -> None:
    claim = with_request(await record(), **fields)
    assert (await replay(FakeEngine(), claim, AUTO)).replay.path == "prefill"


async def test_pictures_and_embeddings_are_not_prefilled() -> None:
    claim = await record()
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what"}, image]}]
    with pytest.raises(ReplayError, match="image_url"):
        await replay(FakeEngine(), with_request(claim, messages=messages))
    text = await record(TEXT)
    with pytest.raises(ReplayError, match="embeddings"):
        await replay(FakeEngine(), with_request(text, prompt_embeds="AAAA"))
    with pytest.raises(ReplayError, match="several prompts"):
        await replay(FakeEngine(), with_request(text, prompt=["a", "b"]))


def processed(claim: Claim, **fields: Any) -> Claim:
    named = claim.model_copy(update={"logprobs_mode": "processed_logprobs"})
    return with_request(named, **fields)


async def test_processed_claims_are_decoded_unless_nothing_processes_them() -> None:
    claim = await record()
    run = await replay(FakeEngine(), processed(claim, **PLAIN))
    assert run.replay.logprobs_mode == "processed_logprobs"
    assert [note.code for note in run.notes] == ["processed_is_raw"]
    greedy = processed(claim, temperature=0, top_p=0.5, **PENALTIES)
    assert (await replay(FakeEngine(), greedy)).replay.path == "prefill"
    for fields in (
        {},
        PLAIN | {"top_p": 0.9},
        PLAIN | {"logit_bias": {"5": 1}},
        {"temperature": 0},
    ):
        shaped = processed(claim, **fields)
        with pytest.raises(ReplayError, match=r"processed mode|at each of 6") as caught:
            await replay(FakeEngine(), shaped)
        assert caught.value.code == NOT_AVAILABLE
    chosen = await replay(FakeEngine(), processed(claim, top_p=0.9), AUTO)
    assert chosen.replay.path == "decode"
    assert "processed mode" in chosen.notes[0].message
    known = FakeEngine(defaults={"top_p": 0.9})
    with pytest.raises(ReplayError, match="top_p"):
        await replay(known, processed(claim))
    assert (await replay(FakeEngine(defaults={}), processed(claim))).replay.path == "prefill"


async def test_few_kept_ids_are_processed_on_the_client() -> None:
    """Against the definition, written out for one position: temperature, then min-p, then top-k,
    then top-p, then the logarithm of what each has of the rest."""
    claim = await record()
    fields = PLAIN | {"temperature": 3.0, "top_k": 6, "top_p": 0.8, "min_p": 0.05}
    for engine in (FakeEngine(), FakeEngine(plugin=False)):
        run = await replay(engine, processed(claim, **fields))
        assert run.replay.logprobs_mode == "processed_logprobs"
        assert [note.code for note in run.notes] == ["processed_here"]
        positions = run.replay.positions or ()
        context = list(claim.prompt.token_ids or ())
        for token, position in zip(claim.output_ids or (), positions, strict=True):
            row = engine.logprobs(context) / 3.0
            order = np.argsort(-row, kind="stable")[:6]
            order = order[row[order] >= row[order[0]] + np.log(0.05)]
            chances = np.exp(row[order]) / np.exp(row[order]).sum()
            kept = order[np.cumsum(chances) - chances < 0.8]
            final = dict(
                zip(kept.tolist(), row[kept] - np.log(np.exp(row[kept]).sum()), strict=True)
            )
            assert position.logprob == pytest.approx(final.get(token, IMPOSSIBLE))
            for entry in position.top:
                assert entry.logprob == pytest.approx(final.get(int(entry.key), IMPOSSIBLE))
            assert len(position.top) == 5
            context.append(token)
    assert any(position.effective_k < 5 for position in positions)


async def test_a_plain_server_that_lists_too_few_ids_to_process_is_the_validators() -> None:
    claim = processed(await record(), **(PLAIN | {"temperature": 0.7, "top_k": 12}))
    engine = FakeEngine(plugin=False, max_logprobs=12)
    assert (await replay(engine, claim)).replay.path == "prefill"
    assert [body["prompt_logprobs"] for body in engine.requests] == [20, 12]
    with pytest.raises(ReplayError, match="greater than max") as caught:
        await replay(FakeEngine(plugin=False, max_logprobs=11), claim)
    assert caught.value.code == "request_refused"


async def test_case_53_a_mode_that_nobody_names_is_only_inferred() -> None:
    claim = (await record()).model_copy(update={"logprobs_mode": None})
    run = await replay(FakeEngine(), claim)
    assert (run.replay.logprobs_mode, run.replay.mode_source) == ("raw_logprobs", "inferred")
    assert "mode_not_named" in [note.code for note in run.notes]
    sure = await replay(FakeEngine(), with_request(claim, **PLAIN))
    assert (sure.replay.mode_source, sure.notes) == ("explicit", ())


async def test_text_claims_are_not_prefilled() -> None:
    claim = (await record()).model_copy(update={"output_ids": None})
    options = ReplayOptions(path="prefill", allow_text=True)
    with pytest.raises(ReplayError, match="only ids"):
        await replay(FakeEngine(), claim, options)
    auto = ReplayOptions(path="auto", allow_text=True)
    assert (await replay(FakeEngine(), claim, auto)).replay.path == "decode"
