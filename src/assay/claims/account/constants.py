"""Every number that decides an account check, with where it comes from."""

from __future__ import annotations

from math import log
from typing import Final

INFLATION_TOLERANCE: Final = 3
"""Tokens by which claimed usage may exceed the replayed usage before it is called inflated: the
published rule of the networks that use this protocol (spec replay, section 4)."""

FALSE_STOP_LOGPROB: Final = log(1e-8)
"""An end token less likely than this (nats, after the sampler) was not drawn. An honest answer of
n tokens ends at such a token with probability at most n x 1e-8: 3e-4 for the longest trace of
32,768 tokens, 1e-5 for a thousand. The validator's own number may be off by a nat or two so far
down; 1e-8 leaves room for that and stays below a stated rate of 1e-3."""

CUT_STOP_LOGPROB: Final = log(1e-6)
"""The same where the validator's sampler cuts the end token off (top-k, top-p, min-p) altogether.
Honest engines disagree about tokens at the edge of a cut, and those are likelier than this; below
it both must happen, a draw of 1e-6 and a disagreement about the cut."""

GREEDY_STOP_GAP: Final = 4.0
"""Nats by which another token may beat the end token of a greedy answer. Two honest engines swap
near ties: in 3,206 comparisons over the honest pairs of kaitakuai-experiments (each side's likeliest
token on the other side, before the answers part) the largest gap is 1.34 nats; once the token was
not among the other side's five. Three times that."""

DATE_TOKENS: Final = 9
DATE_SHIFT: Final = 3
"""Two renderings of one template that part in one stretch of at most DATE_TOKENS tokens on either
side, its lengths at most DATE_SHIFT apart, may have been made on two sides of midnight: "31 December
2026" and "1 January 2027" are 9 and 8 tokens where every digit and space is one. Equal template
digests leave no other room for a date. A short hidden message in place of an equally short default
is let go with it (the distributions of the two prompts are not compared either way)."""

MOST_SPECIAL_PLACES: Final = 256
MOST_PLACES: Final = 32
MOST_LEAVES: Final = 1000
"""Work that a hostile text may cause: ambiguous places of special tokens kept at once, places of
one stop string or one key tried, values looked for in the arguments of one answer. Beyond, no outcome."""

LEAST_TEMPERATURE: Final = 1e-2
"""vLLM raises a smaller positive temperature to this (its sampling parameters, 0.31 to 0.33)."""
