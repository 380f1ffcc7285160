"""The batched device version against the numpy reference; F26, F27, F28, F33."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay import poc
from assay.errors import SettingsError
from assay.poc import torch_batch

NONCES = [0, 1, 7, 2**32 - 1]
BOTH_SEEDS = pytest.mark.parametrize("stronger", [False, True])


def _numpy(nonces, seq_len, hidden, stronger):
    return poc.input_embeddings("b", "p", nonces, seq_len, hidden, stronger)


def _torch(nonces, seq_len, hidden, stronger, **kwargs):
    return torch_batch.input_embeddings("b", "p", nonces, seq_len, hidden, stronger, **kwargs)


@BOTH_SEEDS
@pytest.mark.parametrize(("seq_len", "hidden"), [(1, 1), (3, 5), (16, 64), (7, 577), (64, 576)])
def test_embeddings_equal_numpy(stronger, seq_len, hidden):
    made = _torch(NONCES, seq_len, hidden, stronger)
    assert made.shape == (4, seq_len, hidden) and made.dtype == torch.float32
    expected = _numpy(NONCES, seq_len, hidden, stronger)
    np.testing.assert_allclose(made, expected, rtol=0, atol=torch_batch.FLOAT_TOLERANCE)


@BOTH_SEEDS
def test_f26_out_is_written_and_returned_on_both_seed_strengths(stronger):
    buffer = torch.full((6, 5, 16), 9.0)
    made = _torch(NONCES, 5, 16, stronger, out=buffer[1:5])
    assert made.data_ptr() == buffer[1:5].data_ptr()
    assert torch.equal(buffer[1:5], _torch(NONCES, 5, 16, stronger))
    assert (buffer[0] == 9).all() and (buffer[5] == 9).all()


def test_f26_the_stronger_seed_differs_and_its_first_word_is_the_plain_seed():
    plain, stronger = torch.empty(1, 4, 16), torch.empty(1, 4, 16)
    _torch([3], 4, 16, False, out=plain)
    _torch([3], 4, 16, True, out=stronger)
    assert not torch.equal(plain, stronger)
    own = poc.normals(poc.seed("b_p_nonce3"), 8)
    np.testing.assert_allclose(stronger.flatten()[:8], own, atol=torch_batch.FLOAT_TOLERANCE)


@BOTH_SEEDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_embeddings_are_made_in_float32_and_cast(stronger, dtype):
    made = _torch(NONCES, 3, 24, stronger, dtype=dtype)
    assert made.dtype == dtype
    assert torch.equal(made, _torch(NONCES, 3, 24, stronger).to(dtype))
    out = torch.empty(4, 3, 24, dtype=dtype)
    assert torch.equal(_torch(NONCES, 3, 24, stronger, out=out), made)


@BOTH_SEEDS
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 64, 10**6])
def test_the_chunk_changes_no_value(stronger, chunk, monkeypatch):
    expected = _torch(NONCES, 3, 17, stronger)
    monkeypatch.setattr(torch_batch, "CHUNK_ELEMENTS", chunk)
    assert torch.equal(_torch(NONCES, 3, 17, stronger), expected)


def test_a_row_does_not_depend_on_its_neighbours():
    batch = _torch(list(range(32)), 8, 64, False)
    for nonce in (0, 13, 31):
        assert torch.equal(_torch([nonce], 8, 64, False)[0], batch[nonce])
    shuffled = _torch([31, 0, 13], 8, 64, False)
    assert torch.equal(shuffled, batch[[31, 0, 13]])


class _Operations(TorchDispatchMode):
    """Counts operations, and the largest storage they make beside ``out``."""

    def __init__(self, out: torch.Tensor) -> None:
        super().__init__()
        self.count = 0
        self.largest = 0
        self._out = out.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != self._out:
            self.largest = max(self.largest, made.untyped_storage().nbytes())
        return made


@BOTH_SEEDS
def test_f34_no_loop_over_nonces_and_bounded_temporaries(stronger, monkeypatch):
    """As many elements in all, so as many chunks: only the number of nonces differs."""
    chunk = 4096
    monkeypatch.setattr(torch_batch, "CHUNK_ELEMENTS", chunk)
    counts = []
    for batch in (4, 64):
        out = torch.empty(batch, 64, 4096 // batch)
        with _Operations(out) as operations:
            _torch(list(range(batch)), *out.shape[1:], stronger, out=out)
        counts.append(operations.count)
        assert 0 < operations.largest <= 4 * chunk < out.nbytes
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_f33_storage_dtypes_of_quantised_models_become_bfloat16(dtype):
    assert torch_batch.embedding_dtype(dtype) == torch.bfloat16
    with pytest.raises(SettingsError, match="F33"):
        _torch([0], 2, 2, False, dtype=dtype)
    with pytest.raises(SettingsError, match="F33"):
        _torch([0], 2, 2, False, out=torch.zeros(1, 2, 2).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_f33_real_dtypes_stay(dtype):
    assert torch_batch.embedding_dtype(dtype) == dtype


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"out": torch.empty(1, 2, 3)}, "out: shape"),
        ({"out": torch.empty(2, 2, 1).transpose(0, 2)}, "out: shape"),
        ({"out": torch.empty(1, 2, 2), "dtype": torch.float16}, "give one of them"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(kwargs, message):
    with pytest.raises(SettingsError, match=message):
        _torch([0], 2, 2, False, **kwargs)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (2**16, 2**15)])
def test_sizes_that_cannot_be_hashed_are_refused(sizes):
    with pytest.raises(SettingsError, match="seq_len, hidden_size"):
        _torch([0], *sizes, False)
    with pytest.raises(SettingsError, match="seq_len, hidden_size"):
        poc.input_embeddings("b", "p", [0], *sizes)


def test_no_nonces_give_an_empty_batch():
    assert _torch([], 3, 4, False).shape == (0, 3, 4)


def test_layer_vectors_equal_numpy():
    made = torch_batch.layer_vectors("b", 3, 577)
    expected = np.stack([poc.layer_vector("b", layer, 577) for layer in range(3)])
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reflection_is_in_place_in_the_dtype_of_x(dtype):
    v = torch_batch.layer_vectors("b", 1, 64)[0]
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = poc.reflect(x.double().numpy(), v.to(dtype).double().numpy())
    same = torch_batch.reflect_(x, v)
    assert same is x and x.dtype == dtype
    np.testing.assert_allclose(x.double(), expected, atol=6 * torch.finfo(dtype).eps)


def test_reflecting_hidden_and_residual_is_reflecting_their_sum():
    v = torch_batch.layer_vectors("b", 1, 64)[0]
    hidden, residual = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    together = torch_batch.reflect_(hidden + residual, v)
    apart = torch_batch.reflect_(hidden, v) + torch_batch.reflect_(residual, v)
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projection_equals_numpy(dtype):
    states = torch.randn(4, 577, generator=torch.Generator().manual_seed(0)).to(dtype)
    vectors, finite = torch_batch.project(states, "b", "p", NONCES)
    assert vectors.dtype == torch.float16 and vectors.shape == (4, 12) and finite.all()
    for vector, state, nonce in zip(vectors, states, NONCES, strict=True):
        expected = poc.vector_from_state(state.float().numpy(), "b", "p", nonce)
        np.testing.assert_allclose(vector, expected, rtol=0, atol=5e-4)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_projection_with_another_k(k):
    states = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    vectors, _ = torch_batch.project(states, "b", "p", [1, 2], k)
    for vector, state, nonce in zip(vectors, states, [1, 2], strict=True):
        expected = poc.vector_from_state(state.numpy(), "b", "p", nonce, k)
        np.testing.assert_allclose(vector, expected, rtol=0, atol=5e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_f27_f28_rows_that_are_not_finite_are_masked_and_the_others_kept(bad):
    states = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    alone, _ = torch_batch.project(states[2:], "b", "p", [2])
    states[1, 40] = bad
    vectors, finite = torch_batch.project(states, "b", "p", [0, 1, 2])
    assert finite.tolist() == [True, False, True]
    assert torch.equal(vectors[2], alone[0])


def test_f28_an_infinity_outside_the_picked_dimensions_is_caught_too():
    # The norm is infinite, every picked number becomes 0, and the float16 vector is finite.
    picked = poc.pick_indices("b", "p", 0, 64, 12).tolist()
    state = torch.ones(1, 64)
    state[0, next(d for d in range(64) if d not in picked)] = torch.inf
    vectors, finite = torch_batch.project(state, "b", "p", [0])
    assert torch.isfinite(vectors).all() and not finite.any()


def test_projection_needs_one_row_a_nonce():
    with pytest.raises(SettingsError, match="for 3 nonces"):
        torch_batch.project(torch.zeros(2, 64), "b", "p", [0, 1, 2])
