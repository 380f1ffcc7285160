"""The guards of the container recipe, run against real environments with a vllm of any version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.deploy.wheels import assay_wheel, make_wheel

from assay.plugin.constants import SUPPORTED_ENGINES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SUPPORTED = f"{SUPPORTED_ENGINES[-1]}.0"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip and nothing else; tests copy it."""
    folder = tmp_path_factory.mktemp("venv") / "empty"
    venv.create(folder, with_pip=True, symlinks=True)
    return folder


class Base:
    """What stands in for a base image: an environment, and wheels it can be given."""

    def __init__(self, empty: Path, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        shutil.copytree(empty, folder / "base", symlinks=True)
        self.python = folder / "base" / "bin" / "python"
        self.site = next((folder / "base" / "lib").glob("python3*")) / "site-packages"

    def give(self, name: str, version: str, files: Mapping[str, bytes] | None = None) -> None:
        """What the image holds before any of it begins: a wheel's content, unpacked."""
        with zipfile.ZipFile(make_wheel(self.wheels, name, version, files=files)) as wheel:
            wheel.extractall(self.site)

    def pip(self, *arguments: str) -> None:
        done = self.run("-m", "pip", *arguments)
        assert done.returncode == 0, done.stderr

    def install(self, wheel: Path) -> subprocess.CompletedProcess[str]:
        return self._run("sh", str(DEPLOY / "install.sh"), str(wheel))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.python), *arguments)

    def version(self, name: str) -> str:
        return self.run("-c", f"import {name}; print({name}.VERSION)").stdout.strip()

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHON": str(self.python),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_COMPILE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )


@pytest.fixture
def base(empty: Path, tmp_path: Path) -> Base:
    return Base(empty, tmp_path)


def guard(base: Base, wheel: Path) -> subprocess.CompletedProcess[str]:
    return base.run(str(DEPLOY / "base_engine.py"), str(wheel))


@pytest.mark.parametrize("minor", SUPPORTED_ENGINES)
def test_a_supported_vllm_is_accepted(base: Base, minor: str) -> None:
    base.give("vllm", f"{minor}.1")
    done = guard(base, assay_wheel(base.wheels))
    assert (done.returncode, done.stdout) == (0, f"base image accepted: vllm {minor}.1\n")


@pytest.mark.parametrize("version", ["0.30.2", "0.99.0", "1.0.0", "0.3.3"])
def test_f47_a_vllm_outside_the_range_is_refused_with_its_version(base: Base, version: str) -> None:
    base.give("vllm", version)
    done = guard(base, assay_wheel(base.wheels))
    assert done.returncode == 1
    assert f"but {version} is installed" in done.stderr
    for minor in SUPPORTED_ENGINES:
        assert f"{minor}.x" in done.stderr


def test_a_base_without_vllm_is_refused(base: Base) -> None:
    done = guard(base, assay_wheel(base.wheels))
    assert done.returncode == 1
    assert "finds no vllm" in done.stderr
    assert "--build-arg BASE=" in done.stderr


def test_the_range_is_the_wheels_and_not_of_an_older_assay_in_the_base(base: Base) -> None:
    older = {
        "assay/__init__.py": b"",
        "assay/plugin/__init__.py": b"",
        "assay/plugin/surfaces.py": b"def check_version(version): pass\n",
    }
    base.give("vllm", "0.30.2")
    base.give("vllm-assay", "0.0.1", files=older)
    assert guard(base, assay_wheel(base.wheels)).returncode == 1


def test_the_guard_needs_a_wheel(base: Base) -> None:
    assert guard(base, base.wheels / "missing.whl").returncode == 2


def test_installing_adds_and_changes_nothing(base: Base) -> None:
    base.give("vllm", SUPPORTED)
    base.give("shared", "1.5")
    make_wheel(base.wheels, "shared", "2.0")
    make_wheel(base.wheels, "extra", "3.0")
    done = base.install(assay_wheel(base.wheels, ["shared>=1.0", "extra"]))
    assert done.returncode == 0, done.stderr
    assert "changed: 0" in done.stdout
    assert "added beside vllm-assay: extra 3.0" in done.stdout
    assert base.version("shared") == "1.5"
    assert base.run("-c", "import assay.errors").returncode == 0


@pytest.mark.parametrize(("held", "wanted"), [("3.0", "shared<3"), ("1.0", "shared>=2")])
def test_a_requirement_that_would_move_a_package_of_the_base_ends_the_build(
    base: Base, held: str, wanted: str
) -> None:
    base.give("vllm", SUPPORTED)
    make_wheel(base.wheels, "shared", "2.0")
    base.give("shared", held)
    wheel = assay_wheel(base.wheels, [wanted])
    done = base.install(wheel)
    assert done.returncode == 1
    assert f"vllm-assay 0.1.0 depends on {wanted}" in done.stdout
    assert "newer base image" in done.stderr
    assert base.version("shared") == held
    # Without the constraints of the base, pip does move it: they are what held it.
    base.pip("install", str(wheel))
    assert base.version("shared") == "2.0"


