"""The seed against the beacon it must follow from."""

from __future__ import annotations

from assay.claims.account.check import Check, Subject
from assay.claims.account.known import Known
from assay.claims.claim import Claim
from assay.claims.seeds import verify_seed

CODE = "chosen_seed"


def beacon_seed(claim: Claim, known: Known) -> Check:
    """Where the validator demands a beacon, a seed that does not follow from it was chosen.

    Whatever the claim says of its source: who grinds a seed would say that the client chose it.
    """
    check = Subject("beacon_seed", CODE)
    if known.beacon is None:
        return check.unknown("no beacon is demanded")
    if claim.request.get("seed") is None:
        return check.unknown("the request has no seed, so its draws cannot be checked")
    found = verify_seed(claim, known.beacon)
    return check.holds(found.reason) if found.ok else check.fails(found.reason)
