"""Claims in a file, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from assay.claims.claim import CLAIM_SCHEMA_VERSION, Claim
from assay.claims.fields import show
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError


def dump_claim(claim: Claim) -> str:
    """One line of JSON without its line end. Reading it back gives an equal claim."""
    return claim.model_dump_json()


def load_claim(text: bytes | str) -> Claim:
    """The claim in one JSON document of this project's own form.

    Raises ClaimError: ``not_json``, ``unknown_version``, or ``malformed`` naming the field.
    """
    value = parse_json(text)
    if isinstance(value, dict):
        version = value.get("schema_version")
        if version is not None and version != CLAIM_SCHEMA_VERSION:
            raise ClaimError(
                f"version {show(version)} is not known to this assay (it reads"
                f" {CLAIM_SCHEMA_VERSION}); update it",
                code="unknown_version",
                field="schema_version",
            )
    try:
        return Claim.model_validate(value)
    except ValidationError as error:
        raise _as_claim_error(error) from error


def write_claims(path: Path, claims: Iterable[Claim]) -> int:
    """Write ``claims`` to ``path``, replacing it only once all are written; returns how many."""
    part = path.with_name(path.name + ".part")
    count = 0
    with part.open("w", encoding="utf-8", newline="\n") as file:
        for claim in claims:
            file.write(dump_claim(claim) + "\n")
            count += 1
    part.replace(path)
    return count


def read_claims(path: Path) -> list[Claim]:
    """Every claim of a file; blank lines and exact repeats of a claim are skipped.

    Raises ClaimError naming the line, and for an id used by two different claims; OSError as the
    file system says.
    """
    claims: dict[str, tuple[int, Claim]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            claim = load_claim(line)
        except ClaimError as error:
            raise ClaimError(f"{path.name} line {number}: {error}", code=error.code) from error
        first = claims.setdefault(claim.id, (number, claim))
        if first[0] != number and first[1] != claim:
            raise ClaimError(
                f"{path.name} line {number}: the id {claim.id!r} is also that of another claim in"
                f" line {first[0]}; ids must be unique"
            )
    return [claim for _, claim in claims.values()]


def _as_claim_error(error: ValidationError) -> ClaimError:
    first = error.errors()[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return ClaimError(first["msg"], field=path.removeprefix(".") or "claim")
