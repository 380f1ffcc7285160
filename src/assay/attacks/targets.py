"""What the kit must reach, and what to say where it does not."""

from __future__ import annotations

from dataclasses import dataclass

SHORT: int = 16
"""Tokens of the short-claim target."""


@dataclass(frozen=True)
class Target:
    """An AUC that ``statistic`` must reach on ``attack``; ``first`` counts positions, None all.

    ``statistic`` is one of ``scoring.measure.STATISTICS``, ``account`` for the share of claims
    that an account check fails, or ``position`` for the share in which the place of the edit is
    named, ``position or next`` for that in which it or the place after it is.
    """

    attack: str
    statistic: str
    least: float
    first: int | None = None

    @property
    def text(self) -> str:
        at = f" at {self.first} tokens" if self.first else ""
        return f"{self.attack}{at}: {self.statistic} >= {self.least:g}"


TARGETS: tuple[Target, ...] = (
    Target("int8", "value_distance", 1.0),
    Target("fp8", "value_distance", 1.0),
    Target("kv-fp8", "value_distance", 1.0),
    Target("int4", "value_distance", 1.0),
    Target("int4", "value_distance", 1.0, SHORT),
    Target("wrong-seed", "choice_mismatch", 1.0),
    Target("temperature", "choice_mismatch", 0.99),
    Target("laundered-int4", "choice_mismatch", 1.0),
    Target("laundered-int8", "choice_mismatch", 0.95),
    Target("laundered-system-prompt", "choice_mismatch", 1.0),
    Target("one-token", "value_peak", 1.0),
    Target("one-token", "position", 1.0),
    Target("one-token", "position or next", 1.0),
    Target("truncated", "account", 1.0),
    Target("inflated", "account", 1.0),
)
"""Stated for 32 claims of 64 tokens at temperature 1, top-k 50, top-p 0.95, against honest claims
made in other batches."""
