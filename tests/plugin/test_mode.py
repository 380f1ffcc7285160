"""From request fields to the engine's request, with vLLM's own request models."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from assay.errors import RequestError
from assay.plugin.constants import KEY_ARG, MODE_ARG, TRACE_ARG
from assay.plugin.ingest import EngineLimits, Job, given_fields, ingest, our_fields

LIMITS = EngineLimits(
    vocab_size=512,
    max_model_len=1024,
    deployment_mode="raw_logprobs",
    speculative=False,
    sampling_mask=False,
    max_new_tokens=None,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": [5, 6, 7]}
MODELS = {"chat": (ChatCompletionRequest, CHAT), "completion": (CompletionRequest, COMPLETION)}
BOTH = pytest.mark.parametrize("kind", ["chat", "completion"])

TRACE = {"tokens": [{"token": "token_id:9"}, {"token": "10"}, {"token": "11"}]}


def trace_with_tops(low: int, entries: int) -> dict[str, Any]:
    """A one-position trace with ``low`` of its ``entries`` top tokens below id 4."""
    ids = [str(i % 4) for i in range(low)] + [str(100 + i) for i in range(entries - low)]
    return {"tokens": [{"token": "9", "top_tokens": ids}]}


def take(kind: str, limits: EngineLimits = LIMITS, **fields: Any) -> tuple[Any, Job]:
    """A request model built from the body, and what ingest made of it."""
    model, base = MODELS[kind]
    body = {**base, **fields}
    request = model(**body)
    ours = our_fields(request)
    return request, ingest(request, ours, given_fields(body), limits, lambda text: [7] * len(text))


def refused(kind: str, limits: EngineLimits = LIMITS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        take(kind, limits, **{"enforced_tokens": TRACE, **fields})
    return caught.value


def params(request: Any, room: int = 500) -> Any:
    """The engine's sampling parameters, made the way both serving classes make them."""
    return request.to_sampling_params(room, {})


@BOTH
def test_f02_the_models_keep_our_fields_and_they_reach_the_sampling_parameters(kind: str) -> None:
    """F2: vLLM's models drop nothing we send; what ingest writes arrives in ``extra_args``."""
    request, job = take(kind, enforced_tokens=TRACE, logprobs_mode="processed_logprobs")
    extra = params(request).extra_args
    assert extra == {TRACE_ARG: [9, 10, 11], MODE_ARG: "processed_logprobs", KEY_ARG: job.key}
    assert job.positions == 3


@BOTH
def test_f19_a_callers_own_xargs_travel_beside_ours(kind: str) -> None:
    request, _ = take(kind, enforced_tokens=TRACE, vllm_xargs={"other": 3})
    extra = params(request).extra_args
    assert extra["other"] == 3
    assert extra[TRACE_ARG] == [9, 10, 11]


@BOTH
def test_an_ordinary_request_has_no_fields_of_ours(kind: str) -> None:
    model, base = MODELS[kind]
    request = model(**base, enforced_tokens=None, logprobs_mode=None)
    assert our_fields(request) == {}
    assert params(request).extra_args is None


@BOTH
@pytest.mark.parametrize("name", [TRACE_ARG, MODE_ARG, KEY_ARG, "assay_anything"])
def test_reserved_xargs_are_refused(kind: str, name: str) -> None:
    """They would reach the sampler unchecked, id range included (F6, F7)."""
    model, base = MODELS[kind]
    with pytest.raises(RequestError, match="reserved") as caught:
        our_fields(model(**base, vllm_xargs={name: [1, 2]}))
    assert caught.value.param == f"vllm_xargs.{name}"


@BOTH
def test_every_replay_has_its_own_key(kind: str) -> None:
    keys = {take(kind, enforced_tokens=TRACE)[1].key for _ in range(50)}
    assert len(keys) == 50


# -- which mode


@BOTH
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_explicit_beats_inferred(kind: str, mode: str) -> None:
    for low in (0, 12):
        request, job = take(kind, enforced_tokens=trace_with_tops(low, 20), logprobs_mode=mode)
        assert (job.mode, job.mode_source, job.inferred) == (mode, "explicit", None)
        assert params(request).extra_args[MODE_ARG] == mode


@BOTH
@pytest.mark.parametrize(
    ("low", "entries", "mode"),
    [
        (3, 20, "processed_logprobs"),  # 0.15
        (2, 20, "raw_logprobs"),  # exactly 0.10 is not above it
        (0, 10, "raw_logprobs"),
        (2, 10, "processed_logprobs"),
    ],
)
def test_inferred_beats_the_deployment(kind: str, low: int, entries: int, mode: str) -> None:
    for deployment in ("raw_logprobs", "processed_logprobs"):
        limits = dataclasses.replace(LIMITS, deployment_mode=deployment)
        request, job = take(kind, limits, enforced_tokens=trace_with_tops(low, entries))
        assert (job.mode, job.mode_source) == (mode, "inferred")
        assert job.inferred == {"low_id_ratio": low / entries, "entries": entries}
        assert params(request).extra_args[MODE_ARG] == mode


