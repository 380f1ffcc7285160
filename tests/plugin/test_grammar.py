"""Grammar degradation on every backend vLLM ships, compiled and asked by vLLM's own manager.

Fault 17 (an assert over the bitmask under speculative decoding) cannot occur: a server with
speculative decoding refuses our requests (``test_mode.py``), so no draft row meets our grammar.
"""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase
from vllm.config import ModelConfig, VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers.mistral import MistralTokenizer
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from assay.plugin.constants import TRACE_ARG
from assay.plugin.general import is_replay
from assay.plugin.grammar import DegradingGrammar, degrading

# Stock code passes xgrammar an argument that this version of it no longer wants.
pytestmark = pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")

BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "done": {"type": "boolean"}},
    "required": ["name", "done"],
    "additionalProperties": False,
}
ANSWER = '{"name": "city", "done": true}'
NEIGHBOUR = '{"name": "a", "done": false}'
JSON = {"json": SCHEMA}


class Manager(StructuredOutputManager):
    """Stock, with the one method replaced that the plugin replaces."""

    _create_grammar = degrading(StructuredOutputManager._create_grammar, is_replay)


@pytest.fixture(scope="module")
def config(tiny_path: Path) -> VllmConfig:
    model = ModelConfig(model=str(tiny_path), dtype="float32", max_model_len=512)
    return VllmConfig(model_config=model)


@pytest.fixture(scope="module", params=BACKENDS)
def manager(request: pytest.FixtureRequest, config: VllmConfig) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "lm-format-enforcer":
            # lm-format-enforcer 0.11.3, which vLLM 0.31 to 0.33 pin, imports two classes from
            # modules that vLLM and transformers no longer have, so a stock server cannot use the
            # backend. The classes are there: at their old addresses, the backend's own code runs.
            for address, kind in (
                ("vllm.transformers_utils.tokenizer", MistralTokenizer),
                ("transformers.tokenization_utils", PreTrainedTokenizerBase),
            ):
                old = types.ModuleType(address)
                setattr(old, kind.__name__, kind)
                patch.setitem(sys.modules, address, old)
        made = Manager(config)
        made.name = request.param
        yield made
        made.clear_backend()


class Talk:
    """Requests of one manager, driven step by step as the scheduler does."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.requests: dict[str, Request] = {}

    @property
    def tokenizer(self) -> Any:
        return self.manager.tokenizer

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def add(self, name: str, trace: list[int] | None, constraint: dict[str, Any] = JSON) -> Any:
        wanted = StructuredOutputsParams(**constraint)
        wanted._backend = self.manager.name
        params = SamplingParams(
            structured_outputs=wanted,
            max_tokens=64,
            extra_args=None if trace is None else {TRACE_ARG: trace},
        )
        params.update_from_generation_config({}, eos_token_id=self.tokenizer.eos_token_id)
        request = Request(name, [1, 2], params, None)
        self.manager.grammar_init(request)
        self.requests[name] = request
        assert request.structured_output_request is not None
        pending = request.structured_output_request._grammar
        assert pending is not None
        pending.result(timeout=60)
        return request.structured_output_request.grammar

    def masks(self) -> dict[str, torch.Tensor]:
        """One step's bitmask row [words] int32 of every request, from one shared tensor."""
        rows = self.manager.grammar_bitmask(self.requests, list(self.requests), {})
        return {name: torch.from_numpy(rows[at].copy()) for at, name in enumerate(self.requests)}

    def accept(self, name: str, token: int) -> bool:
        request = self.requests[name]
        request.append_output_token_ids([token])
        return bool(self.manager.accept_tokens(request, [token]))


@pytest.fixture
def talk(manager: Any) -> Talk:
    return Talk(manager)


