"""Hostile text made safe to show. Claims are written by the party under suspicion."""

from __future__ import annotations

import html
import json
import unicodedata
from typing import Any


def shown(text: str) -> str:
    """``text`` with every character that could hide or reorder others spelled out.

    Bidirectional overrides, zero-width and control characters become ``\\u202e`` and the like;
    newlines and tabs stay.
    """
    return "".join(c if _visible(c) else f"\\u{ord(c):04x}" for c in text)


def _visible(character: str) -> bool:
    if character in "\n\t":
        return True
    # Cc control, Cf format (bidi marks, zero width), Cs surrogates, Co private use
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co")


def escaped(text: object) -> str:
    """Safe as HTML text and inside a double-quoted attribute."""
    return html.escape(shown(str(text)), quote=True)


def script_json(value: Any) -> str:
    """JSON that cannot leave a script element whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
