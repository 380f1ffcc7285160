"""Runner V1's noise drawn a second time: whose draw it was, and what it leaves untouched."""

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
    VOCAB,
    Row,
    metadata,
    mixed,
    ours,
    random_logits,
    stock,
)
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from assay.plugin.sampler_v1 import AssaySamplerV1
from assay.plugin.tape_v1 import EXPONENTIAL, SPLITMIX, SequentialTape, splitmix_noise
from assay.scoring.tape_v1 import row_seeds, splitmix_gumbel, v1_cpu_noise

SLACK = 2e-5


def native(fp64: bool = False) -> TopKTopPSampler:
    return TopKTopPSampler("processed_logits", fp64)


class Exponential(torch.nn.Module):
    """The road that accelerators take (and vLLM 0.31 on a CPU): stock code's own."""

    def __init__(self, fp64: bool) -> None:
        super().__init__()
        self.stock = native(fp64)

    def forward(self, *args: Any) -> Any:
        return self.stock.forward_native(*args)


def sampler_on(road: str) -> AssaySamplerV1:
    """A sampler whose native path is this platform's own, or the exponential one of both widths."""
    made = AssaySamplerV1(RAW, use_fp64_gumbel=road == "fp64")
    if road != "platform":
        fp64 = road == "fp64"
        made.assay_native = Exponential(fp64)
        made.assay_tape = SequentialTape.of(made.assay_native, fp64=fp64)
        assert made.assay_tape == SequentialTape(EXPONENTIAL, fp64)
    return made


ROADS = pytest.mark.parametrize("road", ["platform", "exponential", "fp64"])


def test_the_noise_function_is_found_by_trying() -> None:
    for fp64 in (False, True):
        assert SequentialTape.of(native(fp64).forward_native, fp64=fp64).generation == EXPONENTIAL
        assert SequentialTape.of(native(fp64), fp64=fp64).generation is not None


def test_a_sampler_that_draws_otherwise_is_not_guessed() -> None:
    """A fused kernel with randomness of its own: no noise beats a wrong noise."""

    def fused(logits: torch.Tensor, *args: Any) -> tuple[torch.Tensor, None]:
        return torch.arange(len(logits)), None

    tape = SequentialTape.of(fused, fp64=False)
    assert tape.generation is None
    generators = {0: torch.Generator().manual_seed(1)}
    assert tape.copies(generators, (0,)) is None
    assert tape.noise(None, torch.zeros((1, 2), dtype=torch.int64), VOCAB) is None
    made = AssaySamplerV1(RAW)
    made.assay_tape = tape
    assert made.assay_generation is None
    rows = [Row({"seed": 1}, trace=(4,), key="k"), Row({"temperature": 0.0}, trace=(5,), key="g")]
    made(logits=random_logits(2), sampling_metadata=metadata(rows, plugin=True))
    assert np.isnan(made.assay_evidence.take("k")["noise_drawn"]).all()
    assert made.assay_evidence.take("g")["noise_drawn"] == [0.0]


