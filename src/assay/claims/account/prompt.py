"""The prompt: ids against the request, against their digest and against the template."""

from __future__ import annotations

from collections.abc import Sequence

from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import DATE_SHIFT, DATE_TOKENS
from assay.claims.account.known import Known
from assay.claims.claim import Claim
from assay.claims.digest import prompt_digest

MISMATCH = "prompt_mismatch"


def prompt_ids(claim: Claim, known: Known) -> Check:
    """Ids the caller sent must be the ids the server says it ran."""
    check = Subject("prompt_ids", MISMATCH)
    if claim.prompt.token_ids is None:
        return check.unknown("the claim has no prompt ids; its prompt is rendered again")
    sent = claim.request.get("prompt")
    if isinstance(sent, list) and len(sent) == 1 and isinstance(sent[0], list):
        sent = sent[0]
    if not isinstance(sent, list) or not all(isinstance(token, int) for token in sent):
        return check.unknown("the request gives messages or text, which need a tokenizer")
    if tuple(sent) == claim.prompt.token_ids:
        return check.holds("the prompt ids are those of the request")
    return check.fails("the server reports other prompt ids than the request sent")


def prompt_digest_check(claim: Claim, known: Known) -> Check:
    """The digest against the claim's own ids; where it has none, against the rendering."""
    check = Subject("prompt_digest", MISMATCH)
    digest, ids = claim.prompt.digest, claim.prompt.token_ids
    if digest is None:
        return check.unknown("the claim has no prompt digest")
    if ids is not None:
        if prompt_digest(ids) == digest.lower():
            return check.holds("the digest is that of the prompt ids")
        return check.fails("the prompt digest is not that of the claim's own prompt ids")
    if known.rendered_prompt_ids is None:
        return check.unknown(known.why_not("rendered_prompt_ids", "the claim has no prompt ids"))
    if prompt_digest(known.rendered_prompt_ids) == digest.lower():
        return check.holds("the digest is that of the validator's rendering")
    # Without ids nobody can see where they part, so a date cannot be told from a hidden message.
    return check.unknown(
        "the digest is not that of the validator's rendering; without the ids nobody can say why"
    )


def prompt_render(claim: Claim, known: Known) -> Check:
    """The ids that ran against the validator's own rendering of what was asked.

    A rendering may differ on honest servers: another revision of the template, a default of the
    server, a date. So a difference counts against the claim only where the executor's server was
    seen to render as the validator's does (``Known.same_template``), and only where it is more
    than a date. Everywhere else it has no outcome here, and scoring refuses to compare.
    """
    check = Subject("prompt_render", MISMATCH)
    ids, ours = claim.prompt.token_ids, known.rendered_prompt_ids
    if ids is None:
        return check.unknown("the claim has no prompt ids")
    if ours is None:
        return check.unknown(
            known.why_not("rendered_prompt_ids", "the validator rendered no messages or text")
        )
    if ids == ours:
        return check.holds(f"the validator renders the same {len(ids)} ids")
    start, claimed, rendered = difference(ids, ours)
    what = (
        f"{len(ids)} prompt tokens ran and the validator renders {len(ours)}; they part at prompt"
        f" token {start}, where {claimed} ran in place of {rendered}"
    )
    if not known.same_template:
        return check.unknown(
            f"{what}; the executor's template is not known to be the validator's, so this may be"
            " another revision or a default of the server as well as a hidden message"
        )
    if max(claimed, rendered) <= DATE_TOKENS and abs(claimed - rendered) <= DATE_SHIFT:
        return check.unknown(f"{what}; so little may be a date that the template writes")
    return check.fails(f"{what}, although the template is the same: another prompt was run")


def difference(ids: Sequence[int], ours: Sequence[int]) -> tuple[int, int, int]:
    """First differing index, and the lengths of what differs on either side once the common
    start and the common end are taken away."""
    shortest = min(len(ids), len(ours))
    start = next((i for i in range(shortest) if ids[i] != ours[i]), shortest)
    rest = shortest - start
    end = next((i for i in range(rest) if ids[-1 - i] != ours[-1 - i]), rest)
    return start, len(ids) - start - end, len(ours) - start - end


def prompt_count(claim: Claim, known: Known) -> Check:
    check = Subject("prompt_count", "prompt_count")
    counted, ids = claim.usage.prompt_tokens, claim.prompt.token_ids
    if counted is None or ids is None:
        return check.unknown("needs usage.prompt_tokens and prompt ids")
    if counted == len(ids):
        return check.holds(f"{counted} prompt tokens")
    return check.fails(f"the claim counts {counted} prompt tokens and shows {len(ids)}")
