"""Proof of compute for a batch of nonces on a torch device.

The same numbers as the numpy reference: bit for bit where they are integers (seeds, hashes,
picks, token ids), and for normals within ``FLOAT_TOLERANCE``, which is what different ``log``,
``sin`` and ``cos`` of float32 cost. No loop over nonces runs on the device; the host hashes one
short string a nonce (and k a nonce for a projection).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from assay.errors import SettingsError
from assay.poc.constants import K_DIM, ROTATION_NORM_EPSILON, STATE_NORM_EPSILON
from assay.poc.embeddings import check_embedding_shape, check_vocab
from assay.poc.nonces import check_nonces
from assay.poc.normals import strong_lengths
from assay.poc.pick import check_pick
from assay.poc.seeds import (
    input_text,
    layer_text,
    pick_text,
    rotation_text,
    seed,
    strong_seed_words,
    token_ids_text,
)
from assay.poc.torch_hash import (
    CHUNK_ELEMENTS,
    Scratch,
    fill_normals_,
    hash_keys,
    seed_tensor,
    unsigned,
)

Device = torch.device | str

FLOAT_TOLERANCE = 2e-6
"""Largest difference of one normal between numpy and torch on any device. Normals reach 6.8,
where one float32 step is 4.8e-7: four steps at the far end, far below any threshold."""


def embedding_dtype(model_dtype: torch.dtype) -> torch.dtype:
    """The dtype embeddings are cast to: the model's, or bfloat16 where that is a storage format.

    Quantised models expose int8, uint8 or float8 weights; embeddings in those would be garbage
    (F33).
    """
    wide = model_dtype.is_floating_point and model_dtype.itemsize >= 2
    return model_dtype if wide else torch.bfloat16


@torch.no_grad()
def input_embeddings(  # noqa: PLR0917 - as the numpy reference
    block_hash: str,
    public_key: str,
    nonces: Sequence[int],
    seq_len: int,
    hidden_size: int,
    stronger: bool = False,
    *,
    device: Device = "cpu",
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Embeddings ``[len(nonces), seq_len, hidden_size]`` of all nonces in one go.

    Made in float32 and cast to ``dtype`` (default: float32, or that of ``out``) while writing.
    ``out`` is written and returned, for both seed strengths (F26); its device and dtype then
    count. Beside the result at most ``28 * CHUNK_ELEMENTS`` bytes (28 MiB) are held, whatever
    the batch. Raises SettingsError on a wrong shape or an integer dtype.
    """
    check_embedding_shape(seq_len, hidden_size)
    check_nonces(nonces)
    shape = (len(nonces), seq_len, hidden_size)
    if out is None:
        out = torch.empty(shape, dtype=dtype or torch.float32, device=device)
    _check_out(out, shape, dtype)
    if not nonces:
        return out
    n = seq_len * hidden_size
    flat = out.view(len(nonces), n)
    texts = [input_text(block_hash, public_key, nonce) for nonce in nonces]
    pairs = len(nonces) * ((n + 1) // 2)
    scratch = Scratch(out.device, min(CHUNK_ELEMENTS, pairs))
    if not stronger:
        fill_normals_(flat, seed_tensor([seed(text) for text in texts], out.device), scratch)
        return out
    _fill_strong_(flat, [strong_seed_words(text) for text in texts], scratch)
    return out


def _fill_strong_(flat: torch.Tensor, words: list[tuple[int, ...]], scratch: Scratch) -> None:
    """``flat [batch, n]``: the words' normals one after another in every row."""
    batch, n = flat.shape
    lengths = strong_lengths(n, len(words[0]))
    if len(set(lengths)) == 1:
        # All words give as many: every word is a row of its own, and the keys are mixed once.
        seeds = seed_tensor([word for row in words for word in row], flat.device)
        fill_normals_(flat.view(batch * len(lengths), lengths[0]), seeds, scratch)
        return
    seeds = seed_tensor([word for row in words for word in row], flat.device)
    seeds = seeds.view(batch, len(lengths))
    start = 0
    for word, length in enumerate(lengths):
        if length:
            fill_normals_(flat[:, start : start + length], seeds[:, word], scratch)
        start += length


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    if tuple(out.shape) != shape or not out.is_contiguous():
        raise SettingsError(
            f"out: shape {tuple(out.shape)}, contiguous {out.is_contiguous()}; "
            f"give a contiguous tensor of shape {shape}"
        )
    if dtype is not None and out.dtype != dtype:
        raise SettingsError(f"dtype: {dtype} asked for, but out is {out.dtype}; give one of them")
    if embedding_dtype(out.dtype) != out.dtype:
        raise SettingsError(
            f"dtype: {out.dtype} cannot hold embeddings; use embedding_dtype(model_dtype), "
            "which is bfloat16 for a quantised model (F33)"
        )


@torch.no_grad()
def pseudo_token_ids(
    block_hash: str,
    public_key: str,
    nonces: Sequence[int],
    seq_len: int,
    vocab_size: int,
    *,
    device: Device = "cpu",
) -> torch.Tensor:
    """Token ids int32 ``[len(nonces), seq_len]`` for models that gather by id."""
    check_vocab(vocab_size)
    check_nonces(nonces)
    texts = [token_ids_text(block_hash, public_key, nonce) for nonce in nonces]
    seeds = seed_tensor([seed(text) for text in texts], device)
    return (unsigned(hash_keys(seeds, 0, seq_len)) % vocab_size).to(torch.int32)


@torch.no_grad()
def layer_vectors(
    block_hash: str,
    n_layers: int,
    hidden_size: int,
    *,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Unit vectors ``[n_layers, hidden_size]`` for ``reflect_``, cast to ``dtype``."""
    if n_layers < 1 or hidden_size < 1:
        raise SettingsError(f"n_layers, hidden_size: {n_layers}, {hidden_size}; give at least 1")
    v = torch.empty(n_layers, hidden_size, dtype=torch.float32, device=device)
    seeds = seed_tensor([seed(layer_text(block_hash, i)) for i in range(n_layers)], device)
    fill_normals_(v, seeds, Scratch(v.device, min(CHUNK_ELEMENTS, v.numel())))
    return v.div_(v.norm(dim=-1, keepdim=True)).to(dtype)


def reflect_(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """x <- x - 2 (x.v) v over the last dimension, in place, in x's dtype; returns ``x``.

    ``x [..., hidden]``, ``v [hidden]`` of norm 1. Allocates one number a row, not a copy of x.
    """
    v = v.to(dtype=x.dtype)
    return x.addcmul_((x @ v).unsqueeze(-1), v, value=-2)


@torch.no_grad()
def pick_indices(
    block_hash: str,
    public_key: str,
    nonces: Sequence[int],
    hidden_size: int,
    k: int = K_DIM,
    *,
    device: Device = "cpu",
) -> torch.Tensor:
    """Picked dimensions int64 ``[len(nonces), k]`` in canonical order, on ``device``."""
    check_pick(hidden_size, k)
    texts = [pick_text(block_hash, public_key, nonce, k) for nonce in nonces]
    seeds = seed_tensor([seed(text) for text in texts], device)
    # Score and index in one number: no two are equal, so every device's topk agrees, and equal
    # scores go to the lower index.
    scores = unsigned(hash_keys(seeds, 0, hidden_size))
    ranked = scores * hidden_size + torch.arange(hidden_size, device=scores.device)
    smallest = torch.topk(ranked, k, dim=-1, largest=False, sorted=True).values % hidden_size
    first = torch.sort(smallest[:, :-1], dim=-1).values
    return torch.cat([first, smallest[:, -1:]], dim=-1)


@torch.no_grad()
def rotation_vectors(
    block_hash: str, public_key: str, nonces: Sequence[int], k: int, *, device: Device = "cpu"
) -> torch.Tensor:
    """Unit vectors float32 ``[len(nonces), k-1, k]`` of the rotations."""
    v = torch.empty(len(nonces) * (k - 1), k, dtype=torch.float32, device=device)
    if v.numel():
        texts = [
            rotation_text(block_hash, public_key, nonce, k, step)
            for nonce in nonces
            for step in range(k - 1)
        ]
        seeds = seed_tensor([seed(text) for text in texts], device)
        fill_normals_(v, seeds, Scratch(v.device, min(CHUNK_ELEMENTS, v.numel())))
        v.div_(v.norm(dim=-1, keepdim=True) + ROTATION_NORM_EPSILON)
    return v.view(len(nonces), k - 1, k)


@torch.no_grad()
def project(
    hidden: torch.Tensor, block_hash: str, public_key: str, nonces: Sequence[int], k: int = K_DIM
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states ``[batch, hidden]`` to vectors float16 ``[batch, k]`` and a finite mask.

    The mask ``[batch]`` is False where the state or the float16 vector holds NaN or Inf: such a
    row is never sent, it is counted as failed (F27, F28). The state counts too, because one
    infinity makes the norm infinite and every other entry a perfectly finite 0.
    Raises SettingsError unless there is one row a nonce.
    """
    if hidden.ndim != 2 or hidden.shape[0] != len(nonces):
        raise SettingsError(
            f"hidden: shape {tuple(hidden.shape)} for {len(nonces)} nonces; give [batch, hidden]"
        )
    check_nonces(nonces)
    picked = pick_indices(block_hash, public_key, nonces, hidden.shape[1], k, device=hidden.device)
    steps = rotation_vectors(block_hash, public_key, nonces, k, device=hidden.device)
    state = hidden.to(torch.float32)
    y = state / (state.norm(dim=-1, keepdim=True) + STATE_NORM_EPSILON)
    y = y.gather(1, picked)
    for v in steps.unbind(1):
        y = y - 2 * (y * v).sum(dim=-1, keepdim=True) * v
    y = (y / (y.norm(dim=-1, keepdim=True) + STATE_NORM_EPSILON)).to(torch.float16)
    finite = torch.isfinite(state).all(dim=-1) & torch.isfinite(y).all(dim=-1)
    return y, finite
