"""One verified claim: everything a verdict needs to be defended later."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.claims.claim import Claim, Replay
from assay.scoring.result import Verdict

RESULT_SCHEMA_VERSION: Literal[1] = 1
"""Raised when a field changes meaning; readers refuse versions they do not know."""


class ResultNote(BaseModel):
    """Something the replay had to do or noticed; see ``assay.replay.request.Note``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    message: str


class VerifyResult(BaseModel):
    """The verdict on one claim by one server under one set of options.

    ``label`` groups results in a report (an executor, a file). ``replay`` is ``None`` when no
    replay was made; ``blame`` then says why: ``claim`` (no engine accepts it) or ``validator``
    (outage or limit; such a result is inconclusive, and is tried again on the next run), and
    ``failure`` is the code of the ReplayError.
    ``token_texts`` are for people to read only. ``seconds`` is the wall time of the replay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = RESULT_SCHEMA_VERSION
    label: str = ""
    claim_digest: str
    server_digest: str
    options_digest: str
    claim: Claim
    verdict: Verdict
    replay: Replay | None = None
    blame: Literal["claim", "validator"] | None = None
    failure: str | None = None
    notes: tuple[ResultNote, ...] = ()
    token_texts: tuple[str | None, ...] = ()
    decided_at: datetime
    seconds: float = Field(ge=0)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes a result the same work: claim id and digest, server, options."""
        return (self.claim.id, self.claim_digest, self.server_digest, self.options_digest)

    @property
    def settled(self) -> bool:
        """False when the validator itself failed: another run may decide the claim."""
        return self.blame != "validator"


def claim_digest(claim: Claim) -> str:
    """SHA-256 of the claim's canonical JSON; equal claims have equal digests on any machine."""
    return _digest(claim.model_dump(mode="json"))


def options_digest(options: dict[str, Any]) -> str:
    """SHA-256 of the options that can change a verdict (threshold, strict, mode)."""
    return _digest(options)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
