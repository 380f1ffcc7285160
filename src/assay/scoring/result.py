"""The verdict as data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from assay.claims.account import Check
from assay.scoring.channels import ChannelResult

Outcome = Literal["pass", "fail", "inconclusive"]
Kind = Literal["enforced", "natural"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Reason(_Frozen):
    """Why a verdict is not a plain pass. ``code`` is stable, ``message`` is for people,
    ``position`` is where it first shows (from 0)."""

    code: str
    message: str
    position: int | None = None


class Cause(_Frozen):
    """What most likely lies behind a verdict that is no pass. ``name`` is stable; ``position`` is
    where it begins, ``end`` the position after it, where it is a part of the answer."""

    name: str
    message: str
    position: int | None = None
    end: int | None = None


class Verdict(_Frozen):
    """The judgement on one claim.

    ``channels`` say what each kind of evidence shows; ``path`` is how the replay was made, which
    decides what it may be compared with. ``profile`` is the id of the calibration profile whose
    honest claims the p-values come from, ``None`` where none fits; ``calibration`` says so in
    words. ``p_value`` is that of all channels together, at the stated false-positive rate ``fpr``.
    ``causes`` are the likeliest explanations, most likely first; ``tokens_needed`` how many tokens
    in all would decide an inconclusive claim if they go on like these, ``None`` where length does
    not help or nobody knows.

    ``positions`` were compared, the first ``first_disagreement`` ones where the tokens part.
    ``similarity`` (second generation) and ``similarity_v1`` (first) are the published scores over
    them, ``None`` where nothing was compared. ``by_distance`` is what their distances alone say,
    ``None`` where they mean nothing. ``distances`` are ours, per position, in [0, 0.5];
    ``entropies`` (nats) and ``near_best`` (alternatives within 1 nat of the best) are the
    validator's own, per position; both ``None`` at a position without evidence. ``mean_distance``
    is over the ``informative_positions``; ``pass_limit`` and ``fail_limit`` are what it was held
    against, and ``limits_source`` says whose limits those are. ``p_pass`` (``p_fail``): how likely
    an executor exactly at the pass (fail) limit shows distances as small (large) as these.
    ``above_ceiling`` and ``without_support`` count positions. ``notes`` repeat what the readers
    noticed; they decide nothing.
    """

    verdict: Outcome
    reasons: tuple[Reason, ...] = ()
    positions: int = 0
    claim_positions: int | None = None
    replay_positions: int | None = None
    kind: Kind | None = None
    first_disagreement: int | None = None
    by_distance: Outcome | None = None
    similarity: float | None = None
    similarity_v1: float | None = None
    top1_agreement: float | None = None
    informative_positions: int = 0
    mean_distance: float | None = None
    pass_limit: float | None = None
    fail_limit: float | None = None
    limits_source: str | None = None
    p_pass: float | None = None
    p_fail: float | None = None
    above_ceiling: int | None = None
    without_support: int | None = None
    flat: bool | None = None
    mean_entropy: float | None = None
    mean_near_best: float | None = None
    distances: tuple[float | None, ...] = ()
    entropies: tuple[float | None, ...] = ()
    near_best: tuple[int | None, ...] = ()
    account: tuple[Check, ...] = ()
    path: Literal["decode", "prefill", "file"] | None = None
    profile: str | None = None
    calibration: str | None = None
    fpr: float | None = None
    p_value: float | None = None
    channels: tuple[ChannelResult, ...] = ()
    causes: tuple[Cause, ...] = ()
    tokens_needed: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain JSON data, without NaN or infinities."""
        return self.model_dump(mode="json")