@BOTH
@pytest.mark.parametrize("deployment", ["raw_logprobs", "processed_logprobs", "raw_logits"])
def test_fewer_than_ten_entries_leave_the_deployments_mode(kind: str, deployment: str) -> None:
    limits = dataclasses.replace(LIMITS, deployment_mode=deployment)
    request, job = take(kind, limits, enforced_tokens=trace_with_tops(9, 9))
    assert (job.mode, job.mode_source, job.inferred) == (deployment, "deployment", None)
    assert MODE_ARG not in params(request).extra_args


@BOTH
def test_an_inference_is_logged_with_request_id_and_ratio(kind: str, vllm_log: Any) -> None:
    request, _ = take(kind, enforced_tokens=trace_with_tops(5, 20), request_id="the-request")
    texts = [r.getMessage() for r in vllm_log.records if r.name == "vllm.assay"]
    assert len(texts) == 1
    assert request.request_id in texts[0]
    assert "the-request" in texts[0]
    assert "0.2500" in texts[0]
    assert "processed_logprobs" in texts[0]


@BOTH
def test_nothing_is_inferred_for_a_request_that_is_no_replay(kind: str, vllm_log: Any) -> None:
    request, job = take(kind, logprobs_mode="processed_logprobs")
    assert (job.key, job.positions, job.mode_source) == (None, 0, "explicit")
    assert params(request).extra_args == {MODE_ARG: "processed_logprobs"}
    assert not vllm_log.at_least(logging.INFO)


@BOTH
def test_a_mode_alone_changes_nothing_else(kind: str) -> None:
    """Stop strings and the token limit of an ordinary request stay the caller's."""
    request, _ = take(kind, logprobs_mode="raw_logprobs", stop=["x"], max_tokens=3, n=2)
    assert request.stop == ["x"]
    assert request.__dict__["max_tokens"] == 3
    assert type(request) in (ChatCompletionRequest, CompletionRequest)


# -- how long


def asked_room(request: Any) -> int | None:
    """What vLLM's serving code reads the limit from."""
    held = request.__dict__
    return held.get("max_completion_tokens") or held["max_tokens"]


@BOTH
@pytest.mark.parametrize(
    ("sent", "room"),
    [({}, 3), ({"max_tokens": None}, 3), ({"max_tokens": 1}, 3), ({"max_tokens": 40}, 40)],
)
def test_case59_max_tokens_is_the_longer_of_trace_and_asked(
    kind: str, sent: dict[str, Any], room: int
) -> None:
    """A replay stops at its trace unless more was asked for; completions' default of 16 is no ask."""
    request, _ = take(kind, enforced_tokens=TRACE, **sent)
    assert asked_room(request) == room


@pytest.mark.parametrize(
    ("sent", "room"),
    [
        ({"max_completion_tokens": 2}, 3),
        ({"max_completion_tokens": 50}, 50),
        ({"max_completion_tokens": 5, "max_tokens": 50}, 5),
        ({"max_completion_tokens": None, "max_tokens": 50}, 50),
    ],
)
def test_max_completion_tokens_is_the_callers_limit_in_chat(
    sent: dict[str, Any], room: int
) -> None:
    request, _ = take("chat", enforced_tokens=TRACE, **sent)
    assert request.max_completion_tokens == room


@BOTH
def test_case59_stop_strings_are_cleared_because_they_would_cut_the_trace(kind: str) -> None:
    request, _ = take(kind, enforced_tokens=TRACE, stop=["\n", "end"])
    assert params(request).stop == []


KEPT = {
    "temperature": 0.35,
    "top_p": 0.8,
    "top_k": 7,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.4,
    "logit_bias": {"5": 2.0, "9": -100.0},
    "min_tokens": 2,
    "seed": 11,
    "bad_words": ["no"],
    "stop_token_ids": [4],
    "ignore_eos": True,
    "allowed_token_ids": [5, 9, 10, 11],
}


@BOTH
def test_case02_case40_what_shapes_the_distribution_is_carried_over(kind: str) -> None:
    """Case 2: temperature, top-k, repetition penalty. Case 40: logit bias and min-p not dropped.

    Compared with the parameters stock vLLM makes of the same body without our fields.
    """
    model, base = MODELS[kind]
    stock = params(model(**base, **KEPT))
    ours = params(take(kind, enforced_tokens=TRACE, **KEPT)[0])
    for name in ours.__struct_fields__:
        if name != "extra_args":
            assert getattr(ours, name) == getattr(stock, name), name
    for name in set(KEPT) - {"logit_bias"}:
        assert getattr(ours, name) == KEPT[name], name
    assert ours.logit_bias == {5: 2.0, 9: -100.0}


