"""A folder for PYTHONPATH that holds the installed CPU Triton helper.

Installed beside the environment and not into it: with it in site-packages every vLLM process
would report a usable Triton, and a V1 server would call kernels that nothing can compile.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from assay.demo.folders import made_once

SOURCE = Path(__file__).parent / "cpu_triton"


def _sources() -> list[Path]:
    return [SOURCE / "pyproject.toml", *sorted((SOURCE / "src").glob("*/*.py"))]


def cpu_triton_site(cache: Path) -> Path:
    """The folder under ``cache``, made once per content of the helper (about 2 s, no network)."""
    digest = hashlib.sha256()
    for file in _sources():
        digest.update(str(file.relative_to(SOURCE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return made_once(cache / f"cpu-triton-{digest.hexdigest()[:16]}", _install)


def _install(into: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        # setuptools writes build/ and *.egg-info beside the sources: keep that out of the tree.
        for file in _sources():
            copy = Path(scratch) / file.relative_to(SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps",
            "--no-index", "--no-build-isolation", "--target", str(into), scratch,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"installing the CPU Triton helper failed:\n{done.stderr}")
