"""The text of the answer against its ids."""

from __future__ import annotations

from assay.claims.account.asked import is_set, may_call_tools, stop_strings
from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import MOST_PLACES
from assay.claims.account.ending import CALLED, end_ids
from assay.claims.account.known import Known
from assay.claims.account.spelled import (
    UNDECODABLE,
    differ_at,
    ends_with_special,
    is_spelled,
    without_spaces,
)
from assay.claims.claim import Claim


def decodable_ids(claim: Claim, eos_ids: tuple[int, ...] | None) -> tuple[int, ...]:
    """The output ids whose text the answer shows: without the end token, which a server does not
    write unless the request has include_stop_str_in_output."""
    ids = claim.output_ids or ()
    ended = claim.finish_reason in ("stop", *CALLED)
    hidden = ended and not is_set(claim, "include_stop_str_in_output")
    return ids[:-1] if hidden and ids and ids[-1] in end_ids(claim, eos_ids) else ids


def needs_text(claim: Claim) -> bool:
    """True where a check would use ``Known.decoded_output``."""
    shown = claim.output_text is not None or claim.reasoning_text or claim.tool_calls
    return claim.output_ids is not None and bool(shown or stop_strings(claim))


def text(claim: Claim, known: Known) -> Check:
    """The text must be what the ids decode to.

    Parsers split an answer into content, reasoning and tool calls, and some change it: there the
    parts are looked for, and a part that is not found has no outcome.
    """
    check = Subject("text", "text_mismatch")
    ids, decoded = claim.output_ids, known.decoded_output
    if ids is None or decoded is None:
        why = known.why_not("decoded_output", "the ids were not decoded")
        return check.unknown("the claim has no output ids" if ids is None else why)
    if is_set(claim, "echo"):
        return check.unknown("the text holds the prompt too (echo)")
    if claim.reasoning_text or claim.tool_calls:
        return _parts(check, claim, decoded)
    if claim.output_text is None:
        return check.unknown("the claim has no text")
    return _whole(check, claim, claim.output_text, decoded)


def _whole(check: Subject, claim: Claim, said: str, decoded: str) -> Check:
    found = [is_spelled(said, candidate) for candidate in _candidates(claim, decoded)]
    if True in found:
        return check.holds("the text is what the ids decode to")
    many = "the text may leave out special tokens in too many ways" if None in found else None
    doubt = many or _doubt(claim, said, decoded)
    if doubt is not None:
        return check.unknown(doubt)
    return check.fails(
        "the text is not what the ids decode to, different from character"
        f" {differ_at(said, decoded)} on"
    )


def _parts(check: Subject, claim: Claim, decoded: str) -> Check:
    parts = [part.strip() for part in (claim.output_text, claim.reasoning_text) if part]
    if not any(parts):
        return check.unknown("a parser took the whole text")
    if all(part.rstrip(UNDECODABLE) in decoded for part in parts):
        return check.holds("content and reasoning stand in what the ids decode to")
    return check.unknown("a parser split the answer and may have changed its text")


def _candidates(claim: Claim, decoded: str) -> list[str]:
    """What an honest server may show: all of it, or all up to a stop string."""
    found = [decoded]
    if claim.finish_reason not in ("stop", *CALLED):
        return found
    kept = is_set(claim, "include_stop_str_in_output")
    several = bool(claim.request.get("min_tokens"))  # an early one did not stop it then
    for stop in stop_strings(claim):
        place = decoded.find(stop)
        for _ in range(MOST_PLACES if several else 1):
            if place < 0:
                break
            found.append(decoded[: place + len(stop)] if kept else decoded[:place])
            place = decoded.find(stop, place + 1)
    return found


def _doubt(claim: Claim, said: str, decoded: str) -> str | None:
    """Why a difference may be honest; ``None`` where it cannot."""
    if UNDECODABLE in decoded.rstrip(UNDECODABLE):
        return "the output holds bytes that are no text, which servers write in different ways"
    if without_spaces(said) == without_spaces(decoded):
        return "the text differs in spaces only, which some tokenizers clean up"
    if claim.endpoint != "chat":
        return None
    if may_call_tools(claim):
        return "the request has tools, and a parser may have changed the text"
    content = said.strip()
    if decoded.rstrip().endswith(content):
        before = decoded.rstrip()[: len(decoded.rstrip()) - len(content)]
        if ends_with_special(before):
            return "the text is the end of the output; a parser may have taken the reasoning away"
    return None
