"""Where in an answer the distances change level: the part that was tampered with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.scoring.arrays import Floats
from assay.scoring.constants import SPAN_CONTRAST, SPAN_EVIDENCE, SPAN_FLOOR, SPAN_POSITIONS


@dataclass(frozen=True)
class Span:
    """Positions ``start`` to ``end`` (exclusive) of a series, with the mean distance ``inside``
    and ``outside``."""

    start: int
    end: int
    inside: float
    outside: float


def far_span(distances: Floats) -> Span | None:
    """The stretch of ``distances`` [n] that lies far above the rest, or ``None``.

    Distances of one source are taken to be exponential (``decision``); of all stretches the one
    with the largest likelihood ratio against a single level is taken, if its mean is
    ``SPAN_CONTRAST`` times that of the rest and the logarithm of the ratio is ``SPAN_EVIDENCE``.
    """
    count = len(distances)
    if count < 2:
        return None
    values = np.maximum(distances, SPAN_FLOOR)
    # Long answers are cut into cells, so that the square of their number stays small.
    cell = -(-count // SPAN_POSITIONS)
    edges = np.unique(np.append(np.arange(0, count, cell), count))
    sums = np.concatenate([[0.0], np.cumsum(values)])[edges]
    start, end = np.triu_indices(len(edges), 1)
    inner_n = (edges[end] - edges[start]).astype(np.float64)
    outer_n = count - inner_n
    keep = outer_n > 0
    start, end, inner_n, outer_n = start[keep], end[keep], inner_n[keep], outer_n[keep]
    if not len(start):
        return None
    inside = (sums[end] - sums[start]) / inner_n
    outside = (sums[-1] - sums[end] + sums[start]) / outer_n
    gain = count * np.log(sums[-1] / count) - inner_n * np.log(inside) - outer_n * np.log(outside)
    gain[inside < SPAN_CONTRAST * outside] = -np.inf
    best = int(gain.argmax())
    if gain[best] < SPAN_EVIDENCE:
        return None
    return Span(
        int(edges[start[best]]), int(edges[end[best]]), float(inside[best]), float(outside[best])
    )
