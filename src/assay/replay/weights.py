"""A digest of the weights in a local folder, read once and remembered.

A name says nothing of what was loaded; two folders with one digest hold the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from assay.errors import SettingsError

SUFFIXES: Final = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
"""Files that hold weights; of several formats in one folder the first one present counts, which is
the order in which vLLM looks for them."""

PREFIX: Final = "sha256:"
BLOCK = 8 * 1024 * 1024
"""Bytes read at a time."""


def weights_digest(model: Path, cache: Path | None = None) -> str:
    """``sha256:<hex>`` of the weight files of ``model``, a local folder or a single file.

    Streams, so a model may be larger than memory. ``cache`` is a folder that remembers a file's
    digest by its path, size and time of change.

    Raises SettingsError where there is no such folder or it holds no weights.
    """
    return joined({file.name: file_digest(file, cache) for file in weight_files(model)})


def joined(digests: Mapping[str, str]) -> str:
    """One digest of several files, by name.

    SHA-256 over one line a file, sorted by name: ``<sha256 of the content>  <name>\\n``, the form
    ``sha256sum`` prints and hashes again.
    """
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return PREFIX + hashlib.sha256(lines.encode()).hexdigest()


def weight_files(model: Path) -> list[Path]:
    """The files that hold the weights of ``model``, by name. Raises SettingsError without any."""
    if model.is_file():
        return [model]
    if not model.is_dir():
        raise SettingsError(
            f"{model}: no such folder; name the one the server loads its model from"
        )
    for suffix in SUFFIXES:
        files = sorted(model.glob(f"*{suffix}"), key=lambda file: file.name)
        if files:
            return files
    raise SettingsError(f"{model} holds no weights ({', '.join(SUFFIXES)})")


def file_digest(
    file: Path, cache: Path | None = None, between: Callable[[], None] = lambda: None
) -> str:
    """Hexadecimal SHA-256 of a file's content. ``between`` is called after every block read; what
    it raises ends the work."""
    if cache is None:
        return _hashed(file, between)
    stat = file.stat()
    state = f"{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    known = cache / "weights" / hashlib.sha256(state.encode()).hexdigest()
    if known.is_file():
        return known.read_text(encoding="ascii")
    digest = _hashed(file, between)
    known.parent.mkdir(parents=True, exist_ok=True)
    part = known.with_name(f"{known.name}.part")
    part.write_text(digest, encoding="ascii")
    part.replace(known)
    return digest


def _hashed(file: Path, between: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        while block := opened.read(BLOCK):
            digest.update(block)
            between()
    return digest.hexdigest()
