"""The heat strip of a claim: its tokens in order, coloured by their distance."""

from __future__ import annotations

from typing import Any

from assay.claims.claim import Claim
from assay.claims.positions import Position, TokenKey
from assay.report.texts import escaped, shown
from assay.store.result import VerifyResult

SCALE_END = 0.3
"""Distance at which the colour is darkest: the bound of the verdict's ceiling rule."""
_STOPS = ((255, 255, 255), (255, 237, 160), (254, 178, 76), (240, 59, 32), (128, 0, 38))
"""White to dark red through yellow (ColorBrewer YlOrRd), readable in grey as well."""


def gradient() -> str:
    """The scale as a CSS background."""
    return f"linear-gradient(90deg, {', '.join(_css(stop) for stop in _STOPS)})"


def colour(distance: float | None) -> tuple[str, str]:
    """Background and ink for a distance; grey for a position without one.

    The root spreads small distances, where honest and rounded weights differ.
    """
    if distance is None:
        return "#d5dae1", "#1b2330"
    at = (min(max(distance, 0.0), SCALE_END) / SCALE_END) ** 0.5 * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = tuple(
        round(a + (b - a) * (at - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True)
    )
    red, green, blue = mixed
    light = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601 luma
    return _css(mixed), "#1b2330" if light > 140 else "#ffffff"


def _css(rgb: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


def strip_html(result: VerifyResult, key: str, *, is_open: bool) -> str:
    """The strip of one result as a ``details`` element; its tokens point into ``strip_data``."""
    verdict = result.verdict
    mean = "" if verdict.mean_distance is None else f", mean distance {verdict.mean_distance:.4f}"
    tokens = "".join(_token(result, index) for index in range(len(result.claim.positions or ())))
    return (
        f'<details class="strip" id="{escaped(key)}"{" open" if is_open else ""}><summary>'
        f'<span class="badge {verdict.verdict}">{verdict.verdict}</span> '
        f"{escaped(result.label)} <code>{escaped(result.claim.id)}</code>"
        f' <span class="mark">{verdict.positions} tokens{mean}</span>'
        f' <span class="asked">{escaped(question(result.claim))}</span></summary>'
        f'<div class="text" dir="auto" data-strip="{escaped(key)}">{tokens}</div></details>'
    )


def question(claim: Claim, longest: int = 70) -> str:
    """The start of what was asked last, for people to recognise a claim by."""
    users = [m for m in claim.prompt.messages or () if m.get("role") == "user"]
    content = users[-1].get("content") if users else claim.prompt.text
    text = " ".join(content.split()) if isinstance(content, str) else ""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def strip_data(result: VerifyResult) -> list[dict[str, Any]]:
    """What the tooltip shows, one entry for each position of the claim."""
    ours = (result.replay.positions if result.replay is not None else None) or ()
    texts = dict(zip(result.claim.output_ids or (), result.token_texts, strict=False))
    return [
        {
            "i": index,
            "name": _label(position.token, texts),
            "d": _distance(result, index),
            "claim": _top(position, texts),
            "ours": _top(ours[index], texts) if index < len(ours) else [],
        }
        for index, position in enumerate(result.claim.positions or ())
    ]


def _token(result: VerifyResult, index: int) -> str:
    background, ink = colour(_distance(result, index))
    text = result.token_texts[index] if index < len(result.token_texts) else None
    other = " other" if _other_best(result, index) else ""
    positions = result.claim.positions or ()
    if text:
        body = _visible_text(text)
    elif text == "":  # part of a character that a later token completes
        body = '<span class="mark">·</span>'
    else:
        body = f'<span class="id">{_id(positions[index].token)} </span>'
    return (
        f'<span class="t{other}" data-i="{index}" style="background:{background};color:{ink}">'
        f"{body}</span>"
    )


def _visible_text(text: str) -> str:
    """Spaces stay, a newline is marked and then made."""
    return escaped(text).replace("\n", '<span class="mark">⏎</span>\n')


def _id(key: TokenKey) -> str:
    return escaped(f"#{key}" if isinstance(key, int) else bytes_of(key))


def bytes_of(key: str) -> str:
    """The text of a ``text:<hex>`` key."""
    return bytes.fromhex(key.removeprefix("text:")).decode("utf-8", errors="replace")


def _label(key: TokenKey, texts: dict[int, str | None]) -> str:
    """``#id "text"`` where the text is known from any position of the same answer."""
    if isinstance(key, str):
        return repr(shown(bytes_of(key)))
    text = texts.get(key)
    return f"#{key}" if text is None else f"#{key} {shown(text)!r}"


def _top(position: Position, texts: dict[int, str | None]) -> list[list[Any]]:
    return [
        [_label(entry.key, texts), entry.logprob if entry.logprob > float("-inf") else None]
        for entry in position.top
    ]


def _distance(result: VerifyResult, index: int) -> float | None:
    distances = result.verdict.distances
    return distances[index] if index < len(distances) else None


def _other_best(result: VerifyResult, index: int) -> bool:
    """Whether claim and validator disagree about the most likely token of a position."""
    ours = (result.replay.positions if result.replay is not None else None) or ()
    mine = (result.claim.positions or ())[index]
    if index >= len(ours) or not mine.top or not ours[index].top:
        return False
    return _best(mine) != _best(ours[index])


def _best(position: Position) -> TokenKey:
    return max(position.top, key=lambda entry: entry.logprob).key
