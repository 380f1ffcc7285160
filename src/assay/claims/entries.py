"""Log probabilities as they stand in a body, before anyone decides what the tokens are."""

from __future__ import annotations

from dataclasses import dataclass

from assay.claims.fields import as_bytes, as_list, as_logprob, as_object, as_text
from assay.claims.positions import IMPOSSIBLE
from assay.errors import ClaimError


@dataclass(frozen=True)
class RawEntry:
    """One spelled token with its log probability; ``path`` is where it stands in the body."""

    path: str
    token: str
    logprob: float
    raw_bytes: bytes | None


@dataclass(frozen=True)
class RawPosition:
    chosen: RawEntry
    top: tuple[RawEntry, ...]

    @property
    def is_unnamed(self) -> bool:
        """The remains of an end-of-sequence token that a server could not look up (case 9):
        ``{"token": "", "logprob": -9999.0, "bytes": [], "top_logprobs": []}``."""
        return (
            self.chosen.token == ""
            and self.chosen.logprob == IMPOSSIBLE
            and not self.chosen.raw_bytes
            and not self.top
        )


def read_content(content: object, path: str) -> list[RawPosition]:
    """Every entry of a chat choice's ``logprobs.content``; raises ClaimError with its JSON path."""
    positions = []
    for index, value in enumerate(as_list(content, path)):
        where = f"{path}[{index}]"
        entry = as_object(value, where)
        top = entry.get("top_logprobs")
        alternatives = [] if top is None else as_list(top, f"{where}.top_logprobs")
        positions.append(
            RawPosition(
                _entry(entry, where),
                tuple(
                    _entry(as_object(one, at), at)
                    for one, at in (
                        (one, f"{where}.top_logprobs[{rank}]")
                        for rank, one in enumerate(alternatives)
                    )
                ),
            )
        )
    return positions


def _entry(entry: dict[str, object], path: str) -> RawEntry:
    for name in ("token", "logprob"):
        if name not in entry:
            raise ClaimError("is missing", field=f"{path}.{name}")
    return RawEntry(
        path,
        as_text(entry["token"], f"{path}.token"),
        as_logprob(entry["logprob"], f"{path}.logprob"),
        as_bytes(entry.get("bytes"), f"{path}.bytes"),
    )


def read_columns(logprobs: dict[str, object], path: str) -> list[RawPosition]:
    """The ``logprobs`` object of a completions choice: parallel lists, one entry a position.

    ``top_logprobs`` holds objects from spelling to log probability, so two ids with one spelling
    have already become one entry on the server (case 5); only ids as spelling avoid that.
    Raises ClaimError when the lists differ in length.
    """
    tokens = as_list(logprobs.get("tokens"), f"{path}.tokens")
    values = as_list(logprobs.get("token_logprobs"), f"{path}.token_logprobs")
    tops = logprobs.get("top_logprobs")
    tables = [None] * len(tokens) if tops is None else as_list(tops, f"{path}.top_logprobs")
    if not len(tokens) == len(values) == len(tables):
        raise ClaimError(
            f"tokens, token_logprobs and top_logprobs have {len(tokens)}, {len(values)} and"
            f" {len(tables)} entries; they must be parallel",
            field=path,
        )
    positions = []
    for index, (token, value, table) in enumerate(zip(tokens, values, tables, strict=True)):
        where = f"{path}.top_logprobs[{index}]"
        top = {} if table is None else as_object(table, where)
        positions.append(
            RawPosition(
                RawEntry(
                    f"{path}.tokens[{index}]",
                    as_text(token, f"{path}.tokens[{index}]"),
                    as_logprob(value, f"{path}.token_logprobs[{index}]"),
                    None,
                ),
                tuple(
                    RawEntry(f"{where}[{name!r}]", name, as_logprob(at, f"{where}[{name!r}]"), None)
                    for name, at in top.items()
                ),
            )
        )
    return positions
