"""The outcome of one account check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["pass", "fail", "not_available"]


class Check(BaseModel):
    """One check. ``code`` is the reason a verdict gives when it fails; ``position`` counts output
    tokens from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    outcome: Outcome
    reason: str
    code: str
    position: int | None = None


@dataclass(frozen=True)
class Subject:
    """What is checked: makes the three outcomes of one check."""

    name: str
    code: str

    def holds(self, reason: str) -> Check:
        return Check(name=self.name, outcome="pass", reason=reason, code=self.code)

    def fails(self, reason: str, position: int | None = None) -> Check:
        return Check(
            name=self.name, outcome="fail", reason=reason, code=self.code, position=position
        )

    def unknown(self, reason: str) -> Check:
        return Check(name=self.name, outcome="not_available", reason=reason, code=self.code)
