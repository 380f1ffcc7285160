"""How a body spells its tokens: as vocabulary ids or as text, decided once for the whole body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.claims.entries import RawEntry, RawPosition
from assay.claims.positions import TokenKey
from assay.errors import ClaimError

PREFIX = "token_id:"
"""vLLM's own spelling with ``return_tokens_as_token_ids``."""

_DECIMAL = re.compile(r"[0-9]{1,19}\Z", re.ASCII)

Spelling = Literal["ids", "text"]


def parse_id(token: str) -> int | None:
    """The id that ``token`` spells, ``None`` where it is text.

    ``token_id:N`` and a bare decimal are ids. What ``int()`` would accept and a person would not
    (underscore, sign, white space, digits of other scripts) is text.
    """
    digits = token.removeprefix(PREFIX)
    return int(digits) if _DECIMAL.match(digits) else None


def text_key(token: str, raw_bytes: bytes | None) -> str:
    """``text:<hex>`` of the entry's bytes, of its UTF-8 text where the body gives no bytes.

    Bytes are finer: byte-fallback tokens of one character share the text U+FFFD (case 24).
    """
    raw = token.encode("utf-8", "surrogatepass") if raw_bytes is None else raw_bytes
    return f"text:{raw.hex()}"


@dataclass(frozen=True)
class SpellingChoice:
    """``warnings`` say what a person should know before trusting the choice."""

    spelling: Spelling
    warnings: tuple[str, ...] = ()


def choose_spelling(positions: Sequence[RawPosition]) -> SpellingChoice:
    """Ids or text, for every entry of one body alike.

    The rule: ids only if every chosen token and every alternative is spelled as an id. A text
    answer may well contain the tokens "4" and "2", so one entry alone decides nothing.

    Raises ClaimError (code ``malformed``) with the JSON path of the entry that breaks the rule
    where the body is certainly meant as ids: some entry has the ``token_id:`` form, or a chosen
    token is a number whose ``bytes`` are those of other text (networks that put bare ids into
    ``token`` leave ``bytes`` as it was). A number among words without such proof is only warned
    about, because it may be honest text.
    """
    named = [position for position in positions if not position.is_unnamed]
    entries = list(_entries(named))
    strangers = [entry for entry in entries if parse_id(entry.token) is None]
    meant = _proof_of_ids(named, entries)
    if meant is not None:
        if strangers:
            raise ClaimError(
                f"the token {strangers[0].token!r} is not numeric although the body spells tokens"
                f" as ids ({meant}); the server must send ids for every token",
                field=strangers[0].path,
            )
        return SpellingChoice("ids")
    if entries and not strangers:
        return SpellingChoice("ids", _maybe_text(named))
    numbers = len(entries) - len(strangers)
    if numbers * 2 > len(entries):
        return SpellingChoice(
            "text",
            (
                f"{numbers} of {len(entries)} tokens look like ids and the first that does not is"
                f" {strangers[0].path}: read as text; if ids were meant, the claim is broken there",
            ),
        )
    return SpellingChoice("text")


def _entries(positions: Sequence[RawPosition]) -> Iterable[RawEntry]:
    for position in positions:
        yield position.chosen
        yield from position.top


def _proof_of_ids(named: Sequence[RawPosition], entries: Sequence[RawEntry]) -> str | None:
    for entry in entries:
        if entry.token.startswith(PREFIX) and parse_id(entry.token) is not None:
            return f"{entry.path} is {entry.token!r}"
    for position in named:
        chosen = position.chosen
        if (
            parse_id(chosen.token) is not None
            and chosen.raw_bytes
            and chosen.raw_bytes != chosen.token.encode()
        ):
            return f"{chosen.path} is {chosen.token!r} with the bytes of other text"
    return None


def _maybe_text(named: Sequence[RawPosition]) -> tuple[str, ...]:
    if named and all(p.chosen.raw_bytes == p.chosen.token.encode() for p in named):
        return (
            "every token is a number and its bytes are those digits: read as ids, but an answer"
            " that consists of numbers would look the same",
        )
    return ()


def key_of(entry: RawEntry, spelling: Spelling) -> TokenKey:
    """The key of ``entry`` in a body of ``spelling``."""
    if spelling == "text":
        return text_key(entry.token, entry.raw_bytes)
    token = parse_id(entry.token)
    if token is None:
        raise ClaimError(f"the token {entry.token!r} is not numeric", field=entry.path)
    return token