# -- what a replay cannot be combined with


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("use_beam_search", True), ("prompt_logprobs", 1), ("prompt_logprobs", 0)],
)
def test_what_a_replay_cannot_be_combined_with_is_refused_by_name(
    kind: str, field: str, value: object
) -> None:
    error = refused(kind, **{field: value})
    assert error.param == field
    assert "enforced_tokens" in str(error)


@BOTH
def test_echo_is_refused(kind: str) -> None:
    extra = {"add_generation_prompt": False} if kind == "chat" else {}
    assert refused(kind, echo=True, **extra).param == "echo"


@BOTH
def test_the_message_names_the_field_that_was_sent(kind: str) -> None:
    with pytest.raises(RequestError, match="leave it out with enforced_str"):
        take(kind, enforced_str="abc", n=2)


@BOTH
@pytest.mark.parametrize("value", [1, None])
def test_one_answer_is_no_reason_to_refuse(kind: str, value: int | None) -> None:
    assert take(kind, enforced_tokens=TRACE, n=value or 1)[1].key is not None


@pytest.mark.parametrize("prompt", [["a", "b"], [[5, 6], [7]]])
def test_several_prompts_are_refused(prompt: object) -> None:
    assert refused("completion", prompt=prompt).param == "prompt"


@pytest.mark.parametrize("prompt", ["a", ["a"], [5, 6], [[5, 6]]])
def test_one_prompt_in_any_form_is_accepted(prompt: object) -> None:
    assert take("completion", enforced_tokens=TRACE, prompt=prompt)[1].key is not None


def test_prompt_embeddings_are_refused() -> None:
    assert refused("completion", prompt=None, prompt_embeds="AAAA").param == "prompt_embeds"


@BOTH
@pytest.mark.parametrize(
    "fields", [{"enforced_tokens": TRACE}, {"enforced_str": "a"}, {"logprobs_mode": "raw_logprobs"}]
)
def test_case13_case40_speculative_decoding_is_refused_with_reason_and_fix(
    kind: str, fields: dict[str, Any]
) -> None:
    """Case 13, F17: never a draft model's numbers, and no grammar assert, because it never starts."""
    limits = dataclasses.replace(LIMITS, speculative=True)
    with pytest.raises(RequestError, match=r"speculative decoding.*--speculative-config") as caught:
        take(kind, limits, **fields)
    assert caught.value.param == next(iter(fields))


@BOTH
def test_a_sampling_mask_server_is_refused(kind: str) -> None:
    error = refused(kind, dataclasses.replace(LIMITS, sampling_mask=True))
    assert error.param == "enforced_tokens"
    assert "--return-sampling-mask" in str(error)


# -- room in the context


@BOTH
def test_a_trace_as_long_as_the_context_is_refused_at_once(kind: str) -> None:
    limits = dataclasses.replace(LIMITS, max_model_len=3)
    error = refused(kind, limits)
    assert error.param == "enforced_tokens"
    assert "holds 3 tokens" in str(error)
    assert take(kind, dataclasses.replace(LIMITS, max_model_len=4), enforced_tokens=TRACE)


@BOTH
def test_a_deployments_own_cap_is_refused_and_not_applied_silently(kind: str) -> None:
    error = refused(kind, dataclasses.replace(LIMITS, max_new_tokens=2))
    assert error.param == "enforced_tokens"
    assert take(kind, dataclasses.replace(LIMITS, max_new_tokens=3), enforced_tokens=TRACE)


@BOTH
@pytest.mark.parametrize(
    ("fields", "name"),
    [({"enforced_tokens": TRACE}, "enforced_tokens"), ({"enforced_str": "abc"}, "enforced_str")],
)
def test_a_prompt_that_leaves_no_room_is_refused_and_the_trace_not_cut(
    kind: str, fields: dict[str, Any], name: str
) -> None:
    """vLLM clamps ``max_tokens`` to what the prompt left, then makes the sampling parameters."""
    request, job = take(kind, **fields)
    assert job.positions == 3
    assert params(request, room=3).extra_args[TRACE_ARG] == [9, 10, 11] or name == "enforced_str"
    with pytest.raises(VLLMValidationError, match="trace has 3 positions") as caught:
        params(request, room=2)
    assert caught.value.parameter == name


@BOTH
def test_the_room_check_does_not_touch_other_requests(kind: str) -> None:
    take(kind, enforced_tokens=TRACE)
    model, base = MODELS[kind]
    assert params(model(**base), room=1).max_tokens == 1


@BOTH
def test_the_checked_request_is_still_the_stock_models_instance(kind: str) -> None:
    """Stock code branches on ``isinstance``."""
    request, _ = take(kind, enforced_tokens=TRACE)
    assert isinstance(request, MODELS[kind][0])
    assert type(request).__name__ == MODELS[kind][0].__name__
