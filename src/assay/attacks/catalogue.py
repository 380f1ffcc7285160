"""What a cheating executor can do, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from assay.attacks import constants
from assay.attacks.models import Weights
from assay.claims.claim import LogprobsMode
from assay.errors import SettingsError

Edit = Literal["none", "replace-token", "truncate", "inflate", "copy", "launder", "disguise"]
Channel = Literal["value", "choice", "account"]


@dataclass(frozen=True)
class Executor:
    """A server to ask. Equal executors are one server, started once."""

    weights: Weights = "full"
    dtype: Literal["float32", "bfloat16"] = "float32"
    kv_cache: Literal["auto", "fp8"] = "auto"

    @property
    def name(self) -> str:
        """A name for files and logs."""
        return f"{self.weights}-{self.dtype}-kv-{self.kv_cache}"

    def flags(self) -> list[str]:
        """Flags of ``vllm serve``."""
        return ["--dtype", self.dtype, "--kv-cache-dtype", self.kv_cache]


REAL = Executor()
"""The real model as it should run; also the validator's."""


@dataclass(frozen=True)
class Run:
    """Answers of one executor.

    ``runs`` are request fields the executor uses in place of the claimed ones, ``claims`` fields
    the client asked for beside the usual ones. ``system`` is a system prompt the executor puts
    in front and does not mention. ``batch`` requests are in flight at once. ``free`` answers end
    where the model ends them; the others have exactly the asked number of tokens.
    """

    name: str
    executor: Executor = REAL
    runs: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    batch: int = constants.EXECUTOR_BATCH
    mode: LogprobsMode = "raw_logprobs"
    free: bool = False
    seed_shift: int = 0
    """Added to the executor's seed; the claim names the seed the client asked for."""
    first_seed: int = constants.FIRST_SEED


@dataclass(frozen=True)
class Attack:
    """``base`` is what was really run, ``edit`` what is done to the claim afterwards.

    ``shows_in`` are the channels in which the attack is expected to show; ``honest`` names the
    honest run its claims are compared with (same mode, same kind of end).
    """

    name: str
    what: str
    base: Run
    edit: Edit = "none"
    shows_in: tuple[Channel, ...] = ("value", "choice")
    honest: str = "honest"


HONEST = Run("honest")
BFLOAT16 = Run(
    "honest-bfloat16", Executor(dtype="bfloat16"), first_seed=constants.FIRST_SEED + 20_000
)
HONEST_RUNS: tuple[Run, ...] = (
    HONEST,
    Run("honest-alone", batch=1, first_seed=constants.FIRST_SEED + 10_000),
    BFLOAT16,
    Run("honest-processed", mode="processed_logprobs"),
    Run("honest-free", free=True),
)
"""Conditions under which nobody cheats; the first is the one attacks are compared with."""

_INT8, _INT4 = Run("int8", Executor("int8")), Run("int4", Executor("int4"))
_SYSTEM = Run("system", system=constants.HIDDEN_SYSTEM_PROMPT)
_COLDER = {"temperature": constants.WRONG_TEMPERATURE}
_NARROWER = {"top_p": constants.WRONG_TOP_P}
_PROCESSED: LogprobsMode = "processed_logprobs"

ATTACKS: tuple[Attack, ...] = (
    Attack("int8", "weights rounded to int8, one scale a row", _INT8),
    Attack("fp8", "weights rounded to fp8 e4m3, one scale a row", Run("fp8", Executor("fp8"))),
    Attack("int4", "weights rounded to int4, groups of 32", _INT4),
    Attack(
        "kv-fp8",
        "the engine's own fp8 KV cache, full weights",
        Run("kv-fp8", Executor(kv_cache="fp8")),
    ),
    Attack(
        "fewer-layers",
        f"{constants.DROPPED_LAYERS} of the layers left out",
        Run("fewer-layers", Executor("fewer-layers")),
    ),
    Attack(
        "wrong-seed",
        "another seed than the client asked for",
        Run("wrong-seed", seed_shift=constants.WRONG_SEED_BY),
        shows_in=("choice",),
    ),
    Attack(
        "temperature",
        f"temperature {constants.WRONG_TEMPERATURE:g} in place of {constants.TEMPERATURE:g}",
        Run("temperature", runs=_COLDER),
        shows_in=("choice",),
    ),
    Attack(
        "temperature-processed",
        "the same, claimed with processed log probabilities",
        Run("temperature-processed", runs=_COLDER, mode=_PROCESSED),
        honest="honest-processed",
    ),
    Attack(
        "top-p",
        f"top-p {constants.WRONG_TOP_P:g} in place of {constants.TOP_P:g}",
        Run("top-p", runs=_NARROWER),
        shows_in=("choice",),
    ),
    Attack(
        "top-p-processed",
        "the same, claimed with processed log probabilities",
        Run("top-p-processed", runs=_NARROWER, mode=_PROCESSED),
        honest="honest-processed",
    ),
    Attack("system-prompt", "a system prompt the claim does not mention", _SYSTEM),
    Attack(
        "one-token",
        "one token of an honest answer replaced by the most likely other one",
        HONEST,
        "replace-token",
    ),
    Attack(
        "truncated",
        "an honest answer cut in half and called finished",
        Run("honest-free", free=True),
        "truncate",
        shows_in=("account",),
        honest="honest-free",
    ),
    Attack(
        "inflated",
        f"{constants.INFLATED_BY} more tokens billed than made",
        HONEST,
        "inflate",
        shows_in=("account",),
    ),
    Attack("copied", "the honest answer to another prompt", HONEST, "copy"),
    Attack(
        "int8-as-bfloat16",
        "int8 weights, said to be a bfloat16 engine, whose honest noise is wider",
        _INT8,
        "disguise",
        honest="honest-bfloat16",
    ),
    Attack(
        "laundered-int4",
        "written with int4 weights, log probabilities by the real model",
        _INT4,
        "launder",
        shows_in=("choice",),
    ),
    Attack(
        "laundered-int8",
        "written with int8 weights, log probabilities by the real model",
        _INT8,
        "launder",
        shows_in=("choice",),
    ),
    Attack(
        "laundered-system-prompt",
        "written under a hidden system prompt, log probabilities without it",
        _SYSTEM,
        "launder",
        shows_in=("choice",),
    ),
)


def attack(name: str) -> Attack:
    """The attack of that name; SettingsError with the known ones."""
    found = {one.name: one for one in ATTACKS}.get(name)
    if found is None:
        raise SettingsError(
            f"no attack is called {name!r}; one of {', '.join(a.name for a in ATTACKS)}"
        )
    return found
