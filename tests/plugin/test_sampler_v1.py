"""The V1 sampler against the stock one, row by row, over real sampling metadata.

Fault 11 (an identity test of bound methods that was always true) cannot occur: the plugin compares
classes (``runner.Sampler is AssaySamplerV1``) and marks replaced functions by an attribute; it
never compares methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.plugin.tapes import v1_noise
from tests.plugin.v1_batch import (
    PROCESSED,
    RAW,
    SHAPED,
    TOP,
    TOPS,
    VOCAB,
    Row,
    metadata,
    mixed,
    ours,
    random_logits,
    stock,
    stock_scores,
)
from vllm.v1.sample.sampler import Sampler

from assay.plugin.sampler_v1 import AssaySamplerV1, row_book


def mode_of(row: Row, deployment: str) -> str:
    return row.mode or deployment


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
DEPLOYMENTS = pytest.mark.parametrize(
    "deployment", [RAW, PROCESSED, "raw_logits", "processed_logits"]
)


@DTYPES
@DEPLOYMENTS
def test_f01_forced_rows_get_their_id_and_all_others_what_stock_draws(
    dtype: torch.dtype, deployment: str
) -> None:
    """Plain rows, greedy rows and rows past their trace draw exactly what stock vLLM draws."""
    rows = mixed()
    logits = random_logits(len(rows), dtype)
    plain = stock(rows, logits, deployment)
    assert ours(rows, logits, deployment).ids == [
        drawn if row.forced is None else row.forced
        for row, drawn in zip(rows, plain.ids, strict=True)
    ]
    assert any(row.forced not in (None, drawn) for row, drawn in zip(rows, plain.ids, strict=True))


@DTYPES
@DEPLOYMENTS
def test_f13_f14_each_row_has_the_numbers_of_a_stock_server_in_its_mode(
    dtype: torch.dtype, deployment: str
) -> None:
    """F14: per row in a mixed batch. F13: a raw row never gets the processed by-product.

    Top-k ids, their values, the chosen id's value and its rank, all as stock gathers them.
    """
    rows = mixed()
    logits = random_logits(len(rows), dtype)
    step = ours(rows, logits, deployment)
    scores = {mode: stock_scores(rows, logits, mode) for mode in {deployment, RAW, PROCESSED}}
    for at, row in enumerate(rows):
        expected = Sampler.gather_logprobs(
            scores[mode_of(row, deployment)], TOPS, torch.tensor(step.ids, dtype=torch.int64)
        )
        assert (
            step.logprobs.logprob_token_ids[at].tolist() == expected.logprob_token_ids[at].tolist()
        )
        torch.testing.assert_close(
            step.logprobs.logprobs[at], expected.logprobs[at], rtol=0, atol=1e-6, msg=f"row {at}"
        )
        assert step.logprobs.selected_token_ranks[at] == expected.selected_token_ranks[at]


@DEPLOYMENTS
def test_plain_neighbours_of_a_replay_are_equal_to_stock_bit_for_bit(deployment: str) -> None:
    rows = mixed()
    logits = random_logits(len(rows))
    mine, plain = ours(rows, logits, deployment), stock(rows, logits, deployment)
    compared = 0
    for at, row in enumerate(rows):
        if row.extra is None:
            compared += 1
            assert mine.logprobs.logprob_token_ids[at].equal(plain.logprobs.logprob_token_ids[at])
            assert mine.logprobs.logprobs[at].equal(plain.logprobs.logprobs[at])
            assert mine.logprobs.selected_token_ranks[at] == plain.logprobs.selected_token_ranks[at]
    assert compared == 3


def test_case01_the_two_modes_differ_where_the_sampler_cut() -> None:
    """Case 1: processed numbers hold -inf outside the support and raw ones do not."""
    rows = [
        Row({"temperature": 0.5, "top_k": 3, "seed": 1, **TOP}, mode=mode)
        for mode in (RAW, PROCESSED)
    ]
    step = ours(rows, random_logits(1).expand(2, -1).contiguous())
    raw, processed = step.logprobs.logprobs[:, 1:]
    assert torch.isfinite(raw).all()
    assert torch.isfinite(processed).sum() == 3
    assert not torch.allclose(raw[:3], processed[:3])


@DEPLOYMENTS
@pytest.mark.parametrize("mode", [RAW, PROCESSED])
def test_a_homogeneous_batch_in_another_mode_equals_stock_in_that_mode(
    deployment: str, mode: str
) -> None:
    base = [Row({"seed": at, **(SHAPED if at % 2 else {}), **TOP}) for at in range(4)]
    rows = [Row(row.params, mode=mode) for row in base]
    logits = random_logits(4)
    mine, plain = ours(rows, logits, deployment), stock(base, logits, mode)
    assert mine.ids == plain.ids
    torch.testing.assert_close(mine.logprobs.logprobs, plain.logprobs.logprobs, rtol=0, atol=1e-6)


def test_an_all_greedy_batch_is_forced_and_processed_too() -> None:
    rows = [
        Row({"temperature": 0.0, "repetition_penalty": 1.5, **TOP}, outputs=(7,)),
        Row({"temperature": 0.0, "repetition_penalty": 1.5, **TOP}, (7,), (7, 33), PROCESSED, "k"),
    ]
    logits = random_logits(2)
    step = ours(rows, logits)
    assert step.ids == [stock(rows, logits).ids[0], 33]
    processed = stock_scores(rows, logits, PROCESSED)
    assert step.logprobs.logprobs[1, 0] == pytest.approx(float(processed[1, 33]), abs=1e-6)


@pytest.mark.parametrize("greedy", [True, False])
def test_case07_a_replay_without_logprobs_is_forced_and_measured(greedy: bool) -> None:
    """No log probabilities asked for: none returned, as on stock; the evidence is there."""
    params = {"temperature": 0.0} if greedy else {"seed": 3}
    step = ours([Row(params, trace=(44,), key="k"), Row(params)], random_logits(2))
    assert step.logprobs is None
    assert step.ids[0] == 44
    assert step.sampler.assay_evidence.take("k")["at"] == [0]


def test_case07_zero_logprobs_give_the_chosen_token_alone() -> None:
    rows = mixed({"logprobs": 0})
    logits = random_logits(len(rows))
    step = ours(rows, logits)
    assert step.logprobs.logprobs.shape == (len(rows), 1)
    for at, row in enumerate(rows):
        expected = stock_scores(rows, logits, mode_of(row, RAW))[at, step.ids[at]]
        assert step.logprobs.logprobs[at, 0] == pytest.approx(float(expected), abs=1e-6)
        assert step.logprobs.logprob_token_ids[at].tolist() == [step.ids[at]]


def test_minus_one_logprobs_give_every_rows_whole_vocabulary() -> None:
    rows = mixed({"logprobs": -1})
    data = metadata(rows, plugin=True)
    data.max_num_logprobs = -1  # what stock code understands as "everything, unsorted"
    logits = random_logits(len(rows))
    torch.manual_seed(99)
    output = AssaySamplerV1(RAW)(logits=logits.clone(), sampling_metadata=data)
    for at, row in enumerate(rows):
        expected = stock_scores(rows, logits, mode_of(row, RAW))[at]
        torch.testing.assert_close(
            output.logprobs_tensors.logprobs[at], expected, rtol=0, atol=1e-6
        )


def test_f15_a_request_for_named_ids_only_gets_its_mode() -> None:
    """F15: ``logprob_token_ids`` without ``logprobs`` takes another branch of the stock code."""
    asked = {"logprob_token_ids": [4, 11, 30]}
    rows = [
        Row({"seed": 1, **SHAPED, **asked}),
        Row({"seed": 1, **SHAPED, **asked}, mode=PROCESSED),
        Row({"seed": 2, **SHAPED, **asked}, trace=(30,), mode=PROCESSED, key="k"),
    ]
    logits = random_logits(3)
    step = ours(rows, logits)
    for at, row in enumerate(rows):
        expected = stock_scores(rows, logits, mode_of(row, RAW))[at]
        ids = step.logprobs.logprob_token_ids[at].tolist()
        assert ids == [step.ids[at], 4, 11, 30]
        torch.testing.assert_close(step.logprobs.logprobs[at], expected[ids], rtol=0, atol=1e-6)
    assert step.ids[2] == 30


class MustNotRun(torch.nn.Module):
    """A fused kernel that has no processed logits, as FlashInfer and aiter have none."""

    def forward(self, *args: Any) -> Any:
        raise AssertionError("the fused sampler ran")


def test_f10_f12_a_fused_sampler_is_never_asked_in_a_step_with_a_row_of_ours() -> None:
    """F10: such kernels have no processed logits. F12: no need-processed flag on any path to forget."""
    rows = mixed()
    logits = random_logits(len(rows))
    sampler = AssaySamplerV1(RAW)
    fused = sampler.topk_topp_sampler = MustNotRun()
    torch.manual_seed(99)
    output = sampler(logits=logits.clone(), sampling_metadata=metadata(rows, plugin=True))
    assert output.sampled_token_ids[:, 0].tolist() == ours(rows, logits).ids
    # Ordinary traffic keeps the fused kernel: it is in its place again, and is what runs.
    assert sampler.topk_topp_sampler is fused
    plain = metadata([Row({"seed": 1, "top_k": 3}), Row({"seed": 2})], plugin=True)
    with pytest.raises(AssertionError, match="fused sampler ran"):
        sampler(logits=random_logits(2), sampling_metadata=plain)


def test_the_fused_sampler_is_back_in_place_after_an_error() -> None:
    sampler = AssaySamplerV1(RAW)
    fused, sampler.assay_native = sampler.topk_topp_sampler, MustNotRun()
    data = metadata([Row({"seed": 1}, trace=(5,), key="k")], plugin=True)
    with pytest.raises(AssertionError):
        sampler(logits=random_logits(1), sampling_metadata=data)
    assert sampler.topk_topp_sampler is fused
    # Nor does the failed step's plan linger: the next ordinary step is stock.
    plain = metadata([Row({"seed": 1})], plugin=True)
    got = sampler(logits=random_logits(1), sampling_metadata=plain).sampled_token_ids
    assert got[:, 0].tolist() == stock([Row({"seed": 1})], random_logits(1)).ids


@pytest.mark.parametrize(
    ("deployment", "override"),
    [
        (RAW, "raw_logits"),
        (RAW, RAW),
        (PROCESSED, "processed_logits"),
        (PROCESSED, PROCESSED),
        (PROCESSED, "raw_logits"),
    ],
)
def test_a_rejection_samplers_own_mode_keeps_its_meaning(override: str, deployment: str) -> None:
    """It calls the sampler for the bonus token with an override: that call is stock's alone."""
    rows = mixed()
    call = {"predict_bonus_token": True, "logprobs_mode_override": override}
    logits = random_logits(len(rows))
    mine, plain = ours(rows, logits, deployment, **call), stock(rows, logits, deployment, **call)
    assert mine.ids == plain.ids
    assert mine.logprobs.logprobs.equal(plain.logprobs.logprobs)
    assert len(mine.sampler.assay_evidence) == 0


