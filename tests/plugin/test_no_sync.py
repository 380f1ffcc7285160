"""Spec section 2, host syncs: none added. V1 here; V2's whole call is in ``v2_cases.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugin.syncs import count, on_meta
from tests.plugin.v1_batch import PROCESSED, RAW, VOCAB, Row, metadata, mixed, random_logits
from vllm.v1.sample.sampler import Sampler

from assay.plugin import select, tape
from assay.plugin.evidence import EvidenceStore
from assay.plugin.rows import StepPlan
from assay.plugin.sampler_v1 import AssaySamplerV1
from assay.plugin.tape_v1 import SequentialTape, splitmix_noise

BATCH = 6
MODES = {
    "one mode": (RAW,) * BATCH,
    "other mode": (PROCESSED,) * BATCH,
    "mixed": (RAW, PROCESSED) * 3,
    "mixed with logits": (RAW, "raw_logits", PROCESSED, "processed_logits", RAW, RAW),
    "logits": ("processed_logits",) * BATCH,
}


def plan(modes: tuple[str, ...] = MODES["mixed"]) -> StepPlan:
    forced = np.array([-1, 5, -1, 7, -1, 9], dtype=np.int64)
    evidence = tuple((row, f"k{row}", 0, 4) for row in (1, 3, 5))
    return StepPlan(forced, modes, evidence, greedy=(1,), seeded=(3, 5))


def hot_path(modes: tuple[str, ...], evidence: EvidenceStore) -> Callable[[], Any]:
    """What both samplers add to a step: upload, force, measure, keep, choose each row's numbers."""
    raw, processed = random_logits(BATCH), random_logits(BATCH, seed=6)
    drawn = seeds = torch.arange(BATCH)

    def run() -> Any:
        step = select.upload(plan(modes), torch.device("cpu"))
        sampled = select.force(drawn, step)
        ids = select.pairs(drawn, sampled)
        noise = tape.gumbel(seeds[step.seeded], seeds[step.seeded], ids[step.seeded])
        ints, floats = select.measure(step, ids, raw, processed, select.noise_columns(step, noise))
        evidence.add(ints, floats, step.plan.evidence)
        return select.scores(raw, processed, step)

    return run


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_the_hot_path_of_both_samplers_holds_no_sync(modes: tuple[str, ...]) -> None:
    store = EvidenceStore()
    assert count(hot_path(modes, store)) == {}
    assert len(store) == 3


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_the_hot_path_runs_without_any_data_to_read(modes: tuple[str, ...]) -> None:
    """On tensors without data every host read raises, those that dispatch nothing included."""
    step = select.upload(plan(modes), torch.device("cpu"))
    names = ("forced", "raw", "logits", "rows", "seeded", "source")
    empty = dataclasses.replace(step, **{name: on_meta(getattr(step, name)) for name in names})
    raw, drawn = on_meta(random_logits(BATCH)), on_meta(torch.arange(BATCH))
    ids = select.pairs(drawn, select.force(drawn, empty))
    of = ids[empty.seeded]
    for noise in (
        tape.gumbel(drawn[empty.seeded], drawn[empty.seeded], of),
        tape.gumbel(drawn[empty.seeded], drawn[empty.seeded], of, fp64=True),
        splitmix_noise(drawn[empty.seeded], of),
        None,
    ):
        columns = select.noise_columns(empty, noise)
        ints, floats = select.measure(empty, ids, raw, raw, columns)
        assert (ints.shape, ints.dtype) == ((3, 3), torch.int64)
        assert (floats.shape, floats.dtype) == ((6, 3), torch.float32)
    assert select.scores(raw, raw, empty).shape == (BATCH, VOCAB)


