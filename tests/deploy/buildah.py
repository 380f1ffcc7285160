"""Images built for real, by buildah, which needs no daemon; and a small base for them.

The base stands in for a vLLM image: a Debian with Python, and a distribution of the name and
version a test wants. It has no engine, so what runs in it is the node without a model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "container"
RELEASE = "bookworm"
PYTHON = "3.11"
"""Python of that release; the wheels are fetched for it."""
MIRROR = "http://deb.debian.org/debian"
TOOLS = ("buildah", "debootstrap")


class Buildah:
    """One store of images, gone with its folder."""

    def __init__(self, folder: Path) -> None:
        # Neither the machine's settings of pip nor its keys belong in the build.
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self._store: tuple[str, ...] = ()
        for driver in ("overlay", "vfs"):  # the second copies every layer, on any file system
            place = folder / driver
            self._store = ("--root", str(place / "root"), "--runroot", str(place / "run"))
            self._store += ("--storage-driver", driver)
            if self.run("info").returncode == 0:
                break

    def command(self, *arguments: str) -> list[str]:
        return ["buildah", *self._store, *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*arguments), env=self._environment, **options)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )

    def must(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def image(self, name: str, root: Path) -> str:
        """An image whose only layer is that folder."""
        container = self.must("from", "scratch")
        self.must("add", "--quiet", container, str(root), "/")
        self.must("commit", "--quiet", "--rm", container, name)
        return name

    def with_packages(self, name: str, image: str, wheels: Path, *packages: str) -> str:
        """``image`` with ``packages`` installed from ``wheels``, as vLLM's images are made."""
        container = self.must("from", image)
        self.must(
            *("run", "--isolation", "chroot", "--volume", f"{wheels}:/wheels:ro", container, "--"),
            *("python3", "-m", "pip", "install", "--break-system-packages", "--no-cache-dir"),
            *("--no-compile", "--no-index", "--find-links", "/wheels", *packages),
        )
        self.must("commit", "--quiet", "--rm", container, name)
        return name

    def build(self, base: str, name: str, wheels: Path, pip_conf: Path) -> Any:
        """Build the recipe on ``base``; ``pip_conf`` is given as the secret of that name."""
        return self.run(
            *("build", "--isolation", "chroot", "--format", "docker", "--pull-never"),
            *("--file", str(REPOSITORY / "deploy" / "Containerfile")),
            *("--build-arg", f"BASE={base}", "--secret", f"id=pip.conf,src={pip_conf}"),
            *("--volume", f"{wheels}:/wheels:ro", "--tag", name, str(REPOSITORY)),
        )


def need_tools() -> None:
    """Skip where the images cannot be built, with the reason."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (sh scripts/container.sh)")
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")


def debian() -> Path:
    """A Debian with Python and pip, 200 MB, made once and kept beside the other caches."""
    root = CACHE / RELEASE
    if not root.exists():
        partial = CACHE / f"{RELEASE}.{os.getpid()}"
        done = subprocess.run(
            [
                *("debootstrap", "--variant=minbase", "--include=python3,python3-pip"),
                *(RELEASE, str(partial), MIRROR),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        if done.returncode != 0:
            shutil.rmtree(partial, ignore_errors=True)
            pytest.skip(f"debootstrap failed: {done.stdout[-300:]}")
        for name in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(partial / name, ignore_errors=True)
        try:
            partial.rename(root)
        except OSError:  # another run was quicker
            shutil.rmtree(partial)
    return root


def brought_by_vllm() -> list[str]:
    """What the node needs and every vLLM has."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    needed: list[str] = project["project"]["optional-dependencies"]["node"]
    return needed


def wheels(folder: Path, extra: Mapping[str, Iterable[str]]) -> Path:
    """What the project and its build need, and each set of ``extra``, fetched for the base."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    gpu = project["project"]["optional-dependencies"]["gpu"]
    wanted = [
        *project["project"]["dependencies"],
        *(requirement for requirement in gpu if not requirement.startswith("vllm")),
        *project["build-system"]["requires"],
        "wheel",
    ]
    for requirements in (wanted, *extra.values()):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)),
                *("--python-version", PYTHON, "--only-binary", ":all:", *requirements),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        if done.returncode != 0:
            pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    return folder
