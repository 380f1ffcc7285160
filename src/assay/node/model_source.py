"""Where the files of a served model are, and which commit of the hub they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.node.config import Models
from assay.node.flags import last_value
from assay.node.model_cache import PREFIX, WEIGHTS, cache_folder

HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = "main"
ELSEWHERE = ("--tokenizer", "--hf-config-path", "--download-dir")
"""With one of these files come from other places too, and ``--revision`` would be meant for both."""


@dataclass(frozen=True)
class Located:
    """``folder``: a folder or a single file; None when there is none, and ``why`` says so."""

    folder: Path | None = None
    commit: str | None = None
    why: str = ""


@dataclass(frozen=True)
class ModelSource:
    """What backends are started with. ``revision``: a commit, branch or tag of the hub.

    ``cache``: the hub cache they load from.
    """

    model: str
    revision: str | None
    cache: Path

    def locate(self) -> Located:
        """The files as they are on this machine now. Blocking."""
        local = Path(self.model)
        if local.exists():
            found = COMMIT.fullmatch(local.name) and local.parent.name == "snapshots"
            return Located(local, local.name if found else None)
        if not HUB_NAME.fullmatch(self.model):
            return Located(why=f"{self.model} is neither a folder here nor a name of the hub")
        root = self.cache / (PREFIX + self.model.replace("/", "--"))
        commit = self.revision or BRANCH
        if not COMMIT.fullmatch(commit):
            named = _reference(root, commit)
            if named is None:
                return Located(why=f"{self.model}: {commit} is not in the cache {self.cache}")
            commit = named
        folder = root / "snapshots" / commit
        if not folder.is_dir():
            return Located(why=f"{self.model}: {commit} is not in the cache {self.cache}")
        return Located(folder, commit)


def source_of(
    model: str, flags: Sequence[str], environment: Mapping[str, str], settings: Models
) -> ModelSource:
    """What ``vllm serve MODEL FLAGS`` loads, in that environment."""
    elsewhere = last_value(flags, "--download-dir")
    cache = cache_folder(settings, environment) if elsewhere is None else Path(elsewhere)
    return ModelSource(model, last_value(flags, "--revision"), cache)


def commit_to_pin(source: ModelSource, flags: Sequence[str]) -> str | None:
    """The commit that was downloaded, for backends that would otherwise take what main is now.

    None for a local folder, for one nobody has downloaded, and where a revision was asked for or
    files come from several places. Blocking.
    """
    given = (last_value(flags, flag) for flag in ELSEWHERE)
    if source.revision is not None or any(value is not None for value in given):
        return None
    if Path(source.model).exists():
        return None
    located = source.locate()
    if located.folder is None or located.commit is None:
        return None
    whole = any(path.suffix in WEIGHTS and path.exists() for path in located.folder.iterdir())
    return located.commit if whole else None


def _reference(root: Path, name: str) -> str | None:
    """The commit a branch or tag was at the last download."""
    if ".." in name.split("/") or name.startswith("/"):
        return None
    try:
        text = (root / "refs" / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if COMMIT.fullmatch(text) else None
