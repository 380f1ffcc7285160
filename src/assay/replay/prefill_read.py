"""Prompt log probabilities of an answer, as the positions a decode replay would have listed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from assay.claims.claim import Endpoint
from assay.claims.fields import SENTINEL, as_ids, as_list, as_logprob, as_object
from assay.claims.positions import Position, TopEntry
from assay.errors import ClaimError


@dataclass(frozen=True)
class ScoredToken:
    """One position: the claimed id, its log probability, and the likeliest ids.

    ``likeliest`` are (id, log probability) in the order of their ranks, as many as were asked for;
    ``claimed`` those of ids the claim lists, where the server scored them.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    claimed: tuple[tuple[int, float], ...] = ()

    def position(self, k: int, endpoint: Endpoint) -> Position:
        """What the engine's own route lists for this position when asked for ``k``.

        Both routes put the chosen token first and the other likeliest behind it. Completions list
        it beside the top k, chat within k entries.
        """
        known = self.alternatives
        own = next(entry for entry in known if entry.key == self.token)
        likeliest = known[: min(k, len(self.likeliest))]
        listed = (own, *(entry for entry in likeliest if entry is not own))
        return Position(
            token=self.token,
            logprob=self.logprob,
            top=listed[:k] if endpoint == "chat" else listed,
        )

    @cached_property
    def alternatives(self) -> tuple[TopEntry, ...]:
        """The likeliest by rank, and the claimed token behind them where it is none of them."""
        known = dict(self.likeliest)
        known.setdefault(self.token, self.logprob)
        return _entries(known.items())

    @property
    def claimed_entries(self) -> tuple[TopEntry, ...]:
        """The claim's ids that are not in ``alternatives``."""
        if not self.claimed:
            return ()
        known = {self.token, *(key for key, _ in self.likeliest)}
        return _entries(entry for entry in self.claimed if entry[0] not in known)


_ENTRIES = TypeAdapter(tuple[TopEntry, ...])


def _entries(listed: Iterable[tuple[int, float]]) -> tuple[TopEntry, ...]:
    # Thousands a claim: one call of the validator for each position, not for each entry.
    return _ENTRIES.validate_python([{"key": key, "logprob": value} for key, value in listed])


def read_prompt_logprobs(
    body: bytes, prompt_length: int, output_ids: tuple[int, ...], width: int
) -> list[ScoredToken]:
    """The scored output tokens in an answer of /v1/completions to prompt + output.

    Entry i of ``prompt_logprobs`` is the distribution that token i of the whole is drawn from,
    ``None`` for the first; the output's are those from ``prompt_length`` on.
    Raises ClaimError for an answer of another shape or length.
    """
    answer = _parse(body)
    choice = as_object(next(iter(as_list(answer.get("choices"), "choices")), None), "choices[0]")
    where = "choices[0].prompt_logprobs"
    rows = as_list(choice.get("prompt_logprobs"), where)
    if len(rows) != prompt_length + len(output_ids):
        raise ClaimError(
            f"has {len(rows)} positions and {prompt_length + len(output_ids)} tokens were sent",
            field=where,
        )
    return [
        _scored(as_object(rows[at], f"{where}[{at}]"), token, width, f"{where}[{at}]")
        for at, token in enumerate(output_ids, start=prompt_length)
    ]


def read_columns(
    body: bytes, output_ids: tuple[int, ...], claimed: tuple[tuple[int, ...], ...]
) -> list[ScoredToken]:
    """The scored output tokens in an answer of the plugin's own route (``plugin/prefill.py``).

    ``claimed`` are the ids that were sent to be scored, a row for each position.
    Raises ClaimError for an answer of another shape or length.
    """
    answer = _parse(body)
    ids = as_list(answer.get("token_ids"), "token_ids")
    numbers = as_list(answer.get("logprobs"), "logprobs")
    extra = answer.get("claimed_logprobs")
    rows = [[]] * len(output_ids) if extra is None else as_list(extra, "claimed_logprobs")
    for name, column in (("token_ids", ids), ("logprobs", numbers), ("claimed_logprobs", rows)):
        if len(column) != len(output_ids):
            raise ClaimError(
                f"has {len(column)} positions and {len(output_ids)} were sent", field=name
            )
    scored = []
    for at, token in enumerate(output_ids):
        keys = as_ids(ids[at], f"token_ids[{at}]")
        values = _numbers(numbers[at], f"logprobs[{at}]")
        if not keys or keys[0] != token or len(keys) != len(values):
            raise ClaimError(f"does not score the token {token} that was sent", field=f"[{at}]")
        own = _numbers(rows[at], f"claimed_logprobs[{at}]")
        scored.append(
            ScoredToken(
                token,
                values[0],
                tuple(zip(keys[1:], values[1:], strict=True)),
                tuple(zip(claimed[at], own, strict=False)),
            )
        )
    return scored


def _parse(body: bytes) -> dict[str, Any]:
    """The validator's own engine wrote this: no need for the strict reader, whose look at each of
    some thousand objects costs a quarter of a claim. NaN is still refused, number by number."""
    try:
        return as_object(from_json(body), "body")
    except ValueError as error:
        raise ClaimError(f"not readable JSON: {error}", code="not_json") from error


def _numbers(value: object, path: str) -> list[float]:
    # Finite numbers, nearly all there are, pass without a call; NaN fails both comparisons.
    return [
        entry if type(entry) is float and SENTINEL < entry < math.inf else as_logprob(entry, path)
        for entry in as_list(value, path)
    ]


def _scored(row: Mapping[str, Any], token: int, width: int, path: str) -> ScoredToken:
    """One entry ``{"id": {"logprob", "rank", ...}}``. The claimed id stands in it whatever its
    rank; with a rank above ``width`` it is none of the likeliest."""
    own = row.get(str(token))
    if own is None:
        raise ClaimError(f"does not list the token {token} that was sent", field=path)
    ranked: list[tuple[int, int, float]] = []
    # Some thousand entries a claim: a path's text is put together only for the one that is wrong.
    for key, entry in row.items():
        if type(entry) is not dict:
            raise ClaimError("expected an object", field=f"{path}.{key}")
        rank = entry.get("rank")
        if type(rank) is not int or not key.isdecimal():
            raise ClaimError("expected an id with a rank", field=f"{path}.{key}")
        if rank <= width:
            number = entry.get("logprob")
            if not (type(number) is float and SENTINEL < number < math.inf):
                number = as_logprob(number, f"{path}.{key}")
            ranked.append((rank, int(key), number))
    logprob = as_logprob(as_object(own, f"{path}.{token}").get("logprob"), f"{path}.{token}")
    ranked.sort(key=lambda entry: entry[0])
    return ScoredToken(token, logprob, tuple((key, value) for _, key, value in ranked[:width]))
