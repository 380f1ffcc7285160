"""Readers of one JSON answer of ``/v1/chat/completions`` or ``/v1/completions``."""

from __future__ import annotations

from typing import Any, Literal

from assay.claims.assemble import RawResponse, build_claim, read_output
from assay.claims.claim import Claim, EngineIdentity, Replay, Usage
from assay.claims.entries import RawPosition, read_columns, read_content
from assay.claims.evidence import read_evidence
from assay.claims.fields import as_count, as_ids, as_list, as_object, as_text
from assay.claims.read_message import Said
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError

Body = bytes | str | dict[str, Any]
Path = Literal["decode", "prefill", "file"]


def read_response(body: Body, request: dict[str, Any] | None = None) -> Claim:
    """The claim in a response body, which may be JSON text or already parsed.

    ``request`` is the body the origin sent; every field of it but ``stream`` and
    ``stream_options`` is kept.

    Raises ClaimError with a JSON path; its code is ``not_json``, ``malformed``, ``position_gap``,
    ``no_token_ids``, ``several_choices`` or ``error_response``.
    """
    return build_claim(read_body(body), request)


def read_replay(body: Body, path: Path = "decode") -> Replay:
    """What a validator's engine answered, with the plugin's evidence where the body has it.

    ``path`` says how the replay was made. Raises ClaimError as ``read_response`` does.
    """
    return build_replay(read_body(body), path)


def build_replay(raw: RawResponse, path: Path) -> Replay:
    """The replay in an answer that has been read, JSON or stream."""
    output = read_output(raw)
    report = read_evidence(raw.assay) if raw.assay is not None else None
    if report is not None:
        raw.warnings.extend(report.warnings)
    return Replay(
        id=raw.id or "unnamed",
        path=path,
        prompt_token_ids=raw.prompt_token_ids or None,
        positions=output.positions,
        finish_reason=raw.finish_reason,
        usage=raw.usage,
        logprobs_mode=None if report is None else report.logprobs_mode,
        mode_source=None if report is None else report.mode_source,
        evidence=None if report is None else report.evidence,
        engine=EngineIdentity(
            model=raw.model,
            system_fingerprint=raw.system_fingerprint,
            runner=None if report is None else report.evidence.runner,
        ),
        warnings=tuple(raw.warnings),
    )


def read_body(body: Body) -> RawResponse:
    """The parts of a response body; see ``RawResponse``."""
    value = as_object(body if isinstance(body, dict) else parse_json(body), "body")
    refuse_error(value)
    choice = the_choice(value)
    raw = RawResponse(endpoint="chat" if "message" in choice else "completions")
    read_head(raw, value)
    if raw.endpoint == "chat":
        message, said = as_object(choice["message"], "choices[0].message"), Said()
        said.add(message, "choices[0].message")
        raw.text = optional_text(message.get("content"), "choices[0].message.content")
        raw.reasoning, raw.tool_calls = said.reasoning_text, said.tool_calls
    else:
        raw.text = optional_text(choice.get("text"), "choices[0].text")
    raw.finish_reason = optional_text(choice.get("finish_reason"), "choices[0].finish_reason")
    raw.content_path, raw.content = read_logprobs(choice.get("logprobs"), "choices[0].logprobs")
    if choice.get("token_ids") is not None:
        raw.token_ids = as_ids(choice["token_ids"], "choices[0].token_ids")
    prompt = value.get("prompt_token_ids")
    if prompt is None:
        prompt = choice.get("prompt_token_ids")
    if prompt is not None:
        raw.prompt_token_ids = as_ids(prompt, "prompt_token_ids")
    raw.usage = read_usage(value.get("usage"))
    return raw


def refuse_error(value: dict[str, Any]) -> None:
    """Raise ClaimError ``error_response`` for an error object, also one inside a 200 answer."""
    error = value.get("error")
    if error is None and value.get("object") != "error":
        return
    source = error if isinstance(error, dict) else value
    message = source.get("message", error)
    raise ClaimError(
        f"the server answered with an error: {str(message)[:500]}", code="error_response"
    )


def the_choice(value: dict[str, Any]) -> dict[str, Any]:
    choices = as_list(value.get("choices"), "choices")
    if len(choices) != 1:
        raise ClaimError(
            f"expected exactly one choice, found {len(choices)}; record with n=1",
            code="several_choices" if len(choices) > 1 else "malformed",
            field="choices",
        )
    choice = as_object(choices[0], "choices[0]")
    check_index(choice, "choices[0]")
    if "message" not in choice and "text" not in choice:
        raise ClaimError(
            "has neither `message` nor `text`: not an answer of /v1/chat/completions or"
            " /v1/completions",
            field="choices[0]",
        )
    return choice


def check_index(choice: dict[str, Any], path: str) -> None:
    index = choice.get("index", 0)
    if index not in (0, None) or isinstance(index, bool):
        raise ClaimError(
            f"expected choice 0, found {index!r}; record with n=1",
            code="several_choices",
            field=f"{path}.index",
        )


def read_head(raw: RawResponse, value: dict[str, Any]) -> None:
    """Fill in what every body and every chunk repeats."""
    raw.id = optional_text(value.get("id"), "id") or raw.id
    raw.model = optional_text(value.get("model"), "model") or raw.model
    raw.system_fingerprint = (
        optional_text(value.get("system_fingerprint"), "system_fingerprint")
        or raw.system_fingerprint
    )
    if value.get("assay") is not None:
        raw.assay = value["assay"]


def optional_text(value: object, path: str) -> str | None:
    return None if value is None else as_text(value, path)


def read_logprobs(value: object, path: str) -> tuple[str, list[RawPosition] | None]:
    """Where the positions stand, and the positions; ``None`` where there are none."""
    if value is None:
        return f"{path}", None
    logprobs = as_object(value, path)
    if "tokens" in logprobs:
        return f"{path}.tokens", read_columns(logprobs, path)
    content = logprobs.get("content")
    where = f"{path}.content"
    return where, None if content is None else read_content(content, where)


def read_usage(value: object) -> Usage:
    if value is None:
        return Usage()
    usage = as_object(value, "usage")
    return Usage(
        prompt_tokens=as_count(usage.get("prompt_tokens"), "usage.prompt_tokens"),
        completion_tokens=as_count(usage.get("completion_tokens"), "usage.completion_tokens"),
        total_tokens=as_count(usage.get("total_tokens"), "usage.total_tokens"),
    )
