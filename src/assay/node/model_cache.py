"""Model files on this machine: what of a repository is there, how much, and whether it is whole.

Only folders are read; huggingface_hub is asked about the layout where it knows more, and imported
only then.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.node.config import Models

State = Literal["DOWNLOADED", "PARTIAL", "NOT_FOUND"]
PREFIX = "models--"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class OnDisk:
    """``commit``: the one asked for, or what the branch ``main`` was at the last download.

    ``size_bytes``: files of that commit, those begun included. ``missing``: names of files that
    are known to belong to it and are not there.
    """

    state: State
    commit: str | None = None
    size_bytes: int = 0
    missing: tuple[str, ...] = ()


class ModelCache:
    """A hub cache folder. Blocking; call it from threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, repo: str, commit: str | None) -> OnDisk:
        """What is there of one commit."""
        root = self.root(repo)
        found = commit or _main(root)
        if found is None or not (root / "snapshots" / found).is_dir():
            begun = sum(_size(path) for path in root.glob("blobs/*.incomplete"))
            return OnDisk("PARTIAL" if begun else "NOT_FOUND", found, begun)
        snapshot = root / "snapshots" / found
        size = sum(_size(path) for path in _files(snapshot))
        missing = self._missing(repo, found, snapshot)
        if missing is None:  # nobody kept a list of its files
            missing = _missing_by_index(snapshot)
            whole = not missing and any(path.suffix in WEIGHTS for path in _files(snapshot))
        else:
            whole = not missing
        if not whole:
            size += sum(_size(path) for path in root.glob("blobs/*.incomplete"))
        return OnDisk("DOWNLOADED" if whole else "PARTIAL", found, size, missing)

    def models(self) -> list[tuple[str, OnDisk]]:
        """Every commit of every model repository here, by name."""
        found = []
        for root in sorted(self.folder.glob(f"{PREFIX}*")):
            repo = root.name.removeprefix(PREFIX).replace("--", "/")
            commits = sorted(path.name for path in root.glob("snapshots/*") if path.is_dir())
            found += [(repo, self.look(repo, commit)) for commit in commits]
            if not commits and (begun := self.look(repo, None)).state != "NOT_FOUND":
                found.append((repo, begun))
        return found

    def delete(self, repo: str, commit: str | None) -> int | None:
        """Remove a commit, or all of them; bytes that became free, None when there was nothing.

        Files that another commit uses too stay.
        """
        root = self.root(repo)
        if not root.is_dir():
            return None
        before = _bytes(root)
        commits = {path.name for path in root.glob("snapshots/*")}
        if commit is None or commits == {commit}:
            shutil.rmtree(root)
            return before
        if commit not in commits:
            return None
        from huggingface_hub import scan_cache_dir

        scan_cache_dir(self.folder).delete_revisions(commit).execute()
        return before - _bytes(root)

    def size_bytes(self) -> int:
        """All of the folder, data sets included."""
        return _bytes(self.folder)

    def free_bytes(self) -> int:
        """Room on the disk the folder is on, or will be on."""
        folder = self.folder
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def root(self, repo: str) -> Path:
        return self.folder / (PREFIX + repo.replace("/", "--"))

    def _missing(self, repo: str, commit: str, snapshot: Path) -> tuple[str, ...] | None:
        """Files of the hub's own list that are not there; None where that list was not kept."""
        try:
            from huggingface_hub import get_cached_repo_tree
            from huggingface_hub.errors import CachedRepoTreeNotFoundError
        except ImportError:  # it came with version 2
            return None
        try:
            files = get_cached_repo_tree(repo, revision=commit, cache_dir=self.folder)
        except CachedRepoTreeNotFoundError:
            return None
        return tuple(file.path for file in files if not (snapshot / file.path).exists())


def cache_folder(settings: Models, environment: Mapping[str, str]) -> Path:
    """Where the node keeps models: its setting, else where backends look for them.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    if settings.cache_dir is not None:
        return settings.cache_dir.expanduser()
    if environment.get("HF_HUB_CACHE"):
        return Path(environment["HF_HUB_CACHE"]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def is_offline(settings: Models, environment: Mapping[str, str]) -> bool:
    """Whether the hub must not be asked."""
    return settings.offline or environment.get("HF_HUB_OFFLINE", "").upper() in TRUE


def _main(root: Path) -> str | None:
    try:
        return (root / "refs" / "main").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _missing_by_index(snapshot: Path) -> tuple[str, ...]:
    """Shards that an index of the weights names and that are not there, and links to nothing."""
    missing = {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.exists()}
    for index in snapshot.glob("*.index.json"):
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            missing.add(index.name)  # one that cannot be read is none
            continue
        missing |= {str(name) for name in shards if not (snapshot / str(name)).exists()}
    return tuple(sorted(missing))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _bytes(folder: Path) -> int:
    """Bytes of regular files below; links are not followed, so nothing counts twice."""
    return sum(_size(path) for path in folder.rglob("*") if not path.is_symlink())


def _size(path: Path) -> int:
    """0 for what vanished meanwhile, as files of a running download do."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
