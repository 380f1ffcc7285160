"""What can be done to an honest claim with a text editor: pure functions, claim in, claim out."""

from __future__ import annotations

from assay.claims.claim import Claim, EngineIdentity, Replay
from assay.claims.positions import Position, TopEntry
from assay.errors import ClaimError


def renamed(claim: Claim, name: str) -> Claim:
    """The claim under another id."""
    return claim.model_copy(update={"id": name})


def replace_token(claim: Claim, index: int | None = None) -> Claim:
    """One token replaced by the most likely other alternative at its position.

    The alternative's own log probability goes with it, so the position by itself looks right.
    ``index`` None takes the middle. Raises ClaimError for a claim without ids or alternatives.
    """
    ids, positions = _parts(claim)
    at = len(ids) // 2 if index is None else index
    if not 0 <= at < len(ids):
        raise ClaimError(f"position {at} is not in [0, {len(ids)})", field="index")
    here = positions[at]
    others = [entry for entry in here.top if isinstance(entry.key, int) and entry.key != here.token]
    if not others:
        raise ClaimError(f"position {at} lists no other token", field=f"positions[{at}].top")
    best = max(others, key=lambda entry: entry.logprob)
    swapped = here.model_copy(update={"token": best.key, "logprob": best.logprob})
    return claim.model_copy(
        update={
            "output_ids": (*ids[:at], int(best.key), *ids[at + 1 :]),
            "positions": (*positions[:at], swapped, *positions[at + 1 :]),
            # The text would give the edit away to anyone who decodes the ids.
            "output_text": None,
        }
    )


def truncate(claim: Claim, keep: int | None = None) -> Claim:
    """The first ``keep`` tokens (None: half) as if the model had stopped there by itself."""
    ids, positions = _parts(claim)
    kept = max(1, len(ids) // 2) if keep is None else keep
    if not 0 < kept < len(ids):
        raise ClaimError(f"{kept} of {len(ids)} tokens kept would cut nothing", field="keep")
    usage = claim.usage.model_copy(update=_counts(claim, kept))
    return claim.model_copy(
        update={
            "output_ids": ids[:kept],
            "positions": positions[:kept],
            "output_text": None,
            "finish_reason": "stop",
            "usage": usage,
        }
    )


def inflate(claim: Claim, by: int) -> Claim:
    """The same answer with ``by`` more tokens billed."""
    counted = claim.usage.completion_tokens
    if counted is None:
        counted = len(_parts(claim)[0])
    return claim.model_copy(
        update={"usage": claim.usage.model_copy(update=_counts(claim, counted + by))}
    )


def disguise(claim: Claim, engine: EngineIdentity) -> Claim:
    """The same claim said to be made by ``engine``."""
    return claim.model_copy(update={"engine": engine})


def copy_answer(prompt_of: Claim, answer_of: Claim) -> Claim:
    """The prompt and request of one claim with the answer of another."""
    counted = answer_of.usage.completion_tokens
    usage = prompt_of.usage
    if counted is not None:
        usage = usage.model_copy(update=_counts(prompt_of, counted))
    taken = ("output_ids", "output_text", "positions", "finish_reason")
    return prompt_of.model_copy(
        update={name: getattr(answer_of, name) for name in taken} | {"usage": usage}
    )


def launder(claim: Claim, replay: Replay) -> Claim:
    """The claim's tokens with the log probabilities of ``replay``, a run of the real model.

    Whoever can force tokens, or read one prefill, can make this: the numbers are the real model's
    for these very tokens, only the choice of the tokens is not. Raises ClaimError when the replay
    is of other tokens.
    """
    ids, positions = _parts(claim)
    real = replay.positions or ()
    if len(real) < len(ids) or any(p.token != t for p, t in zip(real, ids, strict=False)):
        raise ClaimError("the replay is not of this claim's tokens", field="positions")
    width = max(len(position.top) for position in positions)
    return claim.model_copy(
        update={
            "positions": tuple(_shown(position, width) for position in real[: len(ids)]),
            "logprobs_mode": replay.logprobs_mode or claim.logprobs_mode,
        }
    )


def _shown(position: Position, width: int) -> Position:
    """At most ``width`` alternatives, the chosen token among them as servers list it."""
    top = position.top[:width]
    if len(position.top) <= width or any(entry.key == position.token for entry in top):
        return position.model_copy(update={"top": top})
    chosen = TopEntry(key=position.token, logprob=position.logprob)
    return position.model_copy(update={"top": (chosen, *position.top[: width - 1])})


def _parts(claim: Claim) -> tuple[tuple[int, ...], tuple[Position, ...]]:
    if not claim.output_ids or not claim.positions:
        raise ClaimError("the claim has no token ids or no positions to edit", field="output_ids")
    if len(claim.output_ids) != len(claim.positions):
        raise ClaimError(
            f"{len(claim.output_ids)} ids and {len(claim.positions)} positions", field="output_ids"
        )
    return claim.output_ids, claim.positions


def _counts(claim: Claim, completion: int) -> dict[str, int]:
    """The usage fields that follow from a number of output tokens."""
    counts = {"completion_tokens": completion}
    prompt = claim.usage.prompt_tokens
    if "total_tokens" in type(claim.usage).model_fields and prompt is not None:
        counts["total_tokens"] = prompt + completion
    return counts
