"""The V2 tape against the engine's own kernels. Run by ``test_sampler_v2.py``, as ``v2_cases.py``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from assay_cpu_triton.twins import register
from tests.plugin.v1_batch import PROCESSED, VOCAB, Row, mixed, random_logits
from tests.plugin.v2_batch import PROMPT, ours
from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample import gumbel as stock_gumbel

from assay.plugin import tape
from assay.scoring.tape import DRAFT_SALT, gumbel, tape_hash

register()


def hashed(seed: int, position: int, ids: list[int]) -> list[int]:
    """The engine's own hash, interpreted."""

    @triton.jit
    def kernel(out_ptr, ids_ptr, seed, position, size: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, size)
        value = stock_gumbel.murmur3_hash32(
            tl.full((), seed, tl.int64), tl.full((), position, tl.int64), tl.load(ids_ptr + at)
        )
        tl.store(out_ptr + at, value.to(tl.int64))

    out = torch.zeros(len(ids), dtype=torch.int64)
    kernel[(1,)](out, torch.tensor(ids), seed, position, len(ids))
    return out.tolist()


SEEDS = (0, 7, 123_456_789_012, -5, 2**63 - 1, -(2**63))
IDS = [0, 1, 2, 96, 511, 49_151, 151_935, 2**31 - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hash_of_numpy_and_of_torch_is_the_engines_kernels_bit_for_bit(seed: int) -> None:
    """Draft noise is the same hash at a salted position; the kernel adds the salt itself."""
    for position in (0, 17, 32_767):
        for salt in (0, DRAFT_SALT):
            expected = hashed(seed, position + salt, IDS)
            assert tape_hash(seed, position, IDS, salt=salt).tolist() == expected
            ours = tape.tape_hash(
                torch.tensor([seed]), torch.tensor([position]), torch.tensor([IDS]), salt=salt
            )
            assert ours[0].tolist() == expected
    assert int(stock_gumbel._DRAFT_NOISE_SALT) == DRAFT_SALT


def winners(logits: torch.Tensor, seed: int, **how: bool) -> list[int]:
    """What the engine's sampling kernel draws at positions 0, 1, ... [rows]."""
    rows = len(logits)
    return stock_gumbel.gumbel_sample(
        logits,
        torch.zeros(rows, dtype=torch.int64),
        torch.ones(1),
        torch.tensor([seed]),
        torch.arange(rows),
        apply_temperature=False,
        is_drafting=how.get("drafting", False),
        use_fp64=how.get("fp64", False),
    ).tolist()


@pytest.mark.parametrize("fp64", [False, True], ids=["fp32", "fp64"])
@pytest.mark.parametrize("drafting", [False, True], ids=["target", "draft"])
def test_the_noise_names_what_the_engines_kernel_draws(drafting: bool, fp64: bool) -> None:
    logits, salt = random_logits(20), DRAFT_SALT if drafting else 0
    exact, rows = logits.double().numpy(), len(logits)
    for seed in SEEDS[:4]:
        noise = gumbel(seed, np.arange(rows)[:, None], np.arange(VOCAB)[None], fp64=fp64, salt=salt)
        drawn = winners(logits, seed, drafting=drafting, fp64=fp64)
        assert drawn == (exact + noise).argmax(axis=1).tolist()
        ids = torch.arange(VOCAB).expand(rows, -1)
        twin = tape.gumbel(torch.full((rows,), seed), torch.arange(rows), ids, fp64=fp64, salt=salt)
        np.testing.assert_allclose(twin.numpy(), noise, rtol=0, atol=1e-12)


def test_the_engines_own_noise_is_within_a_millionth_where_it_can_win() -> None:
    """Read from the kernel: with all logits equal its maximum is the largest noise of a row."""
    seen = []

    @triton.jit
    def kernel(out_ptr, seed, position, size: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, size)
        value, _ = stock_gumbel.gumbel_noised_argmax(
            tl.zeros((size,), tl.float32),
            at,
            at < size,
            tl.full((), seed, tl.int64),
            tl.full((), position, tl.int64),
            1.0,
            IS_DRAFTING=False,
            USE_FP64=False,
        )
        tl.store(out_ptr, value)

    for position in range(30):
        out = torch.zeros(1)
        kernel[(1,)](out, 11, position, 64)
        seen.append(float(out[0]) - gumbel(11, position, np.arange(64)).max())
    assert max(abs(difference) for difference in seen) < 4e-6


def test_mixed_rows_have_their_own_noise_and_the_drawn_id_wins() -> None:
    """Seeded, greedy and unseeded replays in one batch, at several positions of a request."""
    rows = [
        *mixed(),
        Row({"temperature": 0.6}, trace=(7,), key="unseeded"),
        Row({"temperature": 0.6, "seed": -9}, (7, 8), (7, 8, 9), PROCESSED, "later"),
    ]
    evidence, checked = ours(rows, random_logits(len(rows))).sampler.assay_evidence, 0
    for row in rows:
        taken = row.key and evidence.take(row.key)
        if not taken:
            continue
        checked += 1
        drawn, forced = taken["noise_drawn"][0], taken["noise_forced"][0]
        seed = row.params.get("seed")
        if row.params.get("temperature") == 0.0:
            assert (drawn, forced) == (0.0, 0.0)
        elif seed is None:
            assert np.isnan([drawn, forced]).all()
            continue
        else:
            noise = gumbel(seed, len(PROMPT) + len(row.outputs) - 1, np.arange(VOCAB))
            assert drawn == pytest.approx(noise[taken["drawn"][0]], abs=2e-6)
            assert forced == pytest.approx(noise[row.forced or 0], abs=2e-6)
        assert taken["drawn_processed"][0] + drawn >= taken["logprob_processed"][0] + forced - 2e-5
    assert checked == 7
