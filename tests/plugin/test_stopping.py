"""What ends a request inside, at and after its trace, with vLLM's own requests (case 59)."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.v1.core.sched.utils import check_stop as stock
from vllm.v1.request import Request, RequestStatus

from assay.plugin.constants import TRACE_ARG
from assay.plugin.stopping import tolerant, trace_length

EOS, STOP = 2, 7
check_stop = tolerant(stock)


def request(outputs: list[int], trace: list[int] | None, **params: Any) -> Request:
    held = SamplingParams(
        **{"max_tokens": 50, "stop_token_ids": [STOP], **params},
        extra_args=None if trace is None else {TRACE_ARG: trace},
    )
    held.update_from_generation_config({}, eos_token_id=EOS)
    made = Request("r", [10, 11, 12], held, None)
    made.append_output_token_ids(outputs)
    return made


@pytest.mark.parametrize("token", [EOS, STOP])
def test_case59_an_end_or_stop_id_inside_the_trace_does_not_cut_it(token: int) -> None:
    made = request([20, token], [20, token, 30])
    assert not check_stop(made, 100)
    assert made.status == RequestStatus.WAITING
    assert stock(request([20, token], None), 100), "stock would have ended it"


def test_case59_a_repetition_inside_the_trace_does_not_cut_it() -> None:
    rule = RepetitionDetectionParams(max_pattern_size=2, min_pattern_size=1, min_count=3)
    trace = [20] * 6
    assert stock(request(trace[:4], None, repetition_detection=rule), 100)
    assert not check_stop(request(trace[:4], trace, repetition_detection=rule), 100)


@pytest.mark.parametrize("last", [EOS, STOP])
def test_the_traces_last_id_ends_it_with_the_origins_reason(last: int) -> None:
    made = request([20, last], [20, last])
    assert check_stop(made, 100)
    assert made.status == RequestStatus.FINISHED_STOPPED
    assert made.stop_reason == (STOP if last == STOP else None)


def test_the_end_of_the_trace_ends_it_by_length_at_max_tokens() -> None:
    made = request([20, 21], [20, 21], max_tokens=2)
    assert check_stop(made, 100)
    assert made.status == RequestStatus.FINISHED_LENGTH_CAPPED


def test_past_the_trace_stock_rules_apply_again() -> None:
    """The caller asked for more than the trace: sampling goes on, and EOS ends it."""
    assert not check_stop(request([20, 21, 33], [20, 21]), 100)
    made = request([20, 21, EOS], [20, 21])
    assert check_stop(made, 100)
    assert made.status == RequestStatus.FINISHED_STOPPED


def test_a_full_context_ends_even_a_trace() -> None:
    made = request([20, 21], [20, 21, 22, 23])
    assert check_stop(made, 5)
    assert made.status == RequestStatus.FINISHED_LENGTH_CAPPED


def test_min_tokens_stays_as_the_origin_had_it() -> None:
    """It masks EOS in the processed distribution, so it must not be cleared to get past a stop."""
    made = request([20, EOS], [20, EOS, 22], min_tokens=3)
    assert not check_stop(made, 100)
    assert made.sampling_params is not None
    assert made.sampling_params.min_tokens == 3
    assert made.sampling_params.stop_token_ids == [STOP]


@pytest.mark.parametrize("outputs", [[20], [EOS], [STOP], [20, 21, EOS], [20] * 50, [20] * 49])
@pytest.mark.parametrize("context", [5, 100])
@pytest.mark.parametrize("extra", [None, {}, {"other": 1}, {"assay_mode": "raw_logprobs"}])
def test_an_ordinary_request_ends_exactly_as_on_stock(
    outputs: list[int], context: int, extra: dict[str, Any] | None
) -> None:
    pairs = []
    for function in (check_stop, stock):
        made = request(outputs, None)
        assert made.sampling_params is not None
        made.sampling_params.extra_args = extra
        pairs.append((function(made, context), made.status, made.stop_reason))
    assert pairs[0] == pairs[1]


def test_trace_length() -> None:
    assert trace_length(request([], [1, 2, 3])) == 3
    assert trace_length(request([], None)) == 0


def test_the_stock_check_can_be_found_again() -> None:
    """What makes installing idempotent."""
    assert check_stop.assay_stock is stock  # type: ignore[attr-defined]