def test_a_profiling_run_without_a_row_book_is_stock() -> None:
    """The runner's dummy sampler run brings processors of its own."""
    data = metadata([Row({"seed": 1, **TOP})], plugin=False)
    assert row_book(data) is None
    sampler = AssaySamplerV1(RAW)
    output = sampler(logits=random_logits(1), sampling_metadata=data)
    plain = stock([Row({"seed": 1, **TOP})], random_logits(1))
    assert output.sampled_token_ids[:, 0].tolist() == plain.ids


def test_rows_beyond_the_logits_are_left_alone() -> None:
    """The last rows of a batch can be without logits (a partial prefill under some runners)."""
    rows = [Row({"seed": 1}, trace=(5,), key="a"), Row({"seed": 2}, trace=(6,), key="b")]
    sampler = AssaySamplerV1(RAW)
    plan = sampler._plan(metadata(rows, plugin=True), batch=1)
    assert plan is not None
    assert plan.forced.tolist() == [5]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@DTYPES
def test_evidence_is_what_numpy_computes_from_the_logits(dtype: torch.dtype) -> None:
    """Drawn id, both log probabilities and both ranks, in float64 from the definition."""
    params = {"temperature": 0.7, "top_k": 20, "seed": 21}
    rows = [
        Row({"seed": 20}),
        Row(params, outputs=(8, 8), trace=(8, 8, 30, 4), key="cut"),
        Row({"temperature": 0.0}, trace=(31,), key="greedy"),
        Row({"temperature": 2.0, "seed": 22}, trace=(32,), mode=PROCESSED, key="hot"),
    ]
    logits = random_logits(len(rows), dtype)
    step = ours(rows, logits)
    drawn = stock(rows, logits).ids
    exact = logits.double().numpy()
    for at, key, temperature, keep in (
        (1, "cut", 0.7, 20),
        (2, "greedy", 1.0, 97),
        (3, "hot", 2.0, 97),
    ):
        token = rows[at].forced
        raw = log_softmax(exact[at])
        shaped = exact[at] / temperature
        shaped = np.where(shaped >= np.sort(shaped)[-keep], shaped, -np.inf)
        processed = log_softmax(shaped)
        seed = rows[at].params.get("seed")
        noise = np.zeros(VOCAB) if seed is None else v1_noise(step.sampler, seed, VOCAB)
        assert step.sampler.assay_evidence.take(key) == {
            "size": len(rows[at].trace or ()),
            "at": [len(rows[at].outputs)],
            "drawn": [drawn[at]],
            "rank_raw": [int((raw >= raw[token]).sum())],
            "rank_processed": [int((processed >= processed[token]).sum())],
            "logprob_raw": [pytest.approx(raw[token], abs=2e-5)],
            "logprob_processed": [pytest.approx(processed[token], abs=2e-5)],
            "drawn_raw": [pytest.approx(raw[drawn[at]], abs=2e-5)],
            "drawn_processed": [pytest.approx(processed[drawn[at]], abs=2e-5)],
            "noise_drawn": [pytest.approx(noise[drawn[at]], abs=2e-5)],
            "noise_forced": [pytest.approx(noise[token], abs=2e-5)],
        }


