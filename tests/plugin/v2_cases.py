"""The V2 sampler against the stock one. Run by ``test_sampler_v2.py`` in an environment of its own.

Triton's interpreter stands in for the compiler; the two kernels it cannot run are replaced by
PyTorch twins, in stock's runs and in ours alike.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
import torch
from assay_cpu_triton.twins import register
from tests.plugin.syncs import count
from tests.plugin.v1_batch import PROCESSED, RAW, TOP, TOPS, VOCAB, Row, mixed, random_logits
from tests.plugin.v2_batch import PROMPT, Engine, ours, stock, stock_scores
from vllm.v1.worker.gpu.sample.sampler import Sampler

from assay.plugin.sampler_v2 import AssaySamplerV2
from assay.scoring.tape import gumbel

register()

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
DEPLOYMENTS = pytest.mark.parametrize("deployment", [RAW, PROCESSED, "raw_logits"])


@functools.cache
def expected(mode: str, dtype: torch.dtype) -> torch.Tensor:
    rows = mixed()
    return stock_scores(rows, random_logits(len(rows), dtype), mode)


@DTYPES
@DEPLOYMENTS
def test_f01_f14_every_row_has_its_own_id_and_its_own_modes_numbers(
    dtype: torch.dtype, deployment: str
) -> None:
    """F1, F13, F14: forced ids, stock's draws elsewhere; top-k ids, values and ranks per row."""
    rows = mixed()
    logits = random_logits(len(rows), dtype)
    step, plain = ours(rows, logits, deployment), stock(rows, logits, deployment)
    assert step.ids == [
        drawn if row.forced is None else row.forced
        for row, drawn in zip(rows, plain.ids, strict=True)
    ]
    assert any(row.forced not in (None, drawn) for row, drawn in zip(rows, plain.ids, strict=True))
    tensors = step.logprobs
    for at, row in enumerate(rows):
        full = expected(row.mode or deployment, dtype)[at]
        ids = tensors.logprob_token_ids[at].to(torch.int64)
        assert ids[0] == step.ids[at]
        torch.testing.assert_close(
            tensors.logprobs[at], full[ids], rtol=0, atol=2e-6, msg=f"row {at}"
        )
        best = full.topk(TOPS).values
        torch.testing.assert_close(full[ids[1:]], best, rtol=0, atol=2e-6, msg=f"row {at}")
        rank, number = int(tensors.selected_token_ranks[at]), full[step.ids[at]]
        # Stock's kernel pads the vocabulary with -inf and counts the padding for an impossible id;
        # the evidence's own ranks do not (below).
        assert rank == int((full >= number).sum()) or (number == -torch.inf and rank > VOCAB)
        if row.extra is None:
            assert tensors.logprobs[at].equal(plain.logprobs.logprobs[at])
            assert tensors.logprob_token_ids[at].equal(plain.logprobs.logprob_token_ids[at])


@pytest.mark.parametrize("mode", [RAW, PROCESSED])
@DEPLOYMENTS
def test_a_homogeneous_batch_in_another_mode_equals_stock_in_that_mode(
    deployment: str, mode: str
) -> None:
    base = [row for row in mixed() if row.extra is None]
    rows = [Row(row.params, mode=mode) for row in base]
    logits = random_logits(len(rows))
    mine, plain = ours(rows, logits, deployment), stock(base, logits, mode)
    assert mine.ids == plain.ids
    torch.testing.assert_close(mine.logprobs.logprobs, plain.logprobs.logprobs, rtol=0, atol=2e-6)


def test_case07_no_logprobs_asked_none_returned_and_the_evidence_is_there() -> None:
    step = ours([Row({"seed": 1}, trace=(44,), key="k"), Row({"seed": 2})], random_logits(2))
    assert step.logprobs is None
    assert step.ids[0] == 44
    assert step.sampler.assay_evidence.take("k")["at"] == [0]


def test_case07_zero_logprobs_give_the_chosen_token_alone() -> None:
    rows = mixed({"logprobs": 0})
    step = ours(rows, random_logits(len(rows)))
    assert step.logprobs.logprobs.shape == (len(rows), 1)
    for at, row in enumerate(rows):
        number = expected(row.mode or RAW, torch.float32)[at, step.ids[at]]
        assert step.logprobs.logprobs[at, 0] == pytest.approx(float(number), abs=2e-6)


