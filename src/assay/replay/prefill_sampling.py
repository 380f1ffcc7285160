"""The request's sampling parameters, applied to what a prefill returns.

A prefill lists the model's raw distribution. Where a request keeps no more than the likeliest k of
it (top-k), the processed distribution over them follows from those k numbers alone, on any server:
temperature and min-p act on each, top-p on their sum. Without top-k the sum over the whole
vocabulary would be needed, and that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from assay.claims.positions import IMPOSSIBLE
from assay.replay.prefill_read import ScoredToken

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""vLLM's own values, at which each changes nothing (``_DEFAULT_SAMPLING_PARAMS`` of its request
models, 0.31 to 0.33). What a request leaves out comes from the model's generation config first."""

GREEDY_BELOW = 1e-5
"""vLLM's ``_SAMPLING_EPS``: below it a request is greedy, and top-p, top-k and min-p are dropped."""

LEAST_TEMPERATURE = 1e-2
"""vLLM's ``_MAX_TEMP``: a smaller positive temperature is raised to it first, so that only 0 is
greedy."""

OFF_UNLESS_SET = (
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "thinking_token_budget",
    "logits_processors",
    "vllm_xargs",
)
"""Parameters that are off when absent, null, zero or empty; no server fills them in."""

CUTS = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Sampling:
    """``values`` of ``DEFAULTS``; ``unknown`` are those that only the server knows, ``other`` are
    fields of ``OFF_UNLESS_SET`` in force."""

    values: Mapping[str, float]
    unknown: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def greedy(self) -> bool:
        return self.values.get("temperature", 1.0) < GREEDY_BELOW

    @property
    def shaping(self) -> tuple[str, ...]:
        """What makes processed numbers differ from raw ones, or may do so."""
        dropped = CUTS if self.greedy else ()
        set_ = (n for n, v in self.values.items() if n not in dropped and not _neutral(n, v))
        return (*set_, *(n for n in self.unknown if n not in dropped), *self.other)


@dataclass(frozen=True)
class Cuts:
    """A processed distribution that its ``top_k`` likeliest raw numbers determine."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    def apply(self, scored: ScoredToken) -> ScoredToken:
        """The processed numbers of a position, in vLLM's order: temperature, min-p, top-k, top-p.

        Ids that are cut keep their place and become impossible. Ids outside the list are impossible
        too, and so are the claim's (``scored.claimed``), which it drops.
        """
        kept: dict[int, float] = {}
        scaled = [(key, value / self.temperature) for key, value in scored.likeliest[: self.top_k]]
        best = scaled[0][1] if scaled else 0.0
        floor = best + math.log(self.min_p) if self.min_p > 0 else -math.inf
        alive = [(key, value) for key, value in scaled if value >= floor and value != IMPOSSIBLE]
        total = math.fsum(math.exp(value - best) for _, value in alive)
        above = 0.0
        for key, value in alive:
            # An id stays while those above it hold less than top-p; the likeliest always does.
            if kept and above >= self.top_p:
                break
            kept[key] = value
            above += math.exp(value - best) / total
        rest = math.fsum(math.exp(value - best) for value in kept.values())
        left = best + math.log(rest) if kept else 0.0
        final = {key: value - left for key, value in kept.items()}
        return ScoredToken(
            scored.token,
            final.get(scored.token, IMPOSSIBLE),
            tuple((key, final.get(key, IMPOSSIBLE)) for key, _ in scored.likeliest),
        )


def read_sampling(request: Mapping[str, Any], server: Mapping[str, float] | None) -> Sampling:
    """``server`` holds what the server fills in, where it says so; ``None``: nobody knows."""
    values: dict[str, float] = {}
    unknown = []
    for name, default in DEFAULTS.items():
        given = request.get(name)
        if _is_number(given):
            values[name] = float(given)
        elif server is None or given is not None:
            unknown.append(name)
        else:
            values[name] = float(server.get(name, default))
    if 0 < values.get("temperature", 0.0) < LEAST_TEMPERATURE:
        values["temperature"] = LEAST_TEMPERATURE
    return Sampling(
        values, tuple(unknown), tuple(name for name in OFF_UNLESS_SET if request.get(name))
    )


def _is_number(value: object) -> TypeGuard[float]:
    """A finite number of a size that a request may have; anything else no engine accepts."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 <= value <= 1e9


def cuts_of(sampling: Sampling) -> Cuts | None:
    """The cuts that make the claim's processed numbers out of raw ones; ``None`` where more than
    the likeliest ids would be needed."""
    if sampling.greedy or not set(sampling.shaping) <= set(CUTS) or sampling.unknown:
        return None
    values = sampling.values
    if values["top_k"] < 1 or not 0 < values["top_p"] <= 1 or not 0 <= values["min_p"] <= 1:
        return None
    return Cuts(values["temperature"], int(values["top_k"]), values["top_p"], values["min_p"])


def _neutral(name: str, value: float) -> bool:
    return value == DEFAULTS[name] or (name == "top_k" and value == -1)
