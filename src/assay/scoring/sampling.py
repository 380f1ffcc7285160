"""What a request says about how its tokens were to be drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from assay.scoring.constants import LEAST_TEMPERATURE

NEUTRAL: Final[dict[str, float]] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""Values at which a sampler field of this kind changes nothing."""

SAMPLER_FIELDS: Final = (
    *NEUTRAL,
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "thinking_token_budget",
    "logits_processors",
    "vllm_xargs",
)
"""Fields that change logits after the raw log probabilities are taken."""

GRAMMAR_FIELDS: Final = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "response_format",
    "tool_choice",
)
"""Fields that put a grammar's mask on the logits before the raw log probabilities are taken."""

DEFAULTED: Final = ("repetition_penalty", "top_k", "top_p", "min_p")
"""Fields whose value a server takes from the model's generation config where a request names none,
so that leaving them out does not mean neutral."""


NEUTRAL_DEFAULTS: Final[dict[str, float]] = {
    "temperature": 1.0,
    "repetition_penalty": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}
"""What a server takes where neither the request nor its own configuration names a value."""


@dataclass(frozen=True)
class Sampling:
    """``temperature`` ``None``: not named. ``top_k``, ``top_p``, ``min_p`` ``None``: not cutting.

    ``reshaped`` are fields of ``SAMPLER_FIELDS`` in force, ``grammar`` of ``GRAMMAR_FIELDS``;
    ``unnamed`` of ``DEFAULTED`` that the request leaves to the server. ``choices`` is n. Before
    output ``min_tokens`` the end tokens of the model and ``stop_ids`` cannot be drawn.
    """

    temperature: float | None
    seed: int | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    reshaped: tuple[str, ...]
    grammar: tuple[str, ...]
    unnamed: tuple[str, ...]
    choices: int
    min_tokens: int
    stop_ids: tuple[int, ...]

    @property
    def greedy(self) -> bool:
        """Zero only: a smaller positive temperature than ``LEAST_TEMPERATURE`` is raised to it
        before the engine looks whether a request is greedy."""
        return self.temperature == 0

    @property
    def divisor(self) -> float:
        """What logits are divided by; 1 for greedy and for a request that names none."""
        if self.temperature is None or self.greedy:
            return 1.0
        return max(self.temperature, LEAST_TEMPERATURE)

    @property
    def sharper(self) -> float:
        """How many times differences between engines grow by the temperature; at least 1."""
        return max(1.0, 1.0 / self.divisor)

    @property
    def cuts(self) -> bool:
        """Some ids are, or may be, taken out of the draw."""
        named = (self.top_k, self.top_p, self.min_p)
        return not self.greedy and any(value is not None for value in named)


def sampling_of(
    request: Mapping[str, Any], defaults: Mapping[str, float] | None = None
) -> Sampling:
    """The sampling of ``request`` on a server that fills in ``defaults``; ``None``: nobody says.

    A value of the wrong type counts as not named: the engine would have refused it.
    """
    if defaults is not None:
        named = {name: value for name, value in request.items() if value is not None}
        request = {**NEUTRAL_DEFAULTS, **_usual(defaults), **named}
    top_k = _integer(request.get("top_k"))
    top_p, min_p = _number(request.get("top_p")), _number(request.get("min_p"))
    seed = _integer(request.get("seed"))
    return Sampling(
        temperature=_number(request.get("temperature")),
        seed=None if seed == -1 else seed,  # the engine takes -1 for no seed
        top_k=top_k if top_k is not None and top_k > 0 else None,
        top_p=top_p if top_p is not None and top_p < 1 else None,
        min_p=min_p if min_p is not None and min_p > 0 else None,
        reshaped=tuple(name for name in SAMPLER_FIELDS if _reshapes(name, request.get(name))),
        grammar=tuple(name for name in GRAMMAR_FIELDS if _masks(name, request.get(name))),
        unnamed=tuple(name for name in DEFAULTED if request.get(name) is None),
        choices=_integer(request.get("n")) or 1,
        min_tokens=max(0, _integer(request.get("min_tokens")) or 0),
        stop_ids=_ids(request.get("stop_token_ids")),
    )


def _usual(defaults: Mapping[str, float]) -> dict[str, float]:
    """``defaults`` that are about drawing, a whole number where the field is one."""
    kept = {name: value for name, value in defaults.items() if name in NEUTRAL_DEFAULTS}
    return {name: int(value) if name == "top_k" else value for name, value in kept.items()}


def _number(value: object) -> float | None:
    """``None`` too for what is not finite, or too large for a float: no engine takes it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(value: object) -> tuple[int, ...]:
    listed = value if isinstance(value, list | tuple) else ()
    return tuple(number for number in map(_integer, listed) if number is not None)


def _reshapes(name: str, value: object) -> bool:
    if value is None or value in ([], {}, ""):
        return False
    return name not in NEUTRAL or value != NEUTRAL[name]


def _masks(name: str, value: object) -> bool:
    if name == "response_format":
        return isinstance(value, dict) and value.get("type") not in (None, "text")
    if name == "tool_choice":
        return isinstance(value, dict) or value == "required"
    return bool(value)
