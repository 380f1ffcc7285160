"""Is one text what ids decode to, given what servers honestly do to decoded text?"""

from __future__ import annotations

import re

from assay.claims.account.constants import MOST_SPECIAL_PLACES

UNDECODABLE = "\ufffd"
"""U+FFFD, what a decoder writes for bytes that are no text."""

SPECIAL = re.compile(
    r"<\|[^<>|]{1,64}\|>|<｜[^<>｜]{1,64}｜>|</?[A-Za-z][\w:-]{0,63}>|\[/?[A-Z][A-Z_]{0,31}\]"
)
"""How tokenizers spell special tokens: ``<|im_end|>``, ``<end_of_turn>``, ``</s>``, ``[INST]``.
Servers leave them out of the text unless asked not to. Ordinary text that looks so (a tag of
HTML) may therefore be missing unseen."""

_SPACES = re.compile(r"\s+")


def is_spelled(text: str, decoded: str) -> bool | None:
    """True when ``text`` is ``decoded`` with any of its special tokens left out; ``None`` where
    there are too many ways to leave some out.

    A space at the start belongs to the tokenizer (it drops the first one of a sequence), and
    undecodable bytes at the end to a character that the last token did not finish.
    """
    text, decoded = _trimmed(text), _trimmed(decoded)
    if text == decoded:
        return True
    # Every special token may be there or not: the places in `text` that are reached so far.
    places, done = {0}, 0
    for found in SPECIAL.finditer(decoded):
        places = _after(text, places, decoded[done : found.start()])
        places |= _after(text, places, found.group())
        done = found.end()
        if not places:
            return False
        if len(places) > MOST_SPECIAL_PLACES:
            return None
    return len(text) in _after(text, places, decoded[done:])


def _after(text: str, places: set[int], piece: str) -> set[int]:
    return {place + len(piece) for place in places if text.startswith(piece, place)}


def _trimmed(text: str) -> str:
    return text.rstrip(UNDECODABLE).lstrip(" ")


def without_spaces(text: str) -> str:
    return _SPACES.sub("", text)


def differ_at(text: str, decoded: str) -> int:
    """First character, from 0, at which the two part."""
    shortest = min(len(text), len(decoded))
    return next((i for i in range(shortest) if text[i] != decoded[i]), shortest)


def ends_with_special(text: str) -> bool:
    """True for what a reasoning parser cuts off in front: it ends with the mark of its end."""
    *_, last = [None, *SPECIAL.finditer(text)]
    return last is not None and not text[last.end() :].strip()
