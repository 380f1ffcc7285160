"""Whether a vector is one that a forward can give: the right length, finite, of norm 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.poc.constants import UNIT_TOLERANCE


def is_unit(vector: npt.ArrayLike, k: int | None = None) -> bool:
    """A zero, a constant 0.1 or the short guess between two answers is no unit vector."""
    values = np.asarray(vector, dtype=np.float64)
    if values.ndim != 1 or (k is not None and len(values) != k) or not np.isfinite(values).all():
        return False
    with np.errstate(over="ignore"):
        return bool(abs(np.linalg.norm(values) - 1) <= UNIT_TOLERANCE)
