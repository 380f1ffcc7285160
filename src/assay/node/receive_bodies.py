"""What callbacks carry, checked field by field: ``/generated`` and ``/validated``."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from assay.node.failures import NodeRefusal
from assay.poc.constants import K_DIM, UINT32_RANGE
from assay.store.received_tables import NAME_LENGTH, Result, Sender, Vectors

WIRE = np.dtype("<f2")
LARGEST = 2**63 - 1
Name = Annotated[StrictStr, Field(min_length=1, max_length=NAME_LENGTH, pattern=r"^[^\x00]*$")]
Count = Annotated[StrictInt, Field(ge=0, le=LARGEST)]


class Body(BaseModel):
    """Unknown keys are ignored, as network clients expect."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    block_hash: Name
    public_key: Name
    node_id: Count
    block_height: Count | None = None
    request_id: Name | None = None

    def sender(self) -> Sender:
        return Sender(self.block_hash, self.public_key, self.node_id, self.block_height)


class Encoding(BaseModel):
    """How ``vector_b64`` is to be read; the only way there is."""

    dtype: Literal["f16"] = "f16"
    k_dim: Annotated[StrictInt, Field(ge=1, le=65_536)] = K_DIM
    endian: Literal["le"] = "le"


class Artifact(BaseModel):
    nonce: StrictInt
    vector_b64: StrictStr


class Generated(Body):
    """Vectors of one node for one block."""

    artifacts: list[Artifact]
    encoding: Encoding = Encoding()

    def vectors(self) -> Vectors:
        """The vectors ``[count, k_dim]`` as bytes; NodeRefusal 422 that names the first bad one."""
        size = self.encoding.k_dim * WIRE.itemsize
        places: dict[int, int] = {}
        raw = []
        for index, artifact in enumerate(self.artifacts):
            nonce = artifact.nonce
            if not 0 <= nonce < UINT32_RANGE:
                raise _bad(index, "nonce", f"{nonce} is not an integer of 0..2^32-1")
            if nonce in places:
                raise _bad(index, "nonce", f"{nonce} is that of artifacts[{places[nonce]}] already")
            places[nonce] = index
            raw.append(_vector(index, artifact.vector_b64, size))
        finite = np.isfinite(np.frombuffer(b"".join(raw), WIRE)).reshape(len(raw), -1).all(axis=1)
        if not finite.all():
            index = int(np.argmin(finite))
            raise _bad(index, "vector_b64", "holds a value that is not finite")
        return Vectors(self.encoding.k_dim, list(places), raw)


class Validated(Body):
    """What a validation came to."""

    n_total: Count
    n_mismatch: Count
    mismatch_nonces: list[StrictInt] = []
    p_value: float | None = Field(None, ge=0, le=1)
    fraud_detected: StrictBool

    def result(self) -> Result:
        """NodeRefusal 422 when its numbers contradict each other."""
        if self.n_mismatch > self.n_total:
            raise NodeRefusal(422, f"n_mismatch: {self.n_mismatch} of {self.n_total} (n_total)")
        return Result(
            request_id=self.request_id,
            n_total=self.n_total,
            n_mismatch=self.n_mismatch,
            p_value=self.p_value,
            fraud_detected=self.fraud_detected,
            body=self.model_dump_json(),
        )


def _vector(index: int, text: str, size: int) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(index, "vector_b64", f"not base64: {error}") from error
    if len(raw) != size:
        raise _bad(
            index,
            "vector_b64",
            f"{len(raw)} bytes, expected {size} ({size // WIRE.itemsize} float16 values)",
        )
    return raw


def _bad(index: int, name: str, message: str) -> NodeRefusal:
    return NodeRefusal(422, f"artifacts[{index}].{name}: {message}")
