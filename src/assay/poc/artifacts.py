"""A vector on the wire: float16, little endian, base64."""

from __future__ import annotations

import base64
import binascii

import numpy as np
import numpy.typing as npt

from assay.errors import ClaimError
from assay.poc.normals import FloatArray

_WIRE = np.dtype("<f2")


def encoding(k: int) -> dict[str, str | int]:
    """The envelope that says how ``vector_b64`` is to be read."""
    return {"dtype": "f16", "k_dim": k, "endian": "le"}


def encode_vector(vector: npt.ArrayLike) -> str:
    """``vector [k]`` as base64 of float16 little endian (k = 12: 24 bytes, 32 characters).

    Raises ClaimError (``non_finite``) when a value is not finite, or does not fit float16: such a
    vector is never sent (F27, F28).
    """
    values = np.asarray(vector)
    if values.ndim != 1 or values.size == 0:
        raise ClaimError(
            f"shape {values.shape} given; give one vector of shape (k,)", field="vector"
        )
    with np.errstate(over="ignore"):
        half = values.astype(_WIRE)
    if not np.isfinite(half).all():
        raise ClaimError(
            "holds a value that is not finite in float16; count the nonce as failed",
            code="non_finite",
            field="vector",
        )
    return base64.b64encode(half.tobytes()).decode("ascii")


def decode_vector(text: str, k: int | None = None) -> FloatArray:
    """The float32 values ``[k]`` of a ``vector_b64``; non-finite values are kept, for the verdict.

    Raises ClaimError ``bad_base64`` when the text is not base64 or no whole number of float16,
    and ``wrong_shape`` when ``k`` is given and the vector has another length.
    """
    if not isinstance(text, str):
        raise ClaimError(
            f"{type(text).__name__} given; give a base64 string",
            code="bad_base64",
            field="vector_b64",
        )
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ClaimError(f"not base64: {error}", code="bad_base64", field="vector_b64") from error
    if not raw or len(raw) % _WIRE.itemsize:
        raise ClaimError(
            f"{len(raw)} bytes are no whole number of float16 values",
            code="bad_base64",
            field="vector_b64",
        )
    values = np.frombuffer(raw, dtype=_WIRE).astype(np.float32)
    if k is not None and values.size != k:
        raise ClaimError(
            f"{values.size} values, expected {k}", code="wrong_shape", field="vector_b64"
        )
    return values
