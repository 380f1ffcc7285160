"""Guessing the log probability mode of an old claim that names none.

``python -m assay.claims.mode_inference FOLDER`` measures the rule on recorded answers whose mode
is known from a ``meta.json`` beside them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.claims.positions import Position
from assay.claims.read_json import read_response
from assay.errors import ClaimError

LOW_ID_BOUND = 4
"""Ids 0 to 3: what vLLM fills empty top-k slots with, at -9999 (spec replay, section 1)."""
LOW_ID_SHARE = 0.10
"""More low ids than this share mean padding, hence a sampler that cut the distribution."""
MIN_ENTRIES = 10
"""Below this the rule says nothing. All three numbers are those of the servers that made old
claims; changing one changes how those claims are read."""

RequestMode = Literal["raw_logprobs", "processed_logprobs"]


@dataclass(frozen=True)
class ModeGuess:
    """``mode`` is ``None`` with fewer than ten entries to judge by; ``ratio`` is the share of low
    ids among ``entries``."""

    mode: RequestMode | None
    ratio: float
    entries: int


def infer_mode(top_ids: Sequence[int]) -> ModeGuess:
    """Share of top ids below 4 above 10 % of at least 10 entries = processed, else raw.

    ``top_ids`` are the alternatives of all positions in one list. Source: spec replay, section 1.
    The rule misjudges raw answers full of low ids (JSON, tools: case 53) and processed answers
    without padding (one alternative a position), so a guess is always reported as one.
    """
    entries = len(top_ids)
    ratio = sum(1 for token in top_ids if token < LOW_ID_BOUND) / entries if entries else 0.0
    if entries < MIN_ENTRIES:
        return ModeGuess(None, ratio, entries)
    return ModeGuess(
        "processed_logprobs" if ratio > LOW_ID_SHARE else "raw_logprobs", ratio, entries
    )


def top_ids(positions: Sequence[Position]) -> list[int]:
    """The alternatives' ids of all positions; empty for positions spelled in text."""
    return [e.key for position in positions for e in position.top if isinstance(e.key, int)]


@dataclass(frozen=True)
class Measured:
    """One recorded answer: its file, its true mode, the guess (``None``: no ids to guess by)."""

    file: Path
    truth: RequestMode
    guess: ModeGuess | None

    @property
    def right(self) -> bool:
        return self.guess is not None and self.guess.mode == self.truth


def measure(folder: Path) -> Iterator[Measured]:
    """Every answer under ``folder`` whose ``meta.json`` names the mode it was made in."""
    for meta_file in sorted(folder.rglob("meta.json")):
        meta = json.loads(meta_file.read_bytes())
        for file in sorted(meta_file.parent.glob("*.json")):
            truth = _truth(meta, file.name)
            if file.name == "meta.json" or truth is None:
                continue
            ids = top_ids(read_response(file.read_bytes()).positions or ())
            yield Measured(file, truth, infer_mode(ids) if ids else None)


def _truth(meta: dict[str, Any], name: str) -> RequestMode | None:
    params = meta.get("files", {}).get(name, {}).get("params") or meta.get("params") or {}
    said = f"{params.get('logprobs_mode', '')} {meta.get('note', '')}".replace("_", " ")
    if "processed logprobs" in said:
        return "processed_logprobs"
    return "raw_logprobs" if "raw logprobs" in said else None


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m assay.claims.mode_inference FOLDER\n")
        return 1
    folder = Path(arguments[0])
    try:
        measured = list(measure(folder))
    except (OSError, ClaimError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    guessed = [one for one in measured if one.guess is not None and one.guess.mode is not None]
    for one in measured:
        about = "no token ids" if one.guess is None else f"{one.guess.mode or 'no guess'}"
        about += "" if one.guess is None else f" ({one.guess.ratio:.3f} of {one.guess.entries})"
        mark = "right" if one.right else "wrong" if one in guessed else "-"
        print(f"{one.file.relative_to(folder)}  {one.truth}  {about}  {mark}")
    if not guessed:
        print("no answer of known mode with at least 10 entries: no accuracy")
        return 1
    right = sum(one.right for one in guessed)
    print(
        f"accuracy {right}/{len(guessed)} = {right / len(guessed):.3f} of the answers the rule"
        f" judges; {len(measured) - len(guessed)} not judged (text tokens or under"
        f" {MIN_ENTRIES} entries); modes present:"
        f" {', '.join(sorted({one.truth for one in measured}))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
