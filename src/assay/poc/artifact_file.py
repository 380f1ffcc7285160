"""Files of PoC vectors: a challenge and one vector a nonce."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import ClaimError
from assay.poc.artifacts import decode_vector
from assay.poc.constants import K_DIM, UINT32_RANGE

Vector = npt.NDArray[np.floating]

# A file that holds both spellings of its vectors must mean the same by them: float16 of a number
# below 1 is off by at most 2^-12.
_SAME_VECTOR = 1e-3


@dataclass(frozen=True)
class Challenge:
    """What the vectors were made for; equal challenges are comparable. None: the file is silent."""

    block_hash: str
    public_key: str
    k: int = K_DIM
    seq_len: int | None = None
    model: str | None = None
    poc_stronger_rng: bool | None = None


@dataclass(frozen=True)
class ArtifactSet:
    """Vectors of one challenge, in the file's order.

    A vector keeps the length and the NaNs the file gave it: the verdict counts those as
    mismatches. ``profile`` describes the engine that made them, as far as the file says.
    """

    challenge: Challenge
    vectors: Mapping[int, Vector]
    name: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)
    hidden_size: int | None = None


def read_artifact_file(
    path: Path, *, block_hash: str | None = None, public_key: str | None = None
) -> ArtifactSet:
    """Read ``{block_hash, public_key, artifacts: [{nonce, vector_b64}], ...}``.

    ``nonces`` with ``vectors`` (lists of numbers) in place of ``artifacts`` is read too.
    ``block_hash`` and ``public_key`` stand in for a file that does not name its own, and are
    ignored otherwise. Raises ClaimError with the field: not JSON, no challenge, a nonce twice or
    out of range, base64 that is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClaimError(f"{path}: cannot be read: {error}", code="unreadable") from error
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClaimError(
            f"{path}: not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from error
    except RecursionError as error:
        raise ClaimError(f"{path}: not JSON of vectors: nested too deep") from error
    known = {"block_hash": block_hash, "public_key": public_key}
    stand_in = {name: value for name, value in known.items() if value is not None}
    try:
        return artifact_set(body, name=path.name, stand_in=stand_in)
    except ClaimError as error:
        raise ClaimError(f"{path}: {error}", code=error.code) from error


def artifact_set(
    body: object, *, name: str = "", stand_in: Mapping[str, str] | None = None
) -> ArtifactSet:
    """``read_artifact_file`` for JSON that is already parsed."""
    if not isinstance(body, dict):
        raise ClaimError("a JSON object with block_hash, public_key and artifacts is needed")
    body = {**(stand_in or {}), **body}
    k = _k_dim(body)
    challenge = Challenge(
        block_hash=_text(body, "block_hash"),
        public_key=_text(body, "public_key"),
        k=k,
        seq_len=_integer(body, "seq_len", least=1),
        model=_text(body, "model") if body.get("model") is not None else None,
        poc_stronger_rng=_flag(body, "poc_stronger_rng"),
    )
    profile = body.get("profile") or {}
    if not isinstance(profile, dict):
        raise ClaimError("an object is needed", field="profile")
    return ArtifactSet(
        challenge=challenge,
        vectors=_vectors(body),
        name=name,
        profile=profile,
        hidden_size=_integer(body, "hidden_size", least=1),
    )


def _vectors(body: dict[str, Any]) -> dict[int, Vector]:
    if "artifacts" not in body and "vectors" not in body:
        raise ClaimError("missing; a list of {nonce, vector_b64} is needed", field="artifacts")
    plain = _collect(_plain_vectors(body)) if "vectors" in body else None
    if "artifacts" not in body:
        return plain or {}
    packed = _collect(_packed_vectors(body["artifacts"]))
    if plain is not None:
        _check_agree(packed, plain)
    return packed


def _packed_vectors(artifacts: object) -> Iterator[tuple[str, object, Vector]]:
    if not isinstance(artifacts, list):
        raise ClaimError("a list of {nonce, vector_b64} is needed", field="artifacts")
    for index, entry in enumerate(artifacts):
        place = f"artifacts[{index}]"
        if not isinstance(entry, dict) or "nonce" not in entry or "vector_b64" not in entry:
            raise ClaimError("an object with nonce and vector_b64 is needed", field=place)
        try:
            vector = decode_vector(entry["vector_b64"])
        except ClaimError as error:
            raise ClaimError(f"{place}.{error}", code=error.code) from error
        yield place, entry["nonce"], vector


def _plain_vectors(body: dict[str, Any]) -> Iterator[tuple[str, object, Vector]]:
    vectors, nonces = body["vectors"], body.get("nonces")
    if not isinstance(vectors, list) or not isinstance(nonces, list):
        raise ClaimError("lists of numbers, with a list of nonces, are needed", field="vectors")
    if len(vectors) != len(nonces):
        raise ClaimError(f"{len(vectors)} vectors for {len(nonces)} nonces", field="vectors")
    for index, (nonce, values) in enumerate(zip(nonces, vectors, strict=True)):
        place = f"vectors[{index}]"
        if not isinstance(values, list) or not all(_is_value(value) for value in values):
            raise ClaimError("a list of numbers is needed", field=place)
        # null is how JSON writers spell NaN.
        yield place, nonce, np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _collect(entries: Iterator[tuple[str, object, Vector]]) -> dict[int, Vector]:
    collected: dict[int, Vector] = {}
    places: dict[int, str] = {}
    for place, nonce, vector in entries:
        if isinstance(nonce, bool) or not isinstance(nonce, int) or not 0 <= nonce < UINT32_RANGE:
            raise ClaimError(
                f"{nonce!r} is not an integer of 0..2^32-1",
                code="bad_nonce",
                field=f"{place}.nonce",
            )
        if nonce in places:
            raise ClaimError(
                f"nonce {nonce} was given by {places[nonce]} already; each nonce counts once",
                code="duplicate_nonce",
                field=place,
            )
        places[nonce] = place
        collected[nonce] = vector
    return collected


def _check_agree(packed: dict[int, Vector], plain: dict[int, Vector]) -> None:
    if set(packed) != set(plain):
        raise ClaimError("artifacts and vectors are of different nonces", field="vectors")
    for nonce, vector in packed.items():
        same = vector.shape == plain[nonce].shape and np.allclose(
            vector, plain[nonce], rtol=0, atol=_SAME_VECTOR, equal_nan=True
        )
        if not same:
            raise ClaimError(
                f"nonce {nonce} differs between artifacts and vectors", field="vectors"
            )


def _k_dim(body: dict[str, Any]) -> int:
    encoding = body.get("encoding") or {}
    if not isinstance(encoding, dict):
        raise ClaimError("an object is needed", field="encoding")
    for name, only in (("dtype", "f16"), ("endian", "le")):
        if encoding.get(name, only) != only:
            raise ClaimError(
                f"{encoding[name]!r} is unknown; only {only!r}", field=f"encoding.{name}"
            )
    top, inner = _integer(body, "k_dim", least=1), _integer(encoding, "k_dim", least=1)
    if top is not None and inner is not None and top != inner:
        raise ClaimError(f"{top}, but encoding.k_dim is {inner}", field="k_dim")
    return top or inner or K_DIM


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ClaimError("missing or no string; it is part of the challenge", field=name)
    return value


def _integer(body: dict[str, Any], name: str, *, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ClaimError(f"{value!r} is not an integer of {least} or more", field=name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ClaimError(f"{value!r} is not true or false", field=name)
    return value


def _is_value(value: object) -> bool:
    """A number that float64 holds (JSON integers have no bound), or the null of a NaN."""
    if value is None or isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
