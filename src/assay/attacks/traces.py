"""Claims and replays on disk: written one by one, so that a run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from assay.claims.claim import Claim, Replay
from assay.errors import StoreError

Item = TypeVar("Item", Claim, Replay)


class Traces:
    """A folder of JSON-lines files: ``claims/NAME.jsonl`` and ``replays/NAME.PATH.jsonl``.

    A replay's id is its claim's. Appending is safe against a crash: a last line that was cut is
    ignored by the readers and made again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._claims: Held[Claim] = Held(Claim)
        self._replays: Held[Replay] = Held(Replay)

    def claims(self, name: str) -> Mapping[str, Claim]:
        """The claims of a run or attack, by id, in the order they were made."""
        return self._claims.read(self._claims_file(name))

    def replays(self, name: str, path: str) -> Mapping[str, Replay]:
        """The replays of its claims by one path, by the claim's id."""
        return self._replays.read(self._replays_file(name, path))

    def add_claims(self, name: str, claims: Iterable[Claim]) -> None:
        _append(self._claims_file(name), claims)

    def add_replays(self, name: str, path: str, replays: Iterable[Replay]) -> None:
        _append(self._replays_file(name, path), replays)

    def _claims_file(self, name: str) -> Path:
        return self.folder / "claims" / f"{name}.jsonl"

    def _replays_file(self, name: str, path: str) -> Path:
        return self.folder / "replays" / f"{name}.{path}.jsonl"


def _append(path: Path, items: Iterable[BaseModel]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(path)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        for item in items:
            file.write(item.model_dump_json() + "\n")


def _drop_cut_line(path: Path) -> None:
    """Whatever stands behind the last line end was cut by a crash; a new line must not join it."""
    if path.is_file():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])


class Held(Generic[Item]):
    """Files that were read, kept while they do not change: parsing 250 claims takes a second."""

    def __init__(self, kind: type[Item]) -> None:
        self._kind: type[Item] = kind
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Item]]] = {}

    def read(self, path: Path) -> Mapping[str, Item]:
        """What the file holds, by id. Raises StoreError naming the line of another version."""
        if not path.is_file():
            return {}
        stat = path.stat()
        state = (stat.st_mtime_ns, stat.st_size)
        known = self._read.get(path)
        if known is None or known[0] != state:
            known = self._read[path] = (state, _parse(path, self._kind))
        return MappingProxyType(known[1])


def _parse(path: Path, kind: type[Item]) -> dict[str, Item]:
    lines = path.read_text(encoding="utf-8").split("\n")
    found: dict[str, Item] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            item = kind.model_validate_json(line)
        except ValidationError as error:
            raise StoreError(
                f"{path.name} line {number}: not a {kind.__name__.lower()} of this version;"
                " delete the file to make it again"
            ) from error
        found[item.id] = item
    return found
