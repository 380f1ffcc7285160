"""Calibration profiles: what honest runs of one model look like, as a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from assay.claims.claim import Claim, LogprobsMode, Replay
from assay.errors import ProfileError
from assay.scoring.constants import LADDER, NEGLIGIBLE
from assay.scoring.measure import STATISTICS, Measurement
from assay.scoring.nulls import Null, Sample, rounding_of
from assay.scoring.profile_key import Path, ProfileKey, compare_keys
from assay.scoring.samples import ClaimRecord, Frozen, record_of, table

__all__ = ["Group", "Match", "Null", "Profile", "ProfileKey", "find_profile", "read_profile"]

PROFILE_SCHEMA_VERSION: Final = 1
"""Raised when a field changes meaning; readers refuse versions they do not know."""
ZERO_KNOWLEDGE: Final = "zero-knowledge"
"""Name under which the baseline goes among the attacks."""


class Group(Frozen):
    """Honest claims made and replayed under one set of conditions.

    ``run`` tells runs of equal keys apart that a claim does not name: another load or batch, say.
    A claim fits all of them, and its p-value is the largest of theirs: honest under one run is
    honest.
    """

    key: ProfileKey
    run: str = ""
    records: tuple[ClaimRecord, ...]

    @property
    def positions(self) -> int:
        return sum(record.positions for record in self.records)

    def sample(self, statistic: str) -> Sample:
        """The records that have ``statistic``, as a null holds them."""
        scores, lengths = table(self.records, statistic)
        dtypes = self.key.executor.dtype, self.key.validator.dtype
        scores = np.maximum(scores, NEGLIGIBLE.get(statistic, 0.0))
        return Sample(scores, lengths, rounding_of(statistic, *dtypes))


class Profile(Frozen):
    """Honest runs of one model by one path in one log probability mode.

    ``groups`` differ in the two sides' engines and hardware. ``baseline`` are claims of an executor
    without the model (``scoring/baseline.py``), ``attacks`` what known cheats measure, by name: the
    attack kit fills it, ``scoring/power.py`` reads it. ``parent`` is the id of the whole profile of
    which this is the part that fits a claim.
    """

    schema_version: Literal[1] = PROFILE_SCHEMA_VERSION
    name: str
    path: Path
    mode: LogprobsMode | None = None
    ladder: tuple[int, ...] = LADDER
    groups: tuple[Group, ...] = Field(min_length=1)
    baseline: tuple[ClaimRecord, ...] = ()
    attacks: dict[str, tuple[ClaimRecord, ...]] = Field(default_factory=dict)
    parent: str | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if self.ladder != LADDER:
            raise ValueError(
                "ladder: the profile keeps other lengths than this version of assay; calibrate again"
            )
        for group in self.groups:
            if (group.key.path, group.key.mode) != (self.path, self.mode):
                raise ValueError("groups: every group must have the path and mode of the profile")
        return self

    @cached_property
    def id(self) -> str:
        """Name and digest of the content; that of the whole where this is a part."""
        if self.parent is not None:
            return self.parent
        return f"{self.name}@{hashlib.sha256(self.to_json().encode()).hexdigest()[:12]}"

    @cached_property
    def nulls(self) -> dict[str, Null]:
        """The null of each statistic that every group measured, in the order of STATISTICS."""
        found = {}
        for name in STATISTICS:
            samples = tuple(group.sample(name) for group in self.groups)
            if all(len(sample) for sample in samples):
                found[name] = Null(name, samples)
        return found

    @property
    def claims(self) -> int:
        return sum(len(group.records) for group in self.groups)

    @property
    def positions(self) -> int:
        return sum(group.positions for group in self.groups)

    def conditions(self) -> dict[str, Profile]:
        """The part of each set of conditions (all its runs), by a name for people."""
        found: dict[ProfileKey, list[int]] = {}
        for index, group in enumerate(self.groups):
            found.setdefault(group.key, []).append(index)
        parts: dict[str, Profile] = {}
        for number, (key, which) in enumerate(found.items(), start=1):
            name = key.label()
            parts[name if name not in parts else f"{name} ({number})"] = self._part(tuple(which))
        return parts

    def measured(self, attack: str) -> tuple[ClaimRecord, ...]:
        """The claims of ``attack``; the baseline by the name ``zero-knowledge``.

        Raises ProfileError naming the attacks there are.
        """
        known = dict(self.attacks)
        if self.baseline:
            known[ZERO_KNOWLEDGE] = self.baseline
        if attack not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ProfileError(
                f"attack {attack!r} is not in profile {self.name}; known: {names}. Add it with"
                " `assay calibrate --attack NAME=RESULTS`"
            )
        return known[attack]

    def with_attack(self, name: str, measurements: Iterable[Measurement]) -> Profile:
        """This profile with the measured claims of an attack, in place of earlier ones of ``name``.

        Raises ProfileError for claims of another path or mode, and for none.
        """
        if name == ZERO_KNOWLEDGE:
            raise ProfileError(f"{ZERO_KNOWLEDGE} is the name of the baseline; choose another")
        records = []
        for measurement in measurements:
            if (measurement.path, measurement.mode) != (self.path, self.mode):
                raise ProfileError(
                    f"attack {name}: claim {measurement.claim_id} was measured by path"
                    f" {measurement.path} in mode {measurement.mode}; the profile is for"
                    f" {self.path}, {self.mode}"
                )
            records.append(record_of(measurement))
        if not any(record.series for record in records):
            raise ProfileError(f"attack {name}: no claim with a statistic long enough to keep")
        return self._with(attacks={**self.attacks, name: tuple(records)})

    def merged(self, other: Profile) -> Profile:
        """The honest runs of both. Claims of the same conditions that both hold count once.

        Raises ProfileError where model, path or mode differ.
        """
        for what, ours, theirs in (
            ("path", self.path, other.path),
            ("log probability mode", self.mode, other.mode),
            ("model", _model(self), _model(other)),
        ):
            if ours != theirs:
                raise ProfileError(
                    f"profiles {self.name} and {other.name} are for another {what} ({ours} and"
                    f" {theirs}); a profile never mixes them, keep two files"
                )
        groups = {(group.key, group.run): group for group in self.groups}
        for group in other.groups:
            which = group.key, group.run
            held = groups.get(which)
            groups[which] = group if held is None else _joined(held, group)
        names = dict.fromkeys((*self.attacks, *other.attacks))
        return self._with(
            groups=tuple(groups.values()),
            baseline=_union(self.baseline, other.baseline),
            attacks={n: _union(self.attacks.get(n, ()), other.attacks.get(n, ())) for n in names},
        )

    def for_pair(self, claim: Claim, replay: Replay, *, allow_unknown: bool = False) -> Match:
        """The part of this profile whose conditions are those of the pair, or why there is none."""
        pair = ProfileKey.of(claim, replay)
        fitting: list[int] = []
        unknown: dict[str, None] = {}
        refusals: list[str] = []
        for index, group in enumerate(self.groups):
            difference = compare_keys(group.key, pair)
            if difference.conflicts:
                refusals.append("; ".join(difference.conflicts))
            elif difference.gaps and not allow_unknown:
                refusals.append(f"not known on both sides: {', '.join(difference.gaps)}")
            else:
                fitting.append(index)
                unknown |= dict.fromkeys((*difference.gaps, *difference.unknown))
        if not fitting:
            # The nearest group: that with the fewest words against it.
            return Match(None, f"profile {self.name} does not fit: {min(refusals, key=len)}")
        reason = f"profile {self.name} fits"
        if unknown:
            reason += f", unchecked because unknown: {', '.join(unknown)}"
        return Match(self._part(tuple(fitting)), reason, tuple(unknown))

    def _part(self, which: tuple[int, ...]) -> Profile:
        """This profile with the groups ``which`` alone; the same object each time, so that its nulls are made
        once for all claims and not for each."""
        if which not in self._parts:
            groups = tuple(self.groups[index] for index in which)
            self._parts[which] = self._with(groups=groups, parent=self.id)
        return self._parts[which]

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], Profile]:
        return {}

    def _with(self, **changes: Any) -> Profile:
        """A changed copy, made anew: copying would carry the cached nulls and id along."""
        return Profile(**{name: getattr(self, name) for name in Profile.model_fields} | changes)

    def to_json(self) -> str:
        """The file's content: one JSON object, the same for equal profiles."""
        value = self.model_dump(mode="json", exclude={"parent"})
        return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False) + "\n"

    def write(self, file: File) -> None:
        """Write the profile. Raises ProfileError where that is not possible."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.to_json(), encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"cannot write {file}: {error.strerror}") from error


@dataclass(frozen=True)
class Match:
    """``profile`` is narrowed to the groups that fit, ``None`` where none does. ``unknown`` are the
    fields that could not be compared."""

    profile: Profile | None
    reason: str
    unknown: tuple[str, ...] = ()


def find_profile(
    profiles: Sequence[Profile], claim: Claim, replay: Replay, *, allow_unknown: bool = False
) -> Match:
    """The profile that fits ``claim`` and ``replay``, narrowed to the conditions of the pair.

    A field that differs refuses a profile. So does a field that only the profile or only the pair
    knows, unless ``allow_unknown``: then every group that is not contradicted is taken, and each
    p-value is the largest of theirs. Fields that were not compared are listed in any case. Of
    several that fit, the one with the most honest claims is taken.
    """
    if not profiles:
        return Match(None, "no profile was given")
    found = [profile.for_pair(claim, replay, allow_unknown=allow_unknown) for profile in profiles]
    fitting = [match for match in found if match.profile is not None]
    if not fitting:
        return Match(None, ". ".join(match.reason for match in found))
    return max(fitting, key=lambda match: match.profile.claims if match.profile else 0)


def read_profile(file: File) -> Profile:
    """Read a profile. Raises ProfileError naming the file and what is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise ProfileError(f"cannot read profile {file}: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"profile {file}: not JSON: {error}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != PROFILE_SCHEMA_VERSION:
        raise ProfileError(
            f"profile {file}: schema_version is {version!r} and this version of assay reads"
            f" {PROFILE_SCHEMA_VERSION}; is this a file of `assay calibrate`?"
        )
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"profile {file}: {field}: {first['msg']}") from error


def _model(profile: Profile) -> str | None:
    """The model of a profile, by the validator's own word."""
    side = profile.groups[0].key.validator
    return side.model_digest or side.model


def _joined(one: Group, other: Group) -> Group:
    records = _union(one.records, other.records)
    return Group(key=one.key, run=one.run, records=records)


def _union(one: Sequence[ClaimRecord], other: Sequence[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """Both, each claim once; the later record of a claim counts."""
    return tuple({record.claim: record for record in (*one, *other)}.values())
