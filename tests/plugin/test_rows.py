"""What one step must do, keyed by request (fault 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plugin.constants import KEY_ARG, MODE_ARG, NOT_FORCED, TRACE_ARG
from assay.plugin.rows import RowState, StepPlan, plan_step, row_state

VOCAB = 100
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"


def state(
    trace: list[int] | None = None, mode: str | None = None, key: str | None = "k"
) -> RowState:
    return RowState(key, None if trace is None else np.asarray(trace, dtype=np.int64), mode)


def plan(
    *rows: tuple[int, RowState, int], batch: int = 4, deployment: str = RAW
) -> StepPlan | None:
    return plan_step(rows, batch, deployment)


def test_each_row_gets_its_own_position() -> None:
    made = plan((2, state([7, 8, 9], key="a"), 1), (0, state([4], key="b"), 0))
    assert made is not None
    assert made.forced.tolist() == [4, -1, 8, -1]
    assert made.forced.dtype == np.int64
    assert made.modes == (RAW,) * 4
    assert set(made.evidence) == {(2, "a", 1, 3), (0, "b", 0, 1)}
    assert made.forces


def test_past_the_end_ordinary_sampling_resumes() -> None:
    """Spec section 2: mark -1, never the last id again, no evidence beyond the trace."""
    last = plan((0, state([7, 8]), 1))
    assert last is not None
    assert last.forced[0] == 8
    assert plan((0, state([7, 8]), 2)) is None
    assert plan((0, state([7, 8]), 5000)) is None
    beside = plan((0, state([7, 8]), 2), (1, state([5]), 0))
    assert beside is not None
    assert beside.forced.tolist() == [NOT_FORCED, 5, NOT_FORCED, NOT_FORCED]
    assert [row for row, *_ in beside.evidence] == [1]


def test_past_the_end_the_rows_own_mode_stays() -> None:
    made = plan((1, state([7], PROCESSED), 1))
    assert made is not None
    assert not made.forces
    assert made.modes == (RAW, PROCESSED, RAW, RAW)
    assert made.evidence == ()


def test_f67_a_discarded_sample_forces_nothing_and_leaves_no_evidence() -> None:
    """A negative position is a chunked prefill's sample, which is thrown away."""
    assert plan((0, state([7, 8]), -1)) is None
    made = plan((0, state([7, 8], PROCESSED), -5))
    assert made is not None
    assert not made.forces
    assert made.evidence == ()


def test_a_batch_without_rows_of_ours_takes_the_stock_path() -> None:
    assert plan() is None


@pytest.mark.parametrize("deployment", [RAW, PROCESSED, "raw_logits"])
def test_a_homogeneous_batch_takes_the_stock_path(deployment: str) -> None:
    """Rows that ask for the deployment's own mode, and rows past their trace, cost nothing."""
    rows = ((0, state(mode=deployment), 3), (1, state(), 3), (2, state([5], deployment), 1))
    assert plan(*rows, deployment=deployment) is None


def test_f14_mixed_modes_are_kept_row_by_row() -> None:
    made = plan((0, state(mode=PROCESSED), 9), (3, state(mode=RAW), 9), deployment="raw_logits")
    assert made is not None
    assert made.modes == (PROCESSED, "raw_logits", "raw_logits", RAW)
    assert made.single_mode is None


def test_a_batch_that_agrees_on_another_mode_is_known_as_such() -> None:
    made = plan(*((row, state(mode=PROCESSED), 0) for row in range(4)))
    assert made is not None
    assert made.single_mode == PROCESSED


def test_a_trace_without_a_key_forces_but_leaves_no_evidence() -> None:
    made = plan((0, state([5], key=None), 0))
    assert made is not None
    assert made.forced[0] == 5
    assert made.evidence == ()


def test_row_state_reads_what_ingest_wrote() -> None:
    read = row_state({TRACE_ARG: [1, 2], MODE_ARG: RAW, KEY_ARG: "x", "other": 1}, VOCAB)
    assert read is not None
    assert (read.key, read.mode) == ("x", RAW)
    assert read.trace is not None
    assert read.trace.tolist() == [1, 2]
    assert read.trace.dtype == np.int64


@pytest.mark.parametrize("extra", [None, {}, {"other": 1}, {KEY_ARG: "x"}])
def test_an_ordinary_request_has_no_state(extra: dict[str, Any] | None) -> None:
    assert row_state(extra, VOCAB) is None


@pytest.mark.parametrize("ids", [[VOCAB], [3, -1], [-1], [], [2**40], [[1, 2]]])
def test_f06_f69_a_trace_that_came_by_another_road_never_reaches_a_gather(ids: list[Any]) -> None:
    """An id outside the vocabulary would be a device assert: such a trace is not forced."""
    read = row_state({TRACE_ARG: ids, KEY_ARG: "x"}, VOCAB)
    assert read is not None
    assert read.trace is None
    assert plan((0, read, 0)) is None


row_strategy = st.tuples(
    st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    st.sampled_from([None, RAW, PROCESSED, "raw_logits", "processed_logits"]),
    st.none() | st.text("abc", min_size=1, max_size=2),
    st.integers(-2, 7),
)


@given(
    st.lists(st.none() | row_strategy, min_size=1, max_size=8),
    st.sampled_from([RAW, PROCESSED, "raw_logits", "processed_logits"]),
    st.randoms(use_true_random=False),
)
def test_f01_the_order_in_which_rows_are_told_does_not_matter(
    batch: list[Any], deployment: str, random: Any
) -> None:
    """Against the definition, written per row."""
    rows = [
        (at, state(spec[0], spec[1], spec[2]), spec[3])
        for at, spec in enumerate(batch)
        if spec is not None
    ]
    random.shuffle(rows)
    made = plan_step(rows, len(batch), deployment)
    forced = [
        spec[0][spec[3]] if spec and spec[0] and 0 <= spec[3] < len(spec[0]) else -1
        for spec in batch
    ]
    modes = tuple((spec[1] if spec else None) or deployment for spec in batch)
    if made is None:
        assert forced == [-1] * len(batch)
        assert set(modes) == {deployment}
        return
    assert made.forced.tolist() == forced
    assert made.modes == modes
    assert sorted(row for row, *_ in made.evidence) == [
        at for at, spec in enumerate(batch) if forced[at] >= 0 and spec[2] is not None
    ]
