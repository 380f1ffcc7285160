"""The noise of a row by another road than the plugin's, for comparison."""

from __future__ import annotations

import numpy as np
import torch

from assay.plugin.sampler_v1 import AssaySamplerV1
from assay.plugin.tape_v1 import EXPONENTIAL
from assay.scoring.tape_v1 import v1_cpu_noise


def v1_noise(sampler: AssaySamplerV1, seed: int, vocab: int, draws: int = 0) -> np.ndarray:
    """[vocab] noise of the draw after ``draws`` others, from the definition of the tape."""
    if sampler.assay_generation != EXPONENTIAL:
        return v1_cpu_noise(seed, draws, np.arange(vocab))
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if sampler.use_fp64_gumbel else torch.float32
    for _ in range(draws + 1):
        q = torch.empty(vocab, dtype=dtype).exponential_(generator=generator)
    return -np.log(q.double().numpy())
