"""Claims for the tests of the account channel."""

from __future__ import annotations

from typing import Any

from tests.claims.bodies import chat

from assay.claims.account import Check, Known, check_account
from assay.claims.claim import Claim
from assay.claims.read_json import read_response

EOS = 102
"""The last id of ``claim()``: ids 100, 101, 102, finish reason ``stop``, text "one two three"."""


def claim(request: dict[str, Any] | None = None, **changes: Any) -> Claim:
    return read_response(chat(), request).model_copy(update=changes)


def checks(claim: Claim, known: Known | None = None) -> dict[str, Check]:
    return {check.name: check for check in check_account(claim, known or Known())}


def outcome(name: str, claim: Claim, known: Known | None = None) -> str:
    return checks(claim, known)[name].outcome
