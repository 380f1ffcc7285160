"""What an answer says besides its content: reasoning and tool calls, whole or in pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from assay.claims.claim import ToolCall
from assay.claims.fields import as_list, as_object, as_text


@dataclass
class _Pieces:
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass
class Said:
    """Collects the messages or deltas of one answer, in order."""

    reasoning: list[str] = field(default_factory=list)
    _calls: dict[int, _Pieces] = field(default_factory=dict)

    @property
    def reasoning_text(self) -> str | None:
        return "".join(self.reasoning) or None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls by their index in the answer."""
        ordered = [self._calls[index] for index in sorted(self._calls)]
        return tuple(ToolCall(name=c.name, arguments="".join(c.arguments)) for c in ordered)

    def add(self, message: dict[str, Any], path: str) -> bool:
        """Read one message or delta; True when it held anything. Raises ClaimError with its path.

        vLLM writes ``reasoning``, others ``reasoning_content``; some write both, with equal text.
        """
        spoken = False
        for name in ("reasoning", "reasoning_content"):
            if message.get(name) is not None:
                text = as_text(message[name], f"{path}.{name}")
                self.reasoning.append(text)
                spoken = bool(text)
                break
        if message.get("tool_calls") is not None:
            calls = as_list(message["tool_calls"], f"{path}.tool_calls")
            for place, value in enumerate(calls):
                where = f"{path}.tool_calls[{place}]"
                self._add_call(as_object(value, where), place, where)
            spoken = spoken or bool(calls)
        if message.get("function_call") is not None:  # the form before tool_calls
            where = f"{path}.function_call"
            self._add_function(as_object(message["function_call"], where), 0, where)
            spoken = True
        return spoken

    def _add_call(self, call: dict[str, Any], place: int, path: str) -> None:
        index = call.get("index")
        if not isinstance(index, int) or isinstance(index, bool):  # whole answers give none
            index = place
        if call.get("function") is not None:
            where = f"{path}.function"
            self._add_function(as_object(call["function"], where), index, where)

    def _add_function(self, function: dict[str, Any], index: int, path: str) -> None:
        pieces = self._calls.setdefault(index, _Pieces())
        if function.get("name"):
            pieces.name = (pieces.name or "") + as_text(function["name"], f"{path}.name")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some servers send the object itself
            pieces.arguments.append(json.dumps(arguments, ensure_ascii=False))
        elif arguments is not None:
            pieces.arguments.append(as_text(arguments, f"{path}.arguments"))
