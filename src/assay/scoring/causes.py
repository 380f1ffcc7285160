"""The likeliest cause behind a verdict that is no pass, from the pattern over the channels.

A pattern is no proof: several causes can make the same one, and the words say "likely". What the
patterns rest on is spec replay, section 5: which attack shows in which channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.scoring.channel_results import SUPPORT
from assay.scoring.channels import ChannelResult
from assay.scoring.choice import Choice, NoChoice, contradictions, drawn_at, first_outlier
from assay.scoring.choice_rule import DOUBTFUL, counts_of
from assay.scoring.constants import (
    CLEAN_DISTANCE,
    COARSE_WEIGHTS_DISTANCE,
    CUT_MARGIN,
    CUT_SHARE,
    ERROR_RATE,
    FEW_CONTRADICTIONS,
    HONEST_MISMATCH,
    STRANGER_DISTANCE,
    UNRELATED_DRAWS,
    UNRELATED_LISTED,
)
from assay.scoring.result import Cause, Verdict
from assay.scoring.spans import far_span
from assay.scoring.tails import binomial_at_least
from assay.scoring.value_rule import ValueLook

ACCOUNT: dict[str, tuple[str, str]] = {
    "position_gap": ("inflation", "tokens were counted that the answer does not show"),
    "inflated": ("inflation", "more tokens were counted than the answer has"),
    "usage_total": ("inflation", "the counts of the bill do not add up"),
    "prompt_count": ("inflation", "the prompt was counted with other tokens than it has"),
    "false_finish_reason": ("truncation", "the answer was cut short and says otherwise"),
    "false_stop": ("truncation", "the model was not about to stop where the answer ends"),
    "under_min_tokens": ("truncation", "the answer is shorter than the request demanded"),
    "over_max_tokens": ("padding", "the answer is longer than the request allowed"),
    "tokens_after_end": ("padding", "tokens were appended after the model had ended"),
    "prompt_mismatch": ("template", "another prompt was run: system prompt, template or tokenizer"),
    "text_mismatch": ("edited_text", "the text was changed after the tokens were drawn"),
    "tool_call_mismatch": ("edited_text", "the tool calls are not what the tokens say"),
    "chosen_seed": ("seed", "somebody chose the seed instead of taking the beacon's"),
    "out_of_vocabulary": ("forged_tokens", "tokens were made up: the model does not have them"),
}
"""Cause of a failed account check, by its code."""

DOUBTS = frozenset({DOUBTFUL, "unusual"})
DISTANT = frozenset({"similarity_below", "ceiling", "value_too_far", "unusual"})
"""Codes of a value channel whose distances are what is wrong with it."""


def likely_causes(
    claim: Claim, replay: Replay, verdict: Verdict, look: ValueLook, choice: Choice | NoChoice
) -> tuple[Cause, ...]:
    """Causes for ``verdict``, likeliest first; none for a pass and for a claim that is only short."""
    if verdict.verdict == "pass":
        return ()
    found = [*_from_account(verdict), *_from_prompt(look)]
    value, drawn = verdict.channels[0], verdict.channels[1]
    case = _Case(claim, replay, verdict, look, choice, _suspect(value, DISTANT), _suspect(drawn))
    if value.code == "value_too_close":
        found.append(
            Cause(
                name="laundering",
                message="the reported numbers are closer to the validator's than another engine's"
                " can be: likely computed afterwards, or copied",
            )
        )
    if case.choice_bad and isinstance(choice, Choice):
        found += _from_choice(case, choice)
    elif drawn.code == SUPPORT:
        found.append(
            Cause(
                name="sampler",
                message="likely: other sampling parameters than the request's, or another model"
                " wrote the tokens: the request's own sampler cannot draw them",
                position=drawn.position,
            )
        )
    if case.value_bad:
        found += _from_value(case)
    return tuple({cause.name: cause for cause in reversed(found)}.values())[::-1]


@dataclass(frozen=True)
class _Case:
    claim: Claim
    replay: Replay
    verdict: Verdict
    look: ValueLook
    choice: Choice | NoChoice
    value_bad: bool
    choice_bad: bool

    @property
    def mean(self) -> float:
        return self.verdict.mean_distance or 0.0

    @property
    def clean(self) -> bool:
        """The reported numbers are the validator's own, within what honest engines differ by."""
        value = self.verdict.channels[0]
        return value.outcome == "pass" or value.code == "too_short_to_tell"


def _suspect(channel: ChannelResult, codes: frozenset[str] | None = None) -> bool:
    """The channel speaks against the claim; by ``codes`` only, where they are given."""
    if channel.outcome == "fail":
        return codes is None or channel.code in codes
    return channel.outcome == "inconclusive" and channel.code in (codes or DOUBTS)


def _from_account(verdict: Verdict) -> list[Cause]:
    return [
        Cause(name=name, message=f"likely: {message}", position=check.position)
        for check in verdict.account
        if check.outcome == "fail" and check.code in ACCOUNT
        for name, message in [ACCOUNT[check.code]]
    ]


def _from_prompt(look: ValueLook) -> list[Cause]:
    if not any(f.reason.code == "prompt_mismatch" for f in look.findings):
        return []
    name, message = ACCOUNT["prompt_mismatch"]
    return [Cause(name=name, message=f"likely: {message}")]