def test_an_unsupported_base_is_refused_before_anything_is_installed(base: Base) -> None:
    base.give("vllm", "0.30.2")
    before = base.run("-m", "pip", "freeze").stdout
    done = base.install(assay_wheel(base.wheels))
    assert done.returncode == 1
    assert "base image refused" in done.stderr
    assert base.run("-m", "pip", "freeze").stdout == before


def packages(base: Base, *arguments: str) -> subprocess.CompletedProcess[str]:
    return base.run(str(DEPLOY / "base_packages.py"), *arguments)


@pytest.fixture
def compared(base: Base, tmp_path: Path) -> tuple[Base, Path]:
    """A base that holds shared 2.0 and steady 1.0, and its snapshot."""
    base.give("shared", "2.0")
    base.give("steady", "1.0")
    before = tmp_path / "base.json"
    before.write_text(packages(base, "snapshot").stdout)
    assert packages(base, "compare", str(before)).returncode == 0
    return base, before


def test_a_downgrade_that_really_happened_is_found(compared: tuple[Base, Path]) -> None:
    base, before = compared
    make_wheel(base.wheels, "shared", "1.0")
    base.pip("install", "shared==1.0")
    done = packages(base, "compare", str(before))
    assert done.returncode == 1
    assert done.stderr == "changed a package of the base image: shared 2.0 became 1.0\n"


def test_a_package_that_was_removed_is_found(compared: tuple[Base, Path]) -> None:
    base, before = compared
    base.pip("uninstall", "--yes", "shared")
    done = packages(base, "compare", str(before))
    assert done.returncode == 1
    assert "shared 2.0 was removed" in done.stderr


def test_another_build_of_the_same_version_is_found(compared: tuple[Base, Path]) -> None:
    base, before = compared
    make_wheel(base.wheels, "shared", "2.0", files={"shared.py": b"OTHER = 1\n"})
    base.pip("install", "--force-reinstall", "shared==2.0")
    done = packages(base, "compare", str(before))
    assert done.returncode == 1
    assert "shared 2.0 was installed anew" in done.stderr


def test_a_copy_put_in_front_of_the_bases_is_found(
    compared: tuple[Base, Path], tmp_path: Path
) -> None:
    base, before = compared
    front = tmp_path / "front"
    make_wheel(base.wheels, "shared", "2.0")
    base.pip("install", "--target", str(front), "shared")
    script = (
        f"import sys; sys.path[:0] = [{str(front)!r}, {str(DEPLOY)!r}]\n"
        f"import base_packages; sys.exit(base_packages.main(['compare', {str(before)!r}]))\n"
    )
    done = base.run("-c", script)
    assert done.returncode == 1
    assert f"shared 2.0 was installed anew, in {front}" in done.stderr


def test_a_version_pip_cannot_read_stays_out_of_the_constraints_and_is_watched(base: Base) -> None:
    egg = base.site / "python_debian.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: python-debian\nVersion: 0.1.43ubuntu1\n")
    base.give("vllm", SUPPORTED)
    base.give("local", "2.13.0+cu130")
    listed = packages(base, "constraints").stdout.splitlines()
    assert f"vllm=={SUPPORTED}" in listed
    assert "local==2.13.0+cu130" in listed
    assert not [line for line in listed if line.startswith("python-debian")]
    assert json.loads(packages(base, "snapshot").stdout)["python-debian"]["version"] == (
        "0.1.43ubuntu1"
    )
    assert base.install(assay_wheel(base.wheels)).returncode == 0


def test_a_newer_assay_may_replace_an_older_one(base: Base) -> None:
    base.give("vllm", SUPPORTED)
    assert base.install(assay_wheel(base.wheels, version="0.1.0")).returncode == 0
    done = base.install(assay_wheel(base.wheels, version="0.2.0"))
    assert done.returncode == 0, done.stderr
    assert "changed: 0" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("compare",), ("freeze",)])
def test_a_wrong_call_says_how(base: Base, arguments: tuple[str, ...]) -> None:
    done = packages(base, *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_the_guards_run_on_the_standard_library_alone() -> None:
    for script in DEPLOY.glob("*.py"):
        done = subprocess.run(
            [sys.executable, "-S", "-I", "-c", f"import runpy; runpy.run_path({str(script)!r})"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
