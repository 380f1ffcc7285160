"""A digest of the weights a server has loaded, cheap enough for hundreds of gigabytes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

WINDOWS, WINDOW_BYTES = 64, 4096
"""Samples of each weight file: evenly spaced, so that other weights in the same layout (a rounded
copy) differ with certainty for all practical purposes. It identifies, it does not authenticate."""


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """The folder a server loaded ``model`` from: itself, or the hub cache's of that commit."""
    folder = Path(model)
    if folder.is_dir():
        return folder
    try:
        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:  # an address of other storage, which has no folder here
        return None
    return Path(config).parent if isinstance(config, str) else None


def model_commit(model: str, revision: str | None = None) -> str | None:
    """The commit of the hub that was loaded; ``None`` for a folder that is no snapshot of it."""
    folder = model_folder(model, revision)
    if folder is None:
        return None
    folder = folder.resolve()
    return folder.name if folder.parent.name == "snapshots" else None


@cache
def model_digest(model: str, revision: str | None = None) -> str | None:
    """``sampled-sha256:<hex>`` of config.json and the weight files; ``None`` without such files.

    Each safetensors file counts with its name, size, first window (which holds the tensor table)
    and 64 windows of 4 KiB spread over it.
    """
    folder = model_folder(model, revision)
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    if folder is None or not files:
        return None
    digest = hashlib.sha256()
    config = folder / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for window in range(WINDOWS):
                file.seek(window * size // WINDOWS)
                digest.update(file.read(WINDOW_BYTES))
    return f"sampled-sha256:{digest.hexdigest()}"
