"""The noise of runner V2; tests/plugin compares it with the engine's own kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.claims.claim import Tape
from assay.scoring.tape import (
    DRAFT_SALT,
    GENERATIONS,
    draw_position,
    gumbel,
    tape_hash,
    tape_name,
    uniform,
)

PINNED = [
    (0, 0, 0, 0x8134CDF8),
    (7, 4, 11, 0x8F7B3249),
    (-5, 100, 49151, 0xC557096B),
    (123456789012, 31, 2, 0xAA8AC882),
]
WORD = 0xFFFFFFFF
seeds = st.integers(-(2**63), 2**63 - 1)


def plain_hash(seed: int, position: int, token: int, start: int = 0) -> int:
    """The same hash in Python's own integers."""

    def rotated(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & WORD

    h = start
    for word in (seed & WORD, (seed >> 32) & WORD, position & WORD, token & WORD):
        mixed = rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
        h = (rotated(h ^ mixed, 13) * 5 + 0xE6546B64) & WORD
    h ^= 16
    h = (h ^ (h >> 16)) * 0x85EBCA6B & WORD
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & WORD
    return h ^ (h >> 16)


@pytest.mark.parametrize(("seed", "position", "token", "expected"), PINNED)
def test_pinned_hashes(seed: int, position: int, token: int, expected: int) -> None:
    assert int(tape_hash(seed, position, token)) == expected == plain_hash(seed, position, token)


@given(seeds, st.integers(0, 2**31), st.lists(st.integers(0, 2**18), min_size=1, max_size=5))
def test_hash_of_any_seed(seed: int, position: int, tokens: list[int]) -> None:
    """Negative and 64-bit seeds too."""
    got = tape_hash(seed, position, tokens).tolist()
    assert got == [plain_hash(seed, position, token) for token in tokens]


def test_positions_and_ids_broadcast() -> None:
    grid = tape_hash(7, np.arange(3)[:, None], np.arange(5)[None, :])
    assert grid.shape == (3, 5)
    assert int(grid[2, 4]) == plain_hash(7, 2, 4)


def test_a_draft_has_noise_of_its_own() -> None:
    ids = np.arange(100)
    target, draft = tape_hash(7, 5, ids), tape_hash(7, 5, ids, salt=DRAFT_SALT)
    assert (target != draft).all()
    assert (draft == tape_hash(7, 5 + DRAFT_SALT, ids)).all()


@pytest.mark.parametrize("fp64", [False, True])
def test_noise_is_gumbel_and_finite(fp64: bool) -> None:
    """Mean is Euler's constant, variance pi^2 / 6; the share of the largest of two ids with
    logits a and b is the softmax's."""
    noise = gumbel(11, 40, np.arange(200_000), fp64=fp64)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772157, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
    drawn = noise[:100_000] + np.log(0.7) > noise[100_000:] + np.log(0.3)
    assert drawn.mean() == pytest.approx(0.7, abs=0.006)


def test_uniform_ends_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest hash rounds to 1.0 in single precision."""
    for value, single in ((0, 0.5 * 2.0**-32), (WORD, 1.0)):
        fixed = np.array([value], dtype=np.uint32)
        monkeypatch.setattr("assay.scoring.tape.tape_hash", lambda *_a, _f=fixed, **_k: _f)
        assert uniform(0, 0, [0])[0] == single
        assert 0 < uniform(0, 0, [0], fp64=True)[0] < 1
        assert np.isfinite(gumbel(0, 0, [0])).all()
        assert np.isfinite(gumbel(0, 0, [0], fp64=True)).all()


def test_single_and_double_noise_are_two_tapes() -> None:
    """Same hash below, but the winning tail sits at the other end: other draws."""
    single, double = gumbel(3, 9, np.arange(50)), gumbel(3, 9, np.arange(50), fp64=True)
    assert abs(float(np.corrcoef(single, double)[0, 1])) < 0.5


def test_draw_positions_and_names() -> None:
    assert draw_position(10, 0) == 9
    assert "V2" in tape_name(Tape(runner="v2", fp64=True))
    assert "cuda" in tape_name(Tape(runner="v1", device="cuda"))
    assert ("v2", Tape(runner="v2").generation) in GENERATIONS
