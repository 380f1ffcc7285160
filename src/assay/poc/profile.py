"""A profile for vectors: how far apart honest engines are, pair of hardware by pair of hardware.

The file holds what was measured, one record a pair of recordings, and no threshold: nulls are
derived from the records when a claim is judged (``assay.poc.nulls``). So two profiles merge by
putting their records together, and a null always states how many pairs it rests on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from assay.errors import ClaimError, SettingsError
from assay.poc.artifact_file import ArtifactSet
from assay.poc.constants import MIXTURE_BINS

FORMAT: Literal["assay-poc-profile"] = "assay-poc-profile"
VERSION: Literal[1] = 1
HARDWARE_NAMES = ("hardware", "gpu")
"""Where a file's ``profile`` may name the hardware."""

Count = Annotated[int, Field(ge=0)]
Name = Literal["bulk", "tail", "own"]
LogDistance = Annotated[FiniteFloat, Field(ge=-8, le=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VectorKey(_Frozen):
    """What a null holds for. None: the engine did not say, which is a value of its own."""

    model: str
    seq_len: int | None = None
    k_dim: Annotated[int, Field(ge=1)]
    poc_stronger_rng: bool = False
    engine_version: str | None = None
    runner: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    architecture: str | None = None

    @property
    def words(self) -> str:
        """For a person: the fields that are known."""
        known = self.model_dump(exclude_none=True, exclude_defaults=True)
        return ", ".join(f"{name} {value}" for name, value in known.items())


class Statistic(_Frozen):
    """``value`` over ``n`` nonces; ``variance_n`` is n times its sampling variance over nonces."""

    value: FiniteFloat
    variance_n: Annotated[FiniteFloat, Field(ge=0)]
    n: Annotated[int, Field(ge=1)]


class Baseline(_Frozen):
    """The forger without a model on the same nonces: what the same statistics say of it."""

    n: Annotated[int, Field(ge=1)]
    mean_distance: Annotated[FiniteFloat, Field(ge=0, le=2)]
    bulk: FiniteFloat
    tail: FiniteFloat


class PairRecord(_Frozen):
    """Two honest recordings of one challenge, the one with the lesser hardware name first.

    ``sets`` are the digests of the two.
    """

    key: VectorKey
    hardware: tuple[str, str]
    sets: tuple[str, str]
    n: Count
    identical: Annotated[FiniteFloat, Field(ge=0, le=1)]
    statistics: dict[Name, Statistic]
    log_quantiles: Annotated[
        tuple[LogDistance, ...], Field(min_length=MIXTURE_BINS + 1, max_length=MIXTURE_BINS + 1)
    ]
    zero_knowledge: Baseline | None = None

    @property
    def informative(self) -> bool:
        """Whether the two differ at all. Bit-equal engines say nothing about ones that are not."""
        return self.identical < 0.5


class Profile(_Frozen):
    """``records`` in a fixed order, each pair of recordings once."""

    format: Literal["assay-poc-profile"] = FORMAT
    version: Literal[1] = VERSION
    records: tuple[PairRecord, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def merge(profiles: Iterable[Profile]) -> Profile:
    """One profile of all records. The same pair of recordings twice counts once.

    Raises SettingsError when two profiles say different things of one pair.
    """
    return from_records(record for profile in profiles for record in profile.records)


def from_records(records: Iterable[PairRecord]) -> Profile:
    """A profile of ``records``, ordered and without repeats. Raises SettingsError as ``merge``."""
    kept: dict[tuple[VectorKey, tuple[str, str], tuple[str, str]], PairRecord] = {}
    for record in records:
        # Bit-equal recordings of one kind of hardware have one digest and count once.
        name = (record.key, record.hardware, record.sets)
        if kept.setdefault(name, record) != record:
            raise SettingsError(
                f"profile: the recordings {record.sets[0]} and {record.sets[1]} are there twice "
                "with different results; make one of the profiles again"
            )
    order = sorted(kept, key=lambda name: (name[0].model_dump_json(), *name[1:]))
    return Profile(records=tuple(kept[name] for name in order))


def write_profile(profile: Profile, path: Path) -> None:
    """As JSON. Raises SettingsError when the file cannot be written."""
    try:
        path.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"profile {path}: cannot be written: {error}") from error


def parse_profile(body: object, name: str) -> Profile:
    """A profile from parsed JSON. Raises SettingsError naming the field."""
    if isinstance(body, dict) and body.get("version") != VERSION:
        raise SettingsError(
            f"profile {name}: version {body.get('version')!r}; this software reads {VERSION}"
        )
    try:
        # Through JSON, where lists stand for tuples.
        profile = Profile.model_validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"profile {name}: {place}: {first['msg']}") from error
    return from_records(profile.records)


def is_vector_profile(body: object) -> bool:
    """Whether parsed JSON says it is such a profile, and not three published thresholds."""
    return isinstance(body, dict) and body.get("format") == FORMAT


def key_of(vectors: ArtifactSet, model: str | None = None) -> VectorKey:
    """The key of a set by what its file says. Raises ClaimError when no model is named.

    ``model`` stands in for a file that names none.
    """
    challenge, said = vectors.challenge, vectors.profile
    name = challenge.model or model
    if name is None:
        raise ClaimError(
            f"{vectors.name or 'the set'} names no model, and a null holds for one model only",
            field="model",
        )
    return VectorKey(
        model=name,
        seq_len=challenge.seq_len,
        k_dim=challenge.k,
        poc_stronger_rng=bool(challenge.poc_stronger_rng),
        architecture=_architecture(said),
        **{
            field: _text(said, field)
            for field in (
                "engine_version",
                "runner",
                "dtype",
                "kv_cache_dtype",
                "attention_backend",
            )
        },
    )


def hardware_of(vectors: ArtifactSet) -> str | None:
    """The hardware a set's file names."""
    return next((text for name in HARDWARE_NAMES if (text := _text(vectors.profile, name))), None)


def width_of(vectors: ArtifactSet) -> int | None:
    """The model's hidden_size, where the file or the engine's profile in it names one."""
    said = vectors.profile.get("hidden_size")
    known = isinstance(said, int) and not isinstance(said, bool) and said >= vectors.challenge.k
    return vectors.hidden_size or (said if known else None)


def set_digest(vectors: ArtifactSet) -> str:
    """Short SHA-256 of the challenge and every vector, whatever their order."""
    digest = hashlib.sha256()
    challenge = vectors.challenge
    digest.update(f"{challenge.block_hash}\0{challenge.public_key}\0{challenge.k}".encode())
    for nonce in sorted(vectors.vectors):
        digest.update(nonce.to_bytes(8, "little"))
        digest.update(np.asarray(vectors.vectors[nonce], dtype="<f4").tobytes())
    return digest.hexdigest()[:16]


def _architecture(said: Any) -> str | None:
    """Layers and widths, from the fields an engine's profile has."""
    names = ("n_layers", "hidden_size", "vocab_size")
    known = [_text(said, name) for name in names]
    if None in known:
        return None
    return ", ".join(f"{name} {value}" for name, value in zip(names, known, strict=True))


def _text(said: Any, field: str) -> str | None:
    value = said.get(field)
    return None if value is None or value == "" else str(value)
