"""One output position: which token was chosen and what the top of its distribution was."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

TokenId = Annotated[int, Field(strict=True)]
"""A vocabulary id. Strict: 5.0, true and "5" are no ids (case 46)."""

TextKey = Annotated[str, Field(pattern=r"^text:([0-9a-f]{2})*$")]

TokenKey = TokenId | TextKey
"""How a token is named: an ``int`` is a vocabulary id, a ``str`` is ``text:<hex of the bytes>``.

Text is only used where the server gave no ids (old claims). Two alternatives with equal text but
different bytes stay two tokens (case 5)."""

IMPOSSIBLE = -math.inf
"""Log probability of a token that cannot occur. On the wire -9999.0, null, -inf, "-Infinity"."""


def _null_is_impossible(value: object) -> object:
    return IMPOSSIBLE if value is None else value


def _finite_or_impossible(value: float) -> float:
    if math.isnan(value) or value == math.inf:
        raise ValueError(f"{value} is no log probability; impossible is null, NaN is never valid")
    return value


def _impossible_is_null(value: float) -> float | None:
    return None if value == IMPOSSIBLE else value


Logprob = Annotated[
    float,
    BeforeValidator(_null_is_impossible),
    AfterValidator(_finite_or_impossible),
    WithJsonSchema({"type": ["number", "null"]}),
    PlainSerializer(_impossible_is_null, return_type=float | None, when_used="json"),
]
"""Natural-log probability (or a logit where the mode says so). JSON null = impossible (-inf).
NaN and +inf are refused: as text they would turn into null, which means something else."""


class TopEntry(BaseModel):
    """One alternative at a position."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: TokenKey
    logprob: Logprob


class Position(BaseModel):
    """One output position of a claim or of a replay.

    ``top`` is sorted as the server sent it and holds no key twice; it usually, but not always,
    contains ``token``. ``duplicates`` counts entries that were dropped because their key had been
    seen at this position. ``effective_k`` counts finite entries (case 8: padding is no evidence).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: TokenKey
    logprob: Logprob
    top: tuple[TopEntry, ...] = ()
    duplicates: int = Field(default=0, ge=0)

    @property
    def effective_k(self) -> int:
        """Entries that are evidence: padding (impossible) does not count."""
        return sum(1 for entry in self.top if entry.logprob != IMPOSSIBLE)
