"""V1's row bookkeeping, driven by vLLM's own persistent batch (fault 1, case 16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from assay.plugin.constants import KEY_ARG, MODE_ARG, TRACE_ARG
from assay.plugin.rows import plan_step
from assay.plugin.sampler_v1 import RowBook

VOCAB = 64
ROWS = 6


def make_batch(book: RowBook) -> InputBatch:
    return InputBatch(
        max_num_reqs=ROWS,
        max_model_len=128,
        max_num_batched_tokens=128,
        device=torch.device("cpu"),
        vocab_size=VOCAB,
        block_sizes=[16],
        max_num_blocks_per_req=[8],
        logitsprocs=LogitsProcessors([book]),
    )


class Requests:
    """Requests with known traces; the model the book is compared with."""

    def __init__(self) -> None:
        self.count = 0

    def new(self, ours: bool, mode: str | None, outputs: int = 0) -> CachedRequestState:
        number = self.count
        self.count += 1
        extra: dict[str, Any] = {}
        if ours:
            # The trace says whose it is: a row that takes another request's ids is seen at once.
            extra = {
                TRACE_ARG: [(number * 7 + i) % VOCAB for i in range(5)],
                KEY_ARG: f"key-{number}",
            }
        if mode is not None:
            extra[MODE_ARG] = mode
        return CachedRequestState(
            req_id=f"request-{number}",
            prompt_token_ids=[1, 2, 3],
            mm_features=[],
            sampling_params=SamplingParams(extra_args=extra or None),
            generator=None,
            block_ids=([0],),
            num_computed_tokens=0,
            output_token_ids=[-1] * outputs,
        )


def check(book: RowBook, batch: InputBatch, alive: dict[str, CachedRequestState]) -> None:
    """Every row of the batch plans its own request's id and mode, and no row is left over."""
    assert set(batch.req_ids) == set(alive)
    ours = set()
    for row, req_id in enumerate(batch.req_ids):
        extra = alive[req_id].sampling_params.extra_args or {}
        if not extra:
            continue
        ours.add(row)
        state, outputs = book.rows[row]
        assert state.key == extra.get(KEY_ARG)
        assert state.mode == extra.get(MODE_ARG)
        assert (state.trace is None) == (TRACE_ARG not in extra)
        if state.trace is not None:
            assert state.trace.tolist() == extra[TRACE_ARG]
        assert outputs is alive[req_id].output_token_ids
    assert set(book.rows) == ours, "a row that is not ours, or a ghost of a finished request"


class BatchMachine(RuleBasedStateMachine):
    """Random steps of V1's runner: finish, add, resume, condense, swap, decode."""

    @initialize()
    def start(self) -> None:
        self.book = RowBook(VOCAB)
        self.batch = make_batch(self.book)
        self.requests = Requests()
        self.alive: dict[str, CachedRequestState] = {}
        self.preempted: list[CachedRequestState] = []

    def _pick(self, data: st.DataObject, at_most: int) -> list[str]:
        names = sorted(self.alive)
        return (
            data.draw(st.lists(st.sampled_from(names), max_size=at_most, unique=True))
            if names
            else []
        )

    @rule(
        data=st.data(),
        kinds=st.lists(
            st.tuples(st.booleans(), st.sampled_from([None, "raw_logprobs", "processed_logprobs"])),
            max_size=3,
        ),
        resume=st.booleans(),
        preempt=st.booleans(),
    )
    def step(self, data: st.DataObject, kinds: list[Any], resume: bool, preempt: bool) -> None:
        """One ``_update_states``: removals first, then additions (which replace), then condense."""
        for name in self._pick(data, ROWS):
            gone = self.alive.pop(name)
            self.batch.remove_request(name)
            if preempt:
                self.preempted.append(gone)
        joining = [self.requests.new(*kind) for kind in kinds]
        if resume and self.preempted:
            joining.append(self.preempted.pop(0))
        for request in joining[: ROWS - len(self.alive)]:
            self.batch.add_request(request)
            self.alive[request.req_id] = request
        self.batch.condense()
        if len(self.alive) > 1:
            for _ in range(data.draw(st.integers(0, 3))):
                one, two = data.draw(
                    st.lists(
                        st.integers(0, len(self.alive) - 1), min_size=2, max_size=2, unique=True
                    )
                )
                self.batch.swap_states(one, two)
        self.batch.refresh_metadata()
        for request in self.alive.values():
            request.output_token_ids.append(-1)  # what async scheduling leaves there

    @rule()
    def quiet_step(self) -> None:
        """A decode step without changes: vLLM passes ``None``."""
        self.batch.refresh_metadata()
        for request in self.alive.values():
            request.output_token_ids.append(-1)

    @invariant()
    def every_row_follows_its_request(self) -> None:
        if hasattr(self, "book"):
            check(self.book, self.batch, self.alive)


