"""The activation check used for comparison: bits in, a distance in mantissa steps out."""

from __future__ import annotations

import math

import numpy as np
import torch

from assay.attacks.activations import (
    CHUNK_TOKENS,
    MANTISSA_BITS,
    TOP_VALUES,
    as_bits,
    commit,
    distance,
)

STATES = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))


def test_bits_are_those_of_bfloat16() -> None:
    bits = as_bits(torch.tensor([[1.0, -2.0, 0.0]]))
    assert bits.dtype == np.uint16
    assert bits.tolist() == [[0x3F80, 0xC000, 0x0000]]


def test_the_largest_values_of_every_chunk_are_committed() -> None:
    bits = as_bits(STATES)
    found = commit(bits)
    assert [len(one.indices) for one in found] == [TOP_VALUES, TOP_VALUES]
    first = STATES[:CHUNK_TOKENS].to(torch.bfloat16).abs().flatten()
    smallest = first[found[0].indices].min()
    rest = np.setdiff1d(np.arange(len(first)), found[0].indices)
    assert smallest >= first[rest].max()


def test_equal_states_have_no_distance_and_noise_has_some() -> None:
    bits = as_bits(STATES)
    assert distance(commit(bits), bits) == 0.0
    near = distance(commit(bits), as_bits(STATES * (1 + 2.0**-7)))
    far = distance(commit(bits), as_bits(STATES * 1.2))
    assert 0 < near < far
    # Doubling moves every exponent and no mantissa; a flipped sign is a whole mantissa too.
    for other in (STATES * 2, -STATES):
        assert distance(commit(bits), as_bits(other)) == 1 << MANTISSA_BITS


def test_nothing_to_compare_is_no_distance() -> None:
    bits = as_bits(STATES)
    assert math.isnan(distance([], bits))
    assert math.isnan(distance(commit(bits), bits[:8]))
