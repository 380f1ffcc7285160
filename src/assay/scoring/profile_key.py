"""Under what conditions honest runs were made: the key of a profile's groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from assay.claims.claim import Claim, EngineIdentity, LogprobsMode, Replay

Path = Literal["decode", "prefill", "file"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Side(_Frozen):
    """One side's engine; ``None`` where nobody said. ``model`` is the last part of the name, since
    servers name one model by its folder, its repository or an alias."""

    model: str | None = None
    model_digest: str | None = None
    engine_version: str | None = None
    runner: Literal["v1", "v2"] | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    hardware: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None

    @classmethod
    def of(cls, engine: EngineIdentity, model: str | None = None) -> Side:
        """The side that ``engine`` describes; ``model`` is its name where the engine has none."""
        name = engine.model or model
        known = engine.model_dump(include=set(cls.model_fields) - {"model"})
        return cls(model=None if name is None else name.rstrip("/").rsplit("/", 1)[-1], **known)


class ProfileKey(_Frozen):
    """The conditions of one pair of runs: executor's engine, validator's engine, path and mode.

    The executor's side is what it says of itself. That is no proof: it names what the executor
    claims to be, and the verdict tells whether its numbers are those of such an engine.
    """

    path: Path
    mode: LogprobsMode | None = None
    executor: Side = Side()
    validator: Side = Side()
    alternatives: int | None = None
    """How many a position the request asked for, where it says. Distances over one or two differ
    from those over twenty: honest claims of another number look like no honest claims."""

    @classmethod
    def of(cls, claim: Claim, replay: Replay) -> ProfileKey:
        asked = claim.request.get("model")
        k = claim.request.get("top_logprobs" if claim.endpoint == "chat" else "logprobs")
        return cls(
            path=replay.path,
            mode=replay.logprobs_mode or claim.logprobs_mode,
            executor=Side.of(claim.engine, asked if isinstance(asked, str) else None),
            validator=Side.of(replay.engine),
            alternatives=k if isinstance(k, int) and not isinstance(k, bool) else None,
        )

    def label(self) -> str:
        """For people: what differs most often between groups."""
        return f"{_label(self.executor)} replayed on {_label(self.validator)}, {self.path}"


def _label(side: Side) -> str:
    parts = [side.hardware or "unknown hardware", side.runner, side.dtype]
    if (side.tensor_parallel_size or 1) > 1:
        parts.append(f"TP {side.tensor_parallel_size}")
    return " ".join(part for part in parts if part)


WORDS: Final = {
    "model": "model",
    "engine_version": "engine version",
    "runner": "runner",
    "dtype": "dtype",
    "kv_cache_dtype": "KV cache dtype",
    "attention_backend": "attention backend",
    "hardware": "hardware",
    "tensor_parallel_size": "tensor parallel size",
    "pipeline_parallel_size": "pipeline parallel size",
}


@dataclass(frozen=True)
class Difference:
    """``conflicts``: fields that both know and that differ, in words. ``gaps``: fields that the
    profile knows and the pair does not, or the other way. ``unknown``: fields that neither knows."""

    conflicts: tuple[str, ...]
    gaps: tuple[str, ...]
    unknown: tuple[str, ...]


def compare_keys(profile: ProfileKey, pair: ProfileKey) -> Difference:
    """What stands between the conditions of a profile and those of a claim with its replay."""
    conflicts: list[str] = []
    gaps: list[str] = []
    unknown: list[str] = []

    def look(name: str, ours: object, theirs: object) -> None:
        if ours is None and theirs is None:
            unknown.append(name)
        elif ours is None or theirs is None:
            gaps.append(name)
        elif ours != theirs:
            conflicts.append(f"{name} is {theirs}, the profile's {ours}")

    # Not a gap where one side does not say: older profiles do not.
    if None not in (profile.alternatives, pair.alternatives):
        look("number of alternatives a position", profile.alternatives, pair.alternatives)
    look("path", profile.path, pair.path)
    look("log probability mode", profile.mode, pair.mode)
    for who in ("executor", "validator"):
        ours, theirs = getattr(profile, who), getattr(pair, who)
        for field, words in WORDS.items():
            # Digests are exact; names only stand in for them where one side has none.
            by_digest = field == "model" and ours.model_digest and theirs.model_digest
            name = "model_digest" if by_digest else field
            look(f"the {who}'s {words}", getattr(ours, name), getattr(theirs, name))
    return Difference(tuple(conflicts), tuple(gaps), tuple(unknown))
