"""Verified claims made by hand, for tests of what comes after the verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from assay.claims.claim import Claim, EngineIdentity, Evidence, Prompt, Replay
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.scoring.result import Outcome, Reason, Verdict
from assay.store.result import VerifyResult, claim_digest


def make_result(
    name: str,
    *,
    verdict: Outcome = "pass",
    label: str = "honest",
    blame: Literal["claim", "validator"] | None = None,
    distance: float = 1e-4,
    tokens: int = 4,
    texts: tuple[str | None, ...] | None = None,
    reason: Reason | None = None,
) -> VerifyResult:
    """A result whose claim is named ``name``. The last position lists an impossible entry."""
    positions = tuple(
        Position(
            token=100 + index,
            logprob=-0.5,
            top=(
                TopEntry(key=100 + index, logprob=-0.5),
                TopEntry(key=7, logprob=IMPOSSIBLE if index == tokens - 1 else -1.5),
            ),
        )
        for index in range(tokens)
    )
    claim = Claim(
        id=name,
        endpoint="chat",
        prompt=Prompt(token_ids=(1, 2), messages=({"role": "user", "content": "hi"},)),
        request={"model": "m", "temperature": 0.7},
        output_ids=tuple(100 + index for index in range(tokens)),
        positions=positions,
        logprobs_mode="raw_logprobs",
        engine=EngineIdentity(model="m"),
    )
    replay = Replay(
        id="r",
        positions=positions,
        evidence=Evidence(runner="v1"),
        engine=EngineIdentity(model="m", engine_version="0.32.0", runner="v1"),
    )
    why = reason or Reason(code="similarity_below", message="mean distance too large", position=1)
    return VerifyResult(
        label=label,
        claim_digest=claim_digest(claim),
        server_digest="s" * 64,
        options_digest="o" * 64,
        claim=claim,
        verdict=Verdict(
            verdict=verdict,
            reasons=() if verdict == "pass" else (why,),
            positions=tokens if blame is None else 0,
            similarity=None if blame else 1 - distance,
            similarity_v1=None if blame else 1 - distance,
            top1_agreement=None if blame else 1.0,
            distances=() if blame else (distance,) * tokens,
        ),
        replay=None if blame else replay,
        blame=blame,
        token_texts=texts if texts is not None else tuple(f" w{i}" for i in range(tokens)),
        decided_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        seconds=0.5,
    )
