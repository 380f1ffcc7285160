"""Claims for the tests of the kit, made by hand."""

from __future__ import annotations

from tests.scoring.sides import position

from assay.claims.claim import Claim, Prompt, Replay, Usage
from assay.claims.positions import Position

TOKENS = 12


def held(first: int = 100, count: int = TOKENS) -> tuple[Position, ...]:
    """``count`` positions; the chosen id of position i is ``first + i``, its rival one 1000 up."""
    return tuple(
        position([(first + i, -0.5), (first + i + 1000, -1.5), (first + i + 2000, -2.5)])
        for i in range(count)
    )


def honest(name: str = "honest-0000", first: int = 100, prompt: tuple[int, ...] = (1, 2)) -> Claim:
    """An honest claim of ``TOKENS`` tokens."""
    positions = held(first)
    return Claim(
        id=name,
        endpoint="chat",
        prompt=Prompt(token_ids=prompt),
        request={"seed": 7, "temperature": 1.0, "max_tokens": TOKENS},
        output_ids=tuple(int(p.token) for p in positions),
        output_text="said",
        positions=positions,
        finish_reason="length",
        usage=Usage(
            prompt_tokens=len(prompt),
            completion_tokens=TOKENS,
            total_tokens=len(prompt) + TOKENS,
        ),
        logprobs_mode="raw_logprobs",
    )


def real_replay(claim: Claim, width: int = 3) -> Replay:
    """What the real model says of the claim's tokens: other numbers than the claim's."""
    listed = [
        position([(int(p.token) + 5000, -0.1), (int(p.token), -0.9), (3, -4.0), (4, -5.0)][:width])
        for p in claim.positions or ()
    ]
    forced = tuple(
        p.model_copy(update={"token": c.token, "logprob": -0.9})
        for p, c in zip(listed, claim.positions or (), strict=True)
    )
    return Replay(id=claim.id, positions=forced, logprobs_mode="raw_logprobs")
