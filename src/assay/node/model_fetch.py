"""A process that downloads one model and ends: the node can stop it, and it ends with the node.

``python -m assay.node.model_fetch`` reads one line of JSON from standard input: ``repo``,
``commit`` (null: the branch main) and ``cache_dir``. It writes lines of JSON: what there is to
fetch, then ``{"done": commit}`` or ``{"error": ...}``. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

BRANCH = "main"


def main() -> None:
    sys.excepthook = _report
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    from huggingface_hub import HfApi, snapshot_download

    repo, revision = request["repo"], request["commit"] or BRANCH
    folder = Path(request["cache_dir"])
    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = {file.rfilename: file.size or 0 for file in info.siblings or []}
    snapshot = folder / f"models--{repo.replace('/', '--')}" / "snapshots" / str(info.sha)
    needed = sum(size for name, size in files.items() if not (snapshot / name).exists())
    _say(commit=info.sha, total_bytes=sum(files.values()), files=len(files))
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        _end(error=f"{needed} bytes are needed and {free} are free")
    path = Path(snapshot_download(repo, revision=revision, cache_dir=folder))
    missing = [name for name in files if path.name == info.sha and not (path / name).exists()]
    if missing:
        _end(error=f"{len(missing)} of {len(files)} files are missing, such as {missing[0]}")
    _end(done=path.name)


def _end_with_the_node() -> None:
    sys.stdin.read()
    os._exit(1)


def _end(**fields: Any) -> None:
    """Say it and end at once: the thread that waits for the node may hold standard input."""
    _say(**fields)
    os._exit(0)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Whatever ends this process is the reason of the download's failure."""
    text = " ".join(str(error).split())
    _end(error=f"{kind.__name__}: {text}"[:1000])


if __name__ == "__main__":
    main()