def test_f15_a_request_for_named_ids_only_gets_its_mode() -> None:
    asked = {"logprob_token_ids": [4, 11, 30], "seed": 1, "temperature": 0.6}
    rows = [
        Row(asked),
        Row(asked, mode=PROCESSED),
        Row(asked, trace=(30,), mode=PROCESSED, key="k"),
    ]
    logits = random_logits(3)
    step = ours(rows, logits)
    full = {mode: stock_scores(rows[:1] * 3, logits, mode) for mode in (RAW, PROCESSED)}
    for at, row in enumerate(rows):
        ids = step.logprobs.logprob_token_ids[at].to(torch.int64)
        assert ids.tolist()[:4] == [step.ids[at], 4, 11, 30]
        torch.testing.assert_close(
            step.logprobs.logprobs[at][:4], full[row.mode or RAW][at][ids[:4]], rtol=0, atol=2e-6
        )


def test_f10_f12_a_fused_sampler_is_never_asked_in_a_step_with_a_row_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such kernels have no processed logits; ordinary traffic keeps them."""

    def must_not_run(*args: Any) -> Any:
        raise AssertionError("the fused sampler ran")

    module = importlib.import_module("vllm.v1.worker.gpu.sample.sampler")
    monkeypatch.setattr(module, "flashinfer_sample", must_not_run)
    engine = Engine(AssaySamplerV2)
    engine.sampler.use_flashinfer = True
    engine.add("plain", Row({"top_k": 5}))
    engine.add("ours", Row({"top_k": 5}, trace=(44,), key="k"))
    length = len(PROMPT)
    assert engine.step({"plain": length, "ours": length}, random_logits(2)).ids[1] == 44
    with pytest.raises(AssertionError, match="fused sampler ran"):
        engine.step({"plain": length}, random_logits(1))


def test_f60_f68_a_reused_slot_holds_nothing_of_its_last_occupant() -> None:
    """F60, F68: state is rewritten when a slot gets a new request, ours or not."""
    engine = Engine(AssaySamplerV2, slots=1)
    length = len(PROMPT)
    logits = random_logits(1)
    first = engine.add(
        "first", Row({"seed": 1, **TOP}, trace=(44, 45), mode=PROCESSED, key="first")
    )
    assert engine.step({"first": length}, logits).ids == [44]
    engine.states.remove_request("first")

    plain = Row({"seed": 2, **TOP})
    assert engine.add("plain", plain) == first
    step, alone = engine.step({"plain": length}, logits), stock([plain], logits)
    assert step.ids == alone.ids
    assert step.logprobs.logprobs.equal(alone.logprobs.logprobs)
    assert engine.sampler._assay_slots == {}
    engine.states.remove_request("plain")

    engine.add("second", Row({"seed": 3}, trace=(50,), key="second"))
    assert engine.step({"second": length}, logits).ids == [50]
    engine.states.remove_request("second")
    engine.add("mode", Row({"seed": 3}, mode=PROCESSED))
    engine.step({"mode": length}, logits)
    assert engine.sampler.assay_evidence.take("first")["at"] == [0]
    assert engine.sampler.assay_evidence.take("second")["size"] == 1
    assert len(engine.sampler.assay_evidence) == 0


def test_f67_a_discarded_sample_of_a_chunked_prefill_forces_and_measures_nothing() -> None:
    """Below the prefill length; a resumed request's outputs are part of its prefill."""
    engine = Engine(AssaySamplerV2)
    row = Row({"seed": 1}, outputs=(40, 41), trace=(40, 41, 42), key="k")
    plain = Engine(Sampler)
    engine.add("r", row)
    plain.add("r", row)
    logits = random_logits(1)
    for length in range(1, len(PROMPT) + 2):
        assert engine.step({"r": length}, logits).ids == plain.step({"r": length}, logits).ids
    assert len(engine.sampler.assay_evidence) == 0
    assert engine.step({"r": len(PROMPT) + 2}, logits).ids == [42]
    assert engine.sampler.assay_evidence.take("k")["at"] == [2]


