"""The plugin's response field ``assay``: what the engine would have drawn, and in which mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from assay.claims.assemble import MODES
from assay.claims.claim import Evidence, LogprobsMode, Tape
from assay.claims.fields import as_count, as_ids, as_list, as_logprob, as_object, show
from assay.claims.positions import IMPOSSIBLE
from assay.errors import ClaimError

FIELD_VERSION = 1
"""Version of the response field; a change of meaning raises it."""

COLUMNS = ("rank_raw", "rank_processed", "logprob_raw", "logprob_processed")
LATER_COLUMNS = ("drawn_raw", "drawn_processed", "noise_drawn", "noise_forced")
"""Lists beside ``drawn``; older plugins send none of the later ones."""

MAX_NOISE = 128.0
"""Bound on |Gumbel noise|: -log of the smallest single precision number is below 104."""

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
        drawn_raw=_logprobs(field, "drawn_raw"),
        drawn_processed=_logprobs(field, "drawn_processed"),
        noise_drawn=_noises(field, "noise_drawn"),
        noise_forced=_noises(field, "noise_forced"),
        tape=read_tape(field.get("tape"), "assay.tape"),
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


def _noises(field: dict[str, Any], name: str) -> tuple[float | None, ...]:
    values = as_list(field.get(name, []), f"assay.{name}")
    return tuple(_noise(value, f"assay.{name}[{i}]") for i, value in enumerate(values))


def _noise(value: object, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"expected a number or null, found {show(value)}", field=path)
    if not -MAX_NOISE <= value <= MAX_NOISE:  # NaN and infinities too
        raise ClaimError(f"{show(value)} is no Gumbel noise a sampler can draw", field=path)
    return float(value)


def read_tape(value: object, path: str) -> Tape | None:
    """What turned a seed into draws, as the plugin writes it; ``None`` where it could not tell.

    Raises ClaimError naming the field for anything else. Unknown keys are ignored: a newer plugin
    may say more.
    """
    if value is None:
        return None
    field = as_object(value, path)
    runner, device = field.get("runner"), field.get("device")
    generation, fp64 = as_count(field.get("generation"), f"{path}.generation"), field.get("fp64")
    if runner not in RUNNERS:
        raise ClaimError(
            f"expected one of {', '.join(RUNNERS)}, found {show(runner)}", field=f"{path}.runner"
        )
    if generation is None:
        raise ClaimError("is missing", field=f"{path}.generation")
    if not isinstance(fp64, bool):
        raise ClaimError(f"expected true or false, found {show(fp64)}", field=f"{path}.fp64")
    if device is not None and not isinstance(device, str):
        raise ClaimError(f"expected text, found {show(device)}", field=f"{path}.device")
    return Tape(
        runner=cast(Literal["v1", "v2"], runner), generation=generation, fp64=fp64, device=device
    )


def _check_lengths(evidence: Evidence) -> None:
    drawn = len(evidence.drawn)
    for name in (*COLUMNS, *LATER_COLUMNS):
        length = len(getattr(evidence, name))
        if length != drawn and (length or name in COLUMNS):
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
