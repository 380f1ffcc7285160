"""The plugin's response field ``assay``: what the engine would have drawn, and in which mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from assay.claims.assemble import MODES
from assay.claims.claim import Evidence, LogprobsMode
from assay.claims.fields import as_count, as_ids, as_list, as_logprob, as_object, show
from assay.claims.positions import IMPOSSIBLE
from assay.errors import ClaimError

FIELD_VERSION = 1
"""Version of the response field; a change of meaning raises it."""

ModeSource = Literal["explicit", "inferred", "deployment"]
RUNNERS = ("v1", "v2")
SOURCES = ("explicit", "inferred", "deployment")


@dataclass(frozen=True)
class EvidenceReport:
    evidence: Evidence
    logprobs_mode: LogprobsMode
    mode_source: ModeSource
    warnings: tuple[str, ...]


def read_evidence(value: object) -> EvidenceReport:
    """The field ``assay`` of a replay response.

    Raises ClaimError naming the field where it is another version, a list is not as long as the
    others, or a value has the wrong type.
    """
    field = as_object(value, "assay")
    version = field.get("version")
    if version != FIELD_VERSION or isinstance(version, bool):
        raise ClaimError(
            f"version {show(version)} is not known to this assay (it reads {FIELD_VERSION});"
            " use the same version on the server",
            field="assay.version",
        )
    mode = _one_of(field, "logprobs_mode", MODES)
    source = _one_of(field, "mode_source", SOURCES)
    evidence = Evidence(
        runner=cast(Literal["v1", "v2"], _one_of(field, "runner", RUNNERS)),
        drawn=as_ids(field.get("drawn", []), "assay.drawn"),
        rank_raw=as_ids(field.get("rank_raw", []), "assay.rank_raw"),
        rank_processed=as_ids(field.get("rank_processed", []), "assay.rank_processed"),
        logprob_raw=_logprobs(field, "logprob_raw"),
        logprob_processed=_logprobs(field, "logprob_processed"),
        grammar_conflict=as_count(field.get("grammar_conflict"), "assay.grammar_conflict"),
        complete=_flag(field, "complete"),
    )
    _check_lengths(evidence)
    return EvidenceReport(
        evidence, cast(LogprobsMode, mode), cast(ModeSource, source), _warnings(field, evidence)
    )


def _one_of(field: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    value = field.get(name)
    if not isinstance(value, str) or value not in known:
        raise ClaimError(
            f"expected one of {', '.join(known)}, found {show(value)}", field=f"assay.{name}"
        )
    return value


def _flag(field: dict[str, Any], name: str) -> bool:
    value = field.get(name, True)
    if not isinstance(value, bool):
        raise ClaimError(f"expected true or false, found {show(value)}", field=f"assay.{name}")
    return value


def _logprobs(field: dict[str, Any], name: str) -> tuple[float | None, ...]:
    values = as_list(field.get(name, []), f"assay.{name}")
    numbers = (as_logprob(value, f"assay.{name}[{i}]") for i, value in enumerate(values))
    return tuple(None if number == IMPOSSIBLE else number for number in numbers)


def _check_lengths(evidence: Evidence) -> None:
    drawn = len(evidence.drawn)
    for name in ("rank_raw", "rank_processed", "logprob_raw", "logprob_processed"):
        length = len(getattr(evidence, name))
        if length != drawn:
            raise ClaimError(
                f"has {length} entries and assay.drawn has {drawn}", field=f"assay.{name}"
            )


def _warnings(field: dict[str, Any], evidence: Evidence) -> tuple[str, ...]:
    warnings = []
    if field.get("mode_source") == "inferred":
        guess = field.get("inferred")
        about = f" ({show(guess)})" if guess is not None else ""
        warnings.append(
            f"the server guessed the log probability mode{about}; tool and JSON answers mislead"
            " the guess (case 53), name the mode in the request"
        )
    if evidence.grammar_conflict is not None:
        warnings.append(
            f"from position {evidence.grammar_conflict} on the grammar was off: it does not allow"
            " the forced token"
        )
    if not evidence.complete:
        warnings.append("the evidence of the engine is incomplete")
    return tuple(warnings)