def test_an_impossible_forced_id_is_measured_as_minus_infinity() -> None:
    """Outside the sampler's support: -inf processed at a rank behind everything, finite raw."""
    rows = [Row({"top_k": 1, "seed": 1}, trace=(0,), key="k")]
    logits = random_logits(1)
    logits[0, 0] = -20.0
    taken = ours(rows, logits).sampler.assay_evidence.take("k")
    assert taken["logprob_processed"] == [-np.inf]
    assert taken["rank_processed"] == [VOCAB]
    assert np.isfinite(taken["logprob_raw"][0])


def test_a_replay_over_many_steps_collects_every_position() -> None:
    trace = (40, 41, 42, 43)
    sampler = AssaySamplerV1(RAW)
    drawn = []
    for position in range(6):
        row = Row({"seed": 5, **TOP}, trace[:position] + (1,) * (position - 4), trace, None, "k")
        logits = random_logits(1, seed=position)
        data = metadata([row], plugin=True)
        got = sampler(logits=logits.clone(), sampling_metadata=data).sampled_token_ids.item()
        plain = stock([row], logits).ids[0]
        drawn.append(plain)
        assert got == (trace[position] if position < 4 else plain)
    taken = sampler.assay_evidence.take("k")
    assert taken["at"] == [0, 1, 2, 3]
    assert taken["drawn"] == drawn[:4]


def test_the_raw_logits_given_by_the_runner_are_returned_untouched_by_our_copy() -> None:
    """Stock changes float32 logits in place as well; ours may not change more than stock does."""
    rows = [Row({"seed": 1}, trace=(5,), key="k")]
    given = random_logits(1)
    data = metadata(rows, plugin=True)
    AssaySamplerV1(RAW)(logits=given, sampling_metadata=data)
    plain = random_logits(1)
    Sampler(RAW)(logits=plain, sampling_metadata=metadata(rows, plugin=False))
    assert given.equal(plain)
