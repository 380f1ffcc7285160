"""Results as JSON lines: appended one by one, readable after a crash at any byte."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from assay.errors import StoreError
from assay.store.result import RESULT_SCHEMA_VERSION, VerifyResult


class ResultsFile:
    """An open results file, held by one process at a time.

    Opening cuts off a last line that a crash left half written; every other unreadable line is an
    error, because it is not ours to throw away. ``append`` returns after the line is on disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = path.open("a+b")
        except OSError as error:
            raise StoreError(f"cannot write results to {path}: {error}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._handle.close()
            raise StoreError(
                f"{path} is being written by another `assay verify`; wait for it or choose"
                " another file with --output"
            ) from error
        self.cut_bytes = self._cut_half_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()

    def append(self, result: VerifyResult) -> None:
        self._handle.write(result.model_dump_json().encode("utf-8") + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def _cut_half_line(self) -> int:
        """Bytes removed after the last newline: what a crash left of a line."""
        self._handle.seek(0)
        content = self._handle.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            self._handle.truncate(whole)
        self._handle.seek(0, os.SEEK_END)
        return len(content) - whole


def read_results(path: Path) -> list[VerifyResult]:
    """All results of a file, the last one for each key; a half-written last line is left out.

    Raises StoreError naming file and line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read results from {path}: {error}") from error
    latest: dict[tuple[str, str, str, str, str], VerifyResult] = {}
    for number, line in _whole_lines(content):
        result = _parse(path, number, line)
        latest[(result.label, *result.key)] = result
    return list(latest.values())


def _whole_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    *lines, _rest = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line


def _parse(path: Path, number: int, line: bytes) -> VerifyResult:
    where = f"{path}, line {number}"
    try:
        body = json.loads(line)
    except ValueError as error:
        raise StoreError(f"{where}: not JSON: {error}") from error
    version = body.get("schema_version") if isinstance(body, dict) else None
    if version != RESULT_SCHEMA_VERSION:
        raise StoreError(
            f"{where}: schema_version is {version!r} and this version of assay reads"
            f" {RESULT_SCHEMA_VERSION}; is this a results file of `assay verify`?"
        )
    try:
        return VerifyResult.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{where}: {field}: {first['msg']}") from error