class TestF01RowsFollowRequests(BatchMachine.TestCase):
    """F1: forcing and mode stay with the request through add, remove, replace, condense and swap."""

    settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def filled(*requests: CachedRequestState) -> tuple[RowBook, InputBatch]:
    book = RowBook(VOCAB)
    batch = make_batch(book)
    for request in requests:
        batch.add_request(request)
    batch.refresh_metadata()
    return book, batch


@pytest.fixture
def new() -> Callable[..., CachedRequestState]:
    return Requests().new


def test_an_added_request_replaces_one_of_ours_in_the_same_row(
    new: Callable[..., CachedRequestState],
) -> None:
    first, plain = new(True, None), new(False, None)
    book, batch = filled(first)
    assert set(book.rows) == {0}
    batch.remove_request(first.req_id)
    batch.add_request(plain)
    batch.refresh_metadata()
    assert book.rows == {}


def test_f70_a_finished_request_leaves_no_ghost_row(
    new: Callable[..., CachedRequestState],
) -> None:
    book, batch = filled(new(True, None), new(True, None))
    for name in list(batch.req_ids):
        batch.remove_request(name)
    batch.condense()
    batch.refresh_metadata()
    assert book.rows == {}


def test_case16_only_the_length_of_the_output_list_is_used(
    new: Callable[..., CachedRequestState],
) -> None:
    """Case 16, F67: under async scheduling the list holds -1 placeholders, filled in later or never."""
    request = new(True, None)
    book, _ = filled(request)
    trace = request.sampling_params.extra_args[TRACE_ARG]
    for position in range(7):
        planned = plan_step(
            ((row, state, len(out)) for row, (state, out) in book.rows.items()), 1, "raw_logprobs"
        )
        if position < len(trace):
            assert planned is not None
            assert planned.forced.tolist() == [trace[position]]
            assert planned.evidence == ((0, "key-0", position, 5),)
        else:
            assert planned is None
        request.output_token_ids.append(-1)
        if position == 2:
            request.output_token_ids[0] = 33  # a late real id changes nothing


def test_a_resumed_request_goes_on_at_its_position(
    new: Callable[..., CachedRequestState],
) -> None:
    request = new(True, None, outputs=3)
    book, batch = filled(new(False, None), request)
    batch.remove_request("request-1")
    batch.condense()
    batch.refresh_metadata()
    batch.remove_request("request-0")
    batch.add_request(request)
    batch.refresh_metadata()
    state, outputs = book.rows[batch.req_id_to_index[request.req_id]]
    assert state.trace is not None
    assert state.trace[len(outputs)] == request.sampling_params.extra_args[TRACE_ARG][3]


def test_the_book_never_touches_logits_and_runs_beside_greedy_sampling() -> None:
    book = RowBook(VOCAB)
    logits = torch.randn(2, VOCAB)
    assert book.apply(logits) is logits
    assert book.is_argmax_invariant()
