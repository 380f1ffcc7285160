"""Bodies of the PoC routes as existing clients send them.

Unknown keys at the top level are ignored, in ``params`` they are refused; ``batch_size`` and
``k_dim`` may be left out.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from assay.poc.artifact_file import Challenge
from assay.poc.constants import K_DIM, UINT32_RANGE

Whole = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Nonce = Annotated[int, Field(strict=True, ge=0, lt=UINT32_RANGE)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
"""Goes into every seed string: bounded, and never empty."""

MAX_VECTOR_TEXT = 65_536
"""Characters of one ``vector_b64``: 24,576 numbers, more than any hidden size."""
MAX_SHARES = 1024
"""Shares one run may hold: far more than a machine has devices to move them between."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Params(BaseModel):
    """What the vectors are computed with."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: Name
    seq_len: Positive
    k_dim: Positive = K_DIM


class Identity(_Body):
    """Whose vectors, for which block, and which nonces are this server's."""

    block_hash: Name
    block_height: Whole
    public_key: Name
    node_id: Whole
    node_count: Positive
    group_id: Whole = 0
    n_groups: Positive = 1
    batch_size: Positive | None = None
    params: Params
    url: str | None = Field(default=None, max_length=4096)
    poc_stronger_rng: Annotated[bool, Field(strict=True)] = False

    @field_validator("url")
    @classmethod
    def _no_empty_url(cls, value: str | None) -> str | None:
        return value or None

    @property
    def challenge(self) -> Challenge:
        return Challenge(
            block_hash=self.block_hash,
            public_key=self.public_key,
            k=self.params.k_dim,
            seq_len=self.params.seq_len,
            model=self.params.model,
            poc_stronger_rng=self.poc_stronger_rng,
        )


class ShareRange(BaseModel):
    """Positions ``start`` to ``stop`` (not included; None: no end) of residue class ``group_id``.

    Position p is nonce node_id + (group_id + p*n_groups)*node_count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group_id: Whole
    start: Nonce = 0
    stop: Annotated[int, Field(strict=True, ge=1, le=UINT32_RANGE)] | None = None

    @field_validator("stop")
    @classmethod
    def _after_start(cls, value: int | None, info: ValidationInfo) -> int | None:
        start = info.data.get("start")
        if value is not None and start is not None and value <= start:
            raise PydanticCustomError(
                "share_stop",
                "{stop} is not more than start, {start}",
                {"stop": value, "start": start},
            )
        return value


Ranges = Annotated[tuple[ShareRange, ...], Field(max_length=MAX_SHARES)]


class InitGenerate(Identity):
    """``POST /init/generate``: mine this node's nonces until stopped.

    ``shares`` (ours): mine these instead of the class ``group_id``, and wait for more at their end.
    ``mark_failed`` (ours): hand over nonces whose vector was not finite too, with an empty
    ``vector_b64`` at their place in the order; a coordinator sees by them that a range is at its end.
    """

    shares: Annotated[Ranges, Field(min_length=1)] | None = None
    mark_failed: Annotated[bool, Field(strict=True)] = False


class ChangeShares(_Body):
    """``POST /shares`` (ours): what the run that reports to ``url`` lets go of and takes on."""

    url: str | None = Field(default=None, max_length=4096)
    release: tuple[Whole, ...] = Field(default=(), max_length=MAX_SHARES)
    add: Ranges = ()

    @field_validator("url")
    @classmethod
    def _no_empty_url(cls, value: str | None) -> str | None:
        return value or None


class Artifact(_Body):
    nonce: Nonce
    vector_b64: str = Field(max_length=MAX_VECTOR_TEXT)


class Validation(_Body):
    """Vectors to judge. ``profile``: the engine that made them, where the sender knows (case 50)."""

    artifacts: tuple[Artifact, ...]
    profile: dict[str, Any] = {}


class Generate(Identity):
    """``POST /generate``: vectors of given nonces, or a verdict on given vectors."""

    nonces: tuple[Nonce, ...] = Field(min_length=1)
    wait: Annotated[bool, Field(strict=True)] = False
    validation: Validation | None = None
    stat_test: dict[str, Any] | None = None