def allowed(mask: torch.Tensor, token: int) -> bool:
    return bool((int(mask[token // 32]) >> (token % 32)) & 1)


def a_masked_id(mask: torch.Tensor, vocab: int = 512) -> int:
    """Some ordinary id the grammar forbids now."""
    return next(token for token in range(5, vocab) if not allowed(mask, token))


def open_mask(mask: torch.Tensor) -> bool:
    return bool((mask == -1).all())


def test_a_legal_trace_keeps_stocks_mask_bit_for_bit_to_the_end(talk: Talk, vllm_log: Any) -> None:
    """The grammar shaped the origin's distribution, so it stays as strict as it was."""
    ids = talk.ids(ANSWER)
    replay, plain = talk.add("replay", ids), talk.add("plain", None)
    assert isinstance(replay, DegradingGrammar)
    for step, token in enumerate(ids):
        masks = talk.masks()
        assert masks["replay"].equal(masks["plain"]), f"step {step}"
        assert allowed(masks["replay"], token)
        assert not open_mask(masks["replay"])
        assert talk.accept("replay", token)
        assert talk.accept("plain", token)
    assert replay.conflict is None
    assert replay.accepted == len(ids)
    assert replay.is_terminated()
    assert plain.is_terminated()
    assert not vllm_log.at_least(logging.WARNING)


@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_f16_case28_a_forced_id_the_grammar_rejects_switches_it_off_for_that_replay_only(
    talk: Talk, at: int, vllm_log: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """F16, case 28: accepted, mask all ones, position kept; no assert, no error line; the neighbour
    keeps its own mask, step by step the same as without the replay beside it."""
    neighbour_ids = talk.ids(NEIGHBOUR)
    talk.add("alone", None)
    alone = []
    for token in neighbour_ids:
        alone.append(talk.masks()["alone"])
        assert talk.accept("alone", token)
    del talk.requests["alone"]

    ids = talk.ids(ANSWER)
    grammar, _ = talk.add("replay", ids), talk.add("neighbour", None)
    for step in range(max(len(ids), len(neighbour_ids))):
        masks = talk.masks()
        if step < len(neighbour_ids):
            assert masks["neighbour"].equal(alone[step]), f"step {step}"
            assert talk.accept("neighbour", neighbour_ids[step])
        if step < len(ids):
            assert open_mask(masks["replay"]) == (step > at)
            token = a_masked_id(masks["replay"]) if step == at else ids[step]
            assert talk.accept("replay", token)
        assert grammar.conflict == (at if step >= at else None)
    assert not vllm_log.at_least(logging.WARNING)
    printed = capfd.readouterr()
    assert "rror" not in printed.out + printed.err
    notes = [text for text in vllm_log.texts if "grammar rejects forced token" in text]
    assert len(notes) == 1, "said once, not at every step"
    assert "request replay" in notes[0]


def test_validate_tokens_is_stocks_until_the_conflict_and_its_input_after(talk: Talk) -> None:
    ids = talk.ids(ANSWER)
    replay, plain = talk.add("replay", ids), talk.add("plain", None)
    bad = a_masked_id(talk.masks()["plain"])
    if (
        talk.manager.name != "xgrammar"
    ):  # whose own validate_tokens needs a rollback it has no room for
        for tokens in ([ids[0]], [bad], [ids[0], bad]):
            assert replay.validate_tokens(tokens) == plain.validate_tokens(tokens)
    assert talk.accept("replay", bad)
    assert replay.validate_tokens([bad, 1, 400, bad]) == [bad, 1, 400, bad]
    assert replay.validate_tokens([]) == []


def test_an_early_end_of_sequence_is_a_conflict_like_any_other(talk: Talk) -> None:
    grammar = talk.add("replay", [1])
    talk.masks()
    assert talk.accept("replay", talk.tokenizer.eos_token_id)
    assert grammar.conflict == 0
    assert open_mask(talk.masks()["replay"])


def test_text_after_a_finished_answer_is_a_conflict(talk: Talk) -> None:
    """Some backends accept anything once their matcher stopped; the mask decides first."""
    ids = talk.ids(ANSWER)[:-1]
    grammar = talk.add("replay", ids)
    for token in ids:
        talk.masks()
        assert talk.accept("replay", token)
    assert not grammar.is_terminated()
    assert not allowed(talk.masks()["replay"], 293)
    assert talk.accept("replay", 293)
    assert grammar.conflict == len(ids)


def test_tokens_after_termination_are_accepted_without_a_conflict(
    talk: Talk, vllm_log: Any
) -> None:
    """A trace may go on after EOS; stock stops asking the grammar there."""
    ids = talk.ids(ANSWER)
    grammar = talk.add("replay", [*ids, 7, 300])
    for token in ids:
        talk.masks()
        assert talk.accept("replay", token)
    for token in (7, 300, ids[-1]):
        assert open_mask(talk.masks()["replay"])
        assert talk.accept("replay", token)
        assert grammar.is_terminated()
    assert grammar.conflict is None
    assert not vllm_log.at_least(logging.WARNING)


def test_after_a_conflict_the_rest_of_the_trace_is_accepted_whatever_it_is(
    talk: Talk, vllm_log: Any
) -> None:
    ids = talk.ids(ANSWER)
    grammar = talk.add("replay", ids)
    bad = a_masked_id(talk.masks()["replay"])
    for token in (bad, *ids, bad, 511, 0):
        assert talk.accept("replay", token)
        assert open_mask(talk.masks()["replay"])
    assert grammar.conflict == 0
    assert grammar.is_terminated()
    row = torch.zeros(2, 16, dtype=torch.int32)
    grammar.fill_bitmask(row, 1)
    assert row[1].tolist() == [-1] * 16
    assert row[0].tolist() == [0] * 16
    assert not vllm_log.at_least(logging.WARNING)


def test_ordinary_users_keep_the_strict_grammar_of_the_backend_itself(talk: Talk) -> None:
    grammar = talk.add("plain", None)
    assert type(grammar) is not DegradingGrammar
    assert isinstance(grammar, StructuredOutputGrammar)
    bad = a_masked_id(talk.masks()["plain"])
    assert not talk.accept("plain", bad)


def test_several_tokens_at_once_without_a_mask_find_the_same_conflict(talk: Talk) -> None:
    """No mask was seen for the later ones: the backend itself is asked, and does not raise."""
    ids = talk.ids(ANSWER)
    grammar = talk.add("replay", ids)
    bad = a_masked_id(talk.masks()["replay"])
    assert grammar.accept_tokens("replay", [*ids[:3], bad, *ids[4:]])
    assert grammar.conflict == 3
    assert grammar.accepted == len(ids)


def test_rollback_without_a_conflict_is_the_backends(talk: Talk) -> None:
    ids = talk.ids(ANSWER)
    grammar = talk.add("replay", ids)
    talk.masks()
    talk.accept("replay", ids[0])
    second = talk.masks()["replay"]
    talk.accept("replay", ids[1])
    talk.masks()
    talk.accept("replay", ids[2])
    grammar.rollback(2)
    assert grammar.accepted == 1
    assert talk.masks()["replay"].equal(second)


def test_rollback_and_reset_after_a_conflict(talk: Talk) -> None:
    ids = talk.ids(ANSWER)
    grammar = talk.add("replay", ids)
    first = talk.masks()["replay"]
    talk.accept("replay", a_masked_id(first))
    grammar.rollback(1)
    assert grammar.accepted == 0
    assert grammar.conflict == 0
    grammar.reset()
    assert grammar.conflict is None
    assert talk.masks()["replay"].equal(first)


@pytest.mark.parametrize("kind", ["regex", "choice"])
def test_other_constraints_degrade_the_same_way(talk: Talk, kind: str) -> None:
    constraint = {"regex": {"regex": "[0-9]{3}"}, "choice": {"choice": ["10", "100"]}}[kind]
    if (kind, talk.manager.name) == ("choice", "xgrammar"):
        # vLLM's front end rewrites choices into a grammar for this backend before it gets here.
        from vllm.v1.structured_output.utils import choice_as_grammar

        constraint = {"grammar": choice_as_grammar(["10", "100"])}
    replay, plain = talk.add("replay", [1], constraint), talk.add("plain", None, constraint)
    masks = talk.masks()
    assert masks["replay"].equal(masks["plain"])
    assert talk.accept("replay", a_masked_id(masks["replay"]))
    masks = talk.masks()
    assert replay.conflict == 0
    assert open_mask(masks["replay"])
    assert not open_mask(masks["plain"])
    assert type(plain) is not DegradingGrammar


def test_a_schema_that_does_not_compile_fails_as_on_stock(config: VllmConfig) -> None:
    manager: Any = Manager(config)
    manager.name = "outlines"
    talk = Talk(manager)
    with pytest.raises(ValueError, match="nonsense"):
        talk.add("replay", [1], {"json": json.dumps({"type": "nonsense"})})
    manager.clear_backend()


@pytest.mark.parametrize(
    ("extra", "expected"),
    [(None, False), ({}, False), ({"assay_mode": "raw_logprobs"}, False), ({TRACE_ARG: [1]}, True)],
)
def test_only_a_request_with_a_trace_is_a_replay(extra: Any, expected: bool) -> None:
    request = Request("r", [1], SamplingParams(max_tokens=3, extra_args=extra), None)
    assert is_replay(request) is expected