@pytest.mark.parametrize("deployment", [RAW, PROCESSED, "raw_logits"])
@pytest.mark.parametrize("top", [{}, {"logprobs": 0}, {"logprobs": 4}], ids=["none", "0", "4"])
@pytest.mark.parametrize("kind", ["mixed", "greedy"])
def test_a_whole_v1_step_adds_none_to_what_stock_does(
    deployment: str, top: dict[str, Any], kind: str
) -> None:
    rows = mixed(top)
    if kind == "greedy":
        rows = [
            Row({"temperature": 0.0, **top}),
            Row({"temperature": 0.0, **top}, trace=(4,), mode=PROCESSED, key="k"),
        ]
    logits = random_logits(len(rows))
    data = {plugin: metadata(rows, plugin=plugin) for plugin in (True, False)}
    samplers = {True: AssaySamplerV1(deployment), False: Sampler(deployment)}

    def step(plugin: bool) -> Callable[[], Any]:
        given = logits.clone()
        return lambda: samplers[plugin](logits=given, sampling_metadata=data[plugin])

    assert count(step(True)) - count(step(False)) == {}
    assert len(samplers[True].assay_evidence) > 0


@pytest.mark.parametrize("tape", [SequentialTape(1, True), SequentialTape(1, False)])
def test_the_noise_that_v1_draws_again_on_a_device_holds_no_sync(tape: SequentialTape) -> None:
    """The road of accelerators: one launch a seeded row, as stock code's own, and no read."""
    generators = {row: torch.Generator().manual_seed(row) for row in (1, 3, 4)}
    ids = torch.tensor([[1, 2], [3, 4]])

    def run() -> None:
        noise = tape.noise(tape.copies(generators, (1, 4)), ids, VOCAB)
        assert noise is not None
        assert noise.shape == (2, 2)

    assert count(run) == {}


def test_an_ordinary_v1_step_adds_no_operation_at_all() -> None:
    """Users who send none of our fields pay nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    rows = [row for row in mixed() if row.extra is None]
    rows.append(Row({"seed": 3, "logprobs": 2}, mode=RAW))
    lists = []
    for plugin, kind in ((True, AssaySamplerV1), (False, Sampler)):
        data, logits, sampler = metadata(rows, plugin=plugin), random_logits(len(rows)), kind(RAW)
        with Names() as mode:
            sampler(logits=logits, sampling_metadata=data)
        lists.append(mode.names)
    assert lists[0] == lists[1]
    assert len(lists[0]) > 10


# -- the test can fail


def force_by_mask(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    out = sampled.clone()
    mask = step.forced >= 0
    out[mask] = step.forced[mask]
    return out


def force_if_any(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    if (step.forced >= 0).any():
        return torch.where(step.forced >= 0, step.forced, sampled)
    return sampled


def force_row_by_row(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    out = sampled.clone()
    for row, token in enumerate(step.plan.forced):
        if token >= 0:
            out[row] = int(token)
    return out


def force_by_item(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    return torch.tensor(
        [
            s if f < 0 else f
            for s, f in ((s.item(), f.item()) for s, f in zip(sampled, step.forced, strict=True))
        ]
    )


def force_by_nonzero(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    rows = (step.forced >= 0).nonzero().squeeze(-1)
    return sampled.scatter(0, rows, step.forced[rows])


def force_by_select(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    mask = step.forced >= 0
    return sampled.masked_scatter(mask, step.forced.masked_select(mask))


def force_if_different(sampled: torch.Tensor, step: select.StepTensors) -> torch.Tensor:
    if torch.equal(sampled, step.forced):
        return sampled
    return torch.where(step.forced >= 0, step.forced, sampled)


BAD = (
    force_by_mask,
    force_if_any,
    force_row_by_row,
    force_by_item,
    force_by_nonzero,
    force_by_select,
    force_if_different,
)


@pytest.mark.parametrize("bad", BAD)
def test_a_sampler_that_syncs_is_caught(
    bad: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wrong way gives the right ids, and is found by the two tests above."""
    step = select.upload(plan(), torch.device("cpu"))
    drawn = torch.arange(BATCH)
    assert bad(drawn, step).tolist() == select.force(drawn, step).tolist()
    monkeypatch.setattr(select, "force", bad)
    assert sum(count(hot_path(MODES["mixed"], EvidenceStore())).values()) > 0
    rows = mixed()
    ours, stock = metadata(rows, plugin=True), metadata(rows, plugin=False)
    logits = random_logits(len(rows))
    added = count(lambda: AssaySamplerV1(RAW)(logits=logits.clone(), sampling_metadata=ours))
    added -= count(lambda: Sampler(RAW)(logits=logits.clone(), sampling_metadata=stock))
    assert sum(added.values()) > 0