def _from_choice(case: _Case, choice: Choice) -> list[Cause]:
    counts = counts_of(choice)
    apart = binomial_at_least(counts.mismatches, counts.positions, HONEST_MISMATCH) > ERROR_RATE
    outlier = first_outlier(choice)
    if outlier is not None and counts.against <= FEW_CONTRADICTIONS and apart:
        return [
            Cause(
                name="token_replaced",
                message=f"likely: the token at position {outlier} was put there by hand",
                position=outlier,
                end=outlier + 1,
            )
        ]
    first = int(choice.positions[np.flatnonzero(contradictions(choice) | choice.mismatch)[0]])
    sampler = _sampler(case, choice, first)
    if sampler is not None:
        return [sampler]
    unrelated = UNRELATED_LISTED if choice.source == "lists" else UNRELATED_DRAWS
    if unrelated_draws(choice) >= unrelated and not choice.greedy:
        return [
            Cause(
                name="seed",
                message="likely: drawn with another seed (or none); the tokens agree with the"
                " request's seed no more often than by luck",
                position=first,
            )
        ]
    # Other weights draw other tokens too: then the value channel names the cause.
    return _laundering(first, few=apart and not choice.greedy) if case.clean else []


def _sampler(case: _Case, choice: Choice, first: int) -> Cause | None:
    """Other sampling parameters, by what would have drawn these tokens."""
    # Tokens that lose only because a cut took them out: with wider cuts they would have been drawn.
    with np.errstate(invalid="ignore"):
        cut = int(((choice.cut | choice.own_cut) & (choice.margin <= CUT_MARGIN)).sum())
    message = None
    if cut >= max(2.0, CUT_SHARE * int(choice.mismatch.sum())):
        message = (
            "likely: other sampling parameters than the request's; the claimed tokens lie outside"
            f" its top-p, top-k or min-p at {cut} positions"
        )
    elif (temperature := drawn_at(case.claim, case.replay)) is not None:
        message = (
            f"likely: drawn at a temperature near {temperature:g}, where the tokens follow from the"
            " claim's own numbers, and not at the request's"
        )
    return None if message is None else Cause(name="sampler", message=message, position=first)


def _laundering(first: int, *, few: bool) -> list[Cause]:
    causes = [
        Cause(
            name="laundering",
            message="likely: another model wrote the tokens and the real one supplied their log"
            " probabilities afterwards",
            position=first,
        )
    ]
    if few:
        # A temperature off by a tenth makes few tokens differ, and so do rounded weights.
        causes.append(
            Cause(
                name="sampler",
                message="or slightly other sampling parameters than the request's",
                position=first,
            )
        )
    return causes


def unrelated_draws(choice: Choice) -> float:
    """Mismatches as a share of those that draws with other noise would show: about 0 for an honest
    claim, 1 for another seed. 0 where no draw could come out otherwise."""
    known = np.isfinite(choice.by_luck)
    expected = float((1 - choice.by_luck[known]).sum())
    return float(choice.mismatch[known].sum()) / expected if expected > 0 else 0.0


def _from_value(case: _Case) -> list[Cause]:
    places = case.look.informative
    listed = case.verdict.distances
    distances = np.array([listed[place] or 0.0 for place in places], dtype=np.float64)
    span = far_span(distances)
    if (
        span is not None
        and span.outside <= CLEAN_DISTANCE
        and (span.start > 0 or span.end < len(places))
    ):
        start = _changed_before(case.choice, places[span.start])
        end = places[span.end - 1] + 1
        if span.start > 0:
            whole = span.end == len(places)
            where = f"from position {start} on" if whole else f"at positions {start} to {end - 1}"
            return [
                Cause(
                    name="tampered_span",
                    message=f"likely: the answer was changed {where}, or another model went on"
                    " there; before, the numbers agree",
                    position=start,
                    end=None if whole else end,
                )
            ]
    causes = [_weights(case, distances)]
    if causes[0].name != "kv_cache":
        causes.append(
            Cause(name="template", message="or another system prompt or template than the claim's")
        )
    return causes


def _changed_before(choice: Choice | NoChoice, start: int) -> int:
    """Where a change begins whose numbers are far from ``start`` on: a replaced token leaves its own
    position's numbers as they were, and shows there in the draw alone."""
    if isinstance(choice, Choice) and ((choice.positions == start - 1) & choice.mismatch).any():
        return start - 1
    return start


def _weights(case: _Case, distances: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Cause:
    mean = case.mean
    if mean >= STRANGER_DISTANCE:
        return Cause(
            name="other_model",
            message=f"likely: another model (mean distance {mean:.3f}, unrelated answers show 0.18)",
        )
    if len(distances) > 4 and distances[0] <= CLEAN_DISTANCE / 10 and mean > CLEAN_DISTANCE:
        return Cause(
            name="kv_cache",
            message="likely: another KV cache dtype; the first token, which needs no cache, agrees"
            " and the others do not",
        )
    if mean >= COARSE_WEIGHTS_DISTANCE:
        return Cause(
            name="quantisation",
            message=f"likely: coarsely quantised weights, such as int4, or another checkpoint (mean"
            f" distance {mean:.3f})",
        )
    return Cause(
        name="quantisation",
        message="likely: weights, KV cache or arithmetic in another precision than the claim says"
        f" (mean distance {mean:.3f})",
    )
