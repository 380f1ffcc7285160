"""What a batch row must do this step, keyed by request and never by row (F1).

Both runners keep one :class:`RowState` per request and ask :func:`plan_step` before sampling.
Everything here is host data: the plan costs no device work and no synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from assay.plugin.constants import GREEDY_BELOW, KEY_ARG, MODE_ARG, NOT_FORCED, TRACE_ARG

LOGIT_MODES: Final = ("raw_logits", "processed_logits")
RAW_MODES: Final = ("raw_logprobs", "raw_logits")


@dataclass(frozen=True)
class RowState:
    """One request that carries fields of ours.

    ``trace`` [positions] int64 ids to force, or ``None``; ``mode`` its own log probability mode,
    or ``None`` for the deployment's; ``key`` names its evidence. ``greedy`` rows draw without
    noise, ``seeded`` ones with noise that can be drawn again.
    """

    key: str | None
    trace: npt.NDArray[np.int64] | None
    mode: str | None
    greedy: bool = False
    seeded: bool = False


def row_state(
    extra_args: dict[str, Any] | None,
    vocab_size: int,
    *,
    temperature: float = 1.0,
    seed: int | None = None,
) -> RowState | None:
    """Read ``SamplingParams.extra_args``; ``None`` for an ordinary request.

    The HTTP layer has validated the ids. A trace that arrived by another road and does not fit the
    vocabulary is not forced, because gathering it would take the device down (F6).
    """
    if not extra_args or not (TRACE_ARG in extra_args or MODE_ARG in extra_args):
        return None
    ids = extra_args.get(TRACE_ARG)
    trace = None
    if ids is not None:
        trace = np.asarray(ids, dtype=np.int64)
        if trace.ndim != 1 or not trace.size or trace.min() < 0 or trace.max() >= vocab_size:
            trace = None
    greedy = temperature < GREEDY_BELOW
    return RowState(
        extra_args.get(KEY_ARG),
        trace,
        extra_args.get(MODE_ARG),
        greedy=greedy,
        seeded=seed is not None and not greedy,
    )


@dataclass(frozen=True)
class StepPlan:
    """One step's work: ``forced`` [batch] int64 (-1 = sample), ``modes`` [batch], who wants evidence."""

    forced: npt.NDArray[np.int64]
    modes: tuple[str, ...]
    evidence: tuple[tuple[int, str, int, int], ...]
    """(row, key, position, length of the trace)"""
    greedy: tuple[int, ...] = ()
    seeded: tuple[int, ...] = ()
    """Rows with evidence that draw without noise, and with noise that can be drawn again."""

    @property
    def forces(self) -> bool:
        return bool((self.forced != NOT_FORCED).any())

    @property
    def single_mode(self) -> str | None:
        return self.modes[0] if len(set(self.modes)) == 1 else None


def plan_step(
    rows: Iterable[tuple[int, RowState, int]], batch: int, deployment: str
) -> StepPlan | None:
    """Plan for the rows ``(row, state, position)`` of ours; ``None`` = the stock path serves the batch.

    ``position`` counts the request's output tokens so far; a negative one marks a discarded sample
    (chunked prefill), which forces nothing and leaves no evidence. Past the end of the trace the
    row samples as usual.
    """
    forced: npt.NDArray[np.int64] | None = None
    modes: list[str] | None = None
    evidence: list[tuple[int, str, int, int]] = []
    greedy: list[int] = []
    seeded: list[int] = []
    for row, state, position in rows:
        trace = state.trace
        if trace is not None and 0 <= position < trace.size:
            if forced is None:
                forced = np.full(batch, NOT_FORCED, dtype=np.int64)
            forced[row] = trace[position]
            if state.key is not None:
                evidence.append((row, state.key, position, trace.size))
                if state.greedy:
                    greedy.append(row)
                elif state.seeded:
                    seeded.append(row)
        if state.mode is not None and state.mode != deployment:
            if modes is None:
                modes = [deployment] * batch
            modes[row] = state.mode
    if forced is None and modes is None:
        return None
    if forced is None:
        forced = np.full(batch, NOT_FORCED, dtype=np.int64)
    return StepPlan(
        forced,
        tuple(modes or [deployment] * batch),
        tuple(evidence),
        greedy=tuple(greedy),
        seeded=tuple(seeded),
    )