def test_f01_rows_in_any_order_step_after_step() -> None:
    """Slots stay, rows are shuffled every step, and one request leaves in between."""
    random = np.random.default_rng(3)
    engine = Engine(AssaySamplerV2)
    traces = {f"r{i}": tuple(10 * i + p for p in range(5)) for i in range(1, 5)}
    for name, trace in traces.items():
        engine.add(name, Row({"seed": 1}, trace=trace, key=name))
    engine.add("plain", Row({"seed": 1}))
    alive = [*traces, "plain"]
    for position in range(5):
        order = [str(name) for name in random.permutation(alive)]
        step = engine.step(dict.fromkeys(order, len(PROMPT) + position), random_logits(len(order)))
        for name, token in zip(order, step.ids, strict=True):
            if name != "plain":
                assert token == traces[name][position]
        if position == 2:
            engine.states.remove_request("r2")
            alive.remove("r2")
    assert engine.sampler.assay_evidence.take("r2")["at"] == [0, 1, 2]
    assert engine.sampler.assay_evidence.take("r4")["at"] == [0, 1, 2, 3, 4]


def test_past_the_end_ordinary_sampling_resumes() -> None:
    engine, plain = Engine(AssaySamplerV2), Engine(Sampler)
    row = Row({"seed": 9, **TOP}, trace=(44,), key="k")
    engine.add("r", row)
    plain.add("r", row)
    for position in range(4):
        logits = random_logits(1, seed=position)
        lengths = {"r": len(PROMPT) + position}
        got, drawn = engine.step(lengths, logits).ids, plain.step(lengths, logits).ids
        assert got == ([44] if position == 0 else drawn)
    assert engine.sampler.assay_evidence.take("k")["at"] == [0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@DTYPES
def test_evidence_is_what_numpy_computes_from_the_logits(dtype: torch.dtype) -> None:
    rows = [
        Row({"seed": 20}),
        Row({"temperature": 0.7, "top_k": 20, "seed": 21}, (8, 8), (8, 8, 30, 4), None, "cut"),
        Row({"temperature": 0.0}, trace=(31,), key="greedy"),
        Row({"temperature": 2.0, "seed": 22}, trace=(32,), mode=PROCESSED, key="hot"),
    ]
    logits = random_logits(len(rows), dtype)
    step, drawn = ours(rows, logits), stock(rows, logits).ids
    exact = logits.double().numpy()
    for at, key, temperature, keep in (
        (1, "cut", 0.7, 20),
        (2, "greedy", 1.0, 97),
        (3, "hot", 2.0, 97),
    ):
        token = rows[at].forced
        raw = log_softmax(exact[at])
        shaped = exact[at] / temperature
        processed = log_softmax(np.where(shaped >= np.sort(shaped)[-keep], shaped, -np.inf))
        seed, last = rows[at].params.get("seed"), len(PROMPT) + len(rows[at].outputs) - 1
        noise = np.zeros(VOCAB) if seed is None else gumbel(seed, last, np.arange(VOCAB))
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


def test_several_logits_a_request_are_stocks_alone() -> None:
    """Speculative decoding, where requests of ours are refused before they get here."""
    engine = Engine(AssaySamplerV2)
    engine.add("r", Row({"seed": 1}, trace=(44,), key="k"))
    batch = type("Batch", (), {"idx_mapping_np": np.array([engine.states.req_id_to_index["r"]])})()
    assert engine.sampler._plan(torch.zeros(3, VOCAB), batch) is None


@pytest.mark.parametrize("deployment", [RAW, PROCESSED])
def test_no_sync_is_added_to_what_a_stock_step_does(deployment: str) -> None:
    """Stock in the mode that runs the same kernels; the interpreter's own copies cancel out."""
    rows = mixed()
    logits = random_logits(len(rows))
    engines = [Engine(AssaySamplerV2, deployment), Engine(Sampler, PROCESSED)]
    lengths = {f"r{at}": len(PROMPT) + len(row.outputs) for at, row in enumerate(rows)}
    seen = []
    for engine in engines:
        for at, row in enumerate(rows):
            engine.add(f"r{at}", row)
        seen.append(count(lambda engine=engine: engine.step(lengths, logits)))
    assert seen[0] - seen[1] == {}
    assert len(engines[0].sampler.assay_evidence) > 0