def test_finding_out_moves_no_generator_that_requests_draw_from() -> None:
    """Unseeded requests of a seeded engine must draw what stock vLLM draws."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    AssaySamplerV1(RAW)
    assert torch.get_rng_state().equal(before)


@ROADS
def test_the_two_ids_have_the_noise_of_their_row_and_the_drawn_one_wins(road: str) -> None:
    """Seeded, greedy and unseeded replays beside plain rows; the four numbers say who was drawn."""
    rows = [
        *mixed(),
        Row({"temperature": 0.6}, trace=(7,), key="unseeded"),
        Row({"temperature": 0.6, "seed": 40}, trace=(7,), mode=PROCESSED, key="last"),
    ]
    made, logits = sampler_on(road), random_logits(len(rows))
    made(logits=logits.clone(), sampling_metadata=metadata(rows, plugin=True))
    checked = 0
    for row in rows:
        taken = row.key and made.assay_evidence.take(row.key)
        if not taken:
            continue
        checked += 1
        ((drawn, forced),) = zip(taken["noise_drawn"], taken["noise_forced"], strict=True)
        seed = row.params.get("seed")
        if row.params.get("temperature") == 0.0:
            assert (drawn, forced) == (0.0, 0.0)
        elif seed is None:
            assert np.isnan([drawn, forced]).all()
            continue
        else:
            noise = v1_noise(made, seed, VOCAB)
            assert drawn == pytest.approx(noise[taken["drawn"][0]], abs=SLACK)
            assert forced == pytest.approx(noise[row.forced or 0], abs=SLACK)
        assert taken["drawn_processed"][0] + drawn >= taken["logprob_processed"][0] + forced - SLACK
    assert checked == 7


@ROADS
def test_the_drawn_id_is_the_best_of_the_whole_vocabulary_under_that_noise(road: str) -> None:
    """Not only better than the forced one: the noise is the one the sampler used."""
    made = sampler_on(road)
    for seed in range(20):
        params = {"seed": seed, **(SHAPED if seed % 2 else {})}
        row = Row(params, trace=(3,), mode=PROCESSED, key=f"k{seed}")
        data = metadata([row], plugin=True)
        data.max_num_logprobs = -1  # every id's number, in order
        output = made(logits=random_logits(1, seed=seed), sampling_metadata=data)
        processed = output.logprobs_tensors.logprobs[0].double().numpy()
        best = int((processed + v1_noise(made, seed, VOCAB)).argmax())
        assert made.assay_evidence.take(f"k{seed}")["drawn"] == [best]


@ROADS
def test_many_steps_keep_the_generator_where_stock_has_it(road: str) -> None:
    """One draw a step, neither skipped nor taken twice, in a batch whose rows come and go."""
    made = sampler_on(road)
    generators = {5: torch.Generator().manual_seed(5), 6: torch.Generator().manual_seed(6)}
    for step in range(6):
        row = Row({"seed": 5}, outputs=(9,) * step, trace=(9,) * 6, key="k")
        rows = [row] if step in (1, 4) else [Row({"seed": 6}), row]
        data = metadata(rows, plugin=True)
        data.generators = {at: generators[r.params["seed"]] for at, r in enumerate(rows)}
        made(logits=random_logits(len(rows), seed=step), sampling_metadata=data)
    taken = made.assay_evidence.take("k")
    for step, (token, noise) in enumerate(zip(taken["drawn"], taken["noise_drawn"], strict=True)):
        assert noise == pytest.approx(v1_noise(made, 5, VOCAB, draws=step)[token], abs=SLACK)


@ROADS
def test_rows_of_others_draw_what_stock_draws_on_every_road(road: str) -> None:
    """Copies are ours; the generators of plain seeded rows are consumed once, by stock code."""
    rows, logits = mixed(), random_logits(len(mixed()))
    made, data = sampler_on(road), metadata(rows, plugin=True)
    torch.manual_seed(99)
    mine = made(logits=logits.clone(), sampling_metadata=data).sampled_token_ids[:, 0].tolist()
    states = {row: generator.get_state() for row, generator in data.generators.items()}
    if road == "platform":
        assert mine == ours(rows, logits).ids
        plain = stock(rows, logits).ids
        assert [a for a, row in zip(mine, rows, strict=True) if row.forced is None] == [
            a for a, row in zip(plain, rows, strict=True) if row.forced is None
        ]
    again = metadata(rows, plugin=False)
    torch.manual_seed(99)
    made.assay_native(random_logits(len(rows)), again.generators, None, None)
    for row, generator in again.generators.items():
        assert generator.get_state().equal(states[row])


# -- the CPU's tape in numpy


@pytest.mark.parametrize("seed", [0, 7, 123_456_789_012, -5, 2**63 - 1, -(2**63)])
def test_numpy_draws_the_row_seeds_that_torchs_generator_gives(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    torchs = [int(torch.randint(0, 2**31, (1,), generator=generator)) for _ in range(9)]
    assert row_seeds(seed, 9).tolist() == torchs


def test_numpy_and_torch_agree_on_the_splitmix_noise() -> None:
    seeds = torch.tensor([0, 1, 2**31 - 1, 976_413_892])
    ids = torch.tensor([[0, 1, 96, 151_935]] * 4)
    exact = splitmix_gumbel(seeds.numpy()[:, None], ids.numpy())
    np.testing.assert_allclose(splitmix_noise(seeds, ids).numpy(), exact, rtol=0, atol=1e-12)


def test_the_engines_own_cpu_kernel_draws_by_that_noise() -> None:
    """The kernel itself, where this vLLM has it: 400 rows, every argmax."""
    if native().forward.__name__ != "forward_cpu" or not hasattr(
        torch.ops._C, "fused_gumbel_argmax"
    ):
        pytest.skip("this vLLM draws exponential noise on this platform")
    logits = random_logits(400)
    seeds = torch.from_numpy(row_seeds(3, 400))
    drawn = torch.ops._C.fused_gumbel_argmax(logits, seeds).tolist()
    noise = splitmix_gumbel(seeds.numpy()[:, None], np.arange(VOCAB))
    assert drawn == (logits.double().numpy() + noise).argmax(axis=1).tolist()
    assert SequentialTape.of(native(), fp64=False).generation == SPLITMIX


def test_pinned_numbers_of_the_cpu_tape() -> None:
    """A change of these numbers makes old claims undrawable: that is a new generation."""
    assert row_seeds(7, 3).tolist() == [976_413_892, 1_369_975_286, 2_053_951_699]
    assert v1_cpu_noise(7, 1, [0, 1, 49_151]) == pytest.approx(
        [0.10867164, -0.98651527, 1.0403399], abs=1e-7
    )
