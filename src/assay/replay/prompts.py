"""Prompts to record: OpenAI bodies, ``{"messages"}``, ``{"prompt"}`` or plain lines of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.claims.claim import Endpoint
from assay.errors import SettingsError


@dataclass(frozen=True)
class PromptLine:
    """One request to make. ``line`` counts from 1; ``body`` is OpenAI's, perhaps incomplete."""

    line: int
    endpoint: Endpoint
    body: dict[str, Any]


def read_prompts(path: Path) -> list[PromptLine]:
    """The prompts of a file, in order; blank lines are skipped.

    A line that starts with ``{`` must be a JSON object with ``messages`` or ``prompt``; any other
    line is the text of a user message. Raises SettingsError naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read prompts from {path}: {error}") from error
    lines = [
        _read_line(path, number, line.strip())
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise SettingsError(f"{path} holds no prompts; write one JSON object or one text a line")
    return lines


def _read_line(path: Path, number: int, line: str) -> PromptLine:
    if not line.startswith("{"):
        return PromptLine(number, "chat", {"messages": [{"role": "user", "content": line}]})
    try:
        body = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{path}, line {number}: not JSON: {error}") from error
    if isinstance(body, dict) and "body" in body and isinstance(body["body"], dict):
        body = body["body"]  # OpenAI's batch file format wraps the body
    has_messages, has_prompt = "messages" in body, "prompt" in body
    if has_messages == has_prompt:
        raise SettingsError(
            f"{path}, line {number}: expected exactly one of `messages` and `prompt`"
        )
    return PromptLine(number, "chat" if has_messages else "completions", body)
