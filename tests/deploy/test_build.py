"""The recipe built by buildah over a stand-in of a vLLM image, and what comes out of it run.

About two minutes; the first run also fetches a Debian and wheels.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.deploy.buildah import REPOSITORY, Buildah, brought_by_vllm, debian, need_tools, wheels
from tests.deploy.wheels import make_wheel
from tests.node.helpers import free_ports

from assay.node.guard import descendants
from assay.plugin.constants import SUPPORTED_ENGINES

pytestmark = pytest.mark.timeout(2400)
SUPPORTED = f"{SUPPORTED_ENGINES[-1]}.0"
KEY = "a-control-key-that-only-this-test-knows"
PASSWORD = "index-password-that-only-this-test-knows"
SECONDS = 300.0
HELD = ("numpy==2.2.6", "pydantic==2.12.0")
"""Older than the newest, so that pip could want to move them."""
TOO_OLD = ("sqlalchemy==2.0.30",)
"""Older than the project allows."""


class Built:
    """The image, and the log of its build."""

    def __init__(self, buildah: Buildah, name: str, log: str) -> None:
        self.buildah, self.name, self.log = buildah, name, log

    @property
    def config(self) -> dict[str, Any]:
        inspected = json.loads(self.buildah.must("inspect", "--type", "image", self.name))
        config = inspected["Docker"]["config"]
        assert isinstance(config, dict)
        return config

    @property
    def description(self) -> str:
        """Every word of its configuration and history."""
        return self.buildah.must("inspect", "--type", "image", self.name)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    need_tools()
    images = Buildah(tmp_path_factory.mktemp("buildah"))
    yield images
    images.must("rm", "--all")
    images.must("rmi", "--all", "--force")


class Wheelhouse(NamedTuple):
    """Wheels, and settings that send pip to them: a secret of the build, as it is in real ones."""

    folder: Path
    pip_conf: Path


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Wheelhouse:
    need_tools()
    folder = tmp_path_factory.mktemp("wheels")
    wheels(folder, {"held": (*HELD, *brought_by_vllm()), "old": TOO_OLD})
    for version in (SUPPORTED, "0.30.2"):
        make_wheel(folder, "vllm", version, brought_by_vllm())
    pip_conf = tmp_path_factory.mktemp("conf") / "pip.conf"
    pip_conf.write_text(f"# {PASSWORD}\n[global]\nno-index = true\nfind-links = /wheels\n")
    return Wheelhouse(folder, pip_conf)


@pytest.fixture(scope="module")
def plain(buildah: Buildah) -> str:
    return buildah.image("localhost/plain", debian())


@pytest.fixture(scope="module")
def built(buildah: Buildah, plain: str, wheelhouse: Wheelhouse) -> Built:
    base = buildah.with_packages(
        "localhost/good", plain, wheelhouse.folder, f"vllm=={SUPPORTED}", *HELD
    )
    done = buildah.build(base, "localhost/assay-node", *wheelhouse)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(buildah, "localhost/assay-node", done.stdout + done.stderr)


@pytest.fixture
def container(built: Built) -> Iterator[str]:
    name = built.buildah.must("from", "--pull-never", built.name)
    yield name
    built.buildah.must("rm", name)


def inside(container: str, *command: str, volumes: tuple[str, ...] = ()) -> list[str]:
    """Arguments of buildah that run a command in it as its own user, in its own folder."""
    mounts = [f"--volume={volume}" for volume in volumes]
    return ["run", "--isolation", "chroot", *mounts, container, "--", *command]


def test_the_build_says_what_it_checked(built: Built) -> None:
    assert f"base image accepted: vllm {SUPPORTED}" in built.log
    assert re.search(r"packages of the base image: \d+, changed: 0", built.log)
    assert re.search(r"added beside vllm-assay: .*sqlalchemy", built.log)


def test_the_base_keeps_its_versions(built: Built, container: str) -> None:
    script = "import numpy, pydantic; assert (numpy.__version__, pydantic.VERSION) == ('2.2.6', '2.12.0')"
    built.buildah.must(*inside(container, "python3", "-c", script))


def test_the_image_is_set_up_as_the_recipe_says(built: Built) -> None:
    config = built.config
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["assay", "node"]
    assert config["Cmd"] == ["--config", "/etc/assay/node.toml"]
    assert set(config["ExposedPorts"]) == {"8080/tcp", "5000/tcp"}
    assert set(config["Volumes"]) == {"/data"}
    assert config["Healthcheck"]["Test"] == ["CMD", "python3", "/opt/assay/livez.py"]


def holding(root: Path, text: str) -> list[str]:
    """Files with ``text``, wherever the build may have written."""
    done = subprocess.run(
        ["grep", "-rl", text, "data", "etc", "opt", "root", "run", "tmp", "usr/local", "var"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.stdout.splitlines()


def test_no_secret_and_no_source_is_left_in_it(built: Built, container: str) -> None:
    assert PASSWORD not in built.description
    assert PASSWORD not in built.log
    root = Path(built.buildah.must("mount", container))
    try:
        assert holding(root, PASSWORD) == []
        assert holding(root, "/run/secrets/control_key") == ["etc/assay/node.toml"]
        assert not (root / "src").exists()
        assert not list((root / "wheel").glob("*"))
    finally:
        built.buildah.must("umount", container)


def test_it_does_not_run_as_root(built: Built, container: str) -> None:
    # By its exit status: buildah's chroot isolation now and then loses what a short command prints.
    script = '[ "$(id -u) $(id -un) $(pwd)" = "10001 assay /data" ] && touch here'
    built.buildah.must(*inside(container, "sh", "-c", script))


def test_without_a_control_key_it_refuses_to_start(built: Built, container: str) -> None:
    done = built.buildah.run(
        *inside(container, "assay", "node", "--config", "/etc/assay/node.toml")
    )
    assert done.returncode != 0
    assert "keys.control_file" in done.stderr
    assert "/run/secrets/control_key" in done.stderr


def command_of(pid: int) -> str:
    """Its command line; buildah's own, which has the command as an argument, does not count."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return "" if "buildah" in words[0] else " ".join(words)


def eventually(what: str, done: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < limit, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(0.2)


def test_it_runs_with_its_printed_settings_and_a_mounted_key(
    built: Built, container: str, tmp_path: Path
) -> None:
    """What --print-config prints in it, mounted as its file; alive for its own health check."""
    port = free_ports(1)
    key = tmp_path / "control_key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o444)
    mounted = f"{key}:/run/secrets/control_key:ro"
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    command = "assay node --config /etc/assay/node.toml --print-config > /out/node.toml"
    built.buildah.must(*inside(container, "sh", "-c", command, volumes=(mounted, f"{out}:/out")))
    printed = (out / "node.toml").read_text()
    assert 'host = "0.0.0.0"' in printed
    assert KEY not in printed
    file = tmp_path / "node.toml"
    file.write_text(
        # The test's network is the machine's: an own port, and the loopback alone.
        printed.replace("port = 8080", f"port = {port}")
        .replace('host = "0.0.0.0"', 'host = "127.0.0.1"')
        .replace("port = 5000", "port = 0")
    )
    log = tmp_path / "log"
    healthy = inside(container, "python3", "/opt/assay/livez.py", f"http://127.0.0.1:{port}/livez")
    assert built.buildah.run(*healthy).returncode == 1
    with log.open("wb") as output:
        process = built.buildah.start(
            *inside(
                *(container, "assay", "node", "--config", "/etc/assay/node.toml"),
                volumes=(mounted, f"{file}:/etc/assay/node.toml:ro"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(
            f"alive; {log.read_text()[-500:]}",
            lambda: built.buildah.run(*healthy).returncode == 0 or process.poll() is not None,
        )
        assert process.poll() is None, log.read_text()
        node = min(pid for pid in descendants(process.pid) if "bin/assay" in command_of(pid))
        assert Path(f"/proc/{node}").stat().st_uid == 10001
        os.kill(node, signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        process.wait(SECONDS)
    assert KEY not in log.read_text()


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (("vllm==0.30.2",), "but 0.30.2 is installed"),
        ((), "finds no vllm"),
        ((f"vllm=={SUPPORTED}", *TOO_OLD), "assay needs a newer version than the base holds"),
    ],
    ids=["unsupported", "none", "would be moved"],
)
def test_f47_a_base_that_does_not_fit_gives_no_image(
    buildah: Buildah, plain: str, wheelhouse: Wheelhouse, packages: tuple[str, ...], words: str
) -> None:
    base = plain
    if packages:
        base = buildah.with_packages("localhost/unfit", plain, wheelhouse.folder, *packages)
    done = buildah.build(base, "localhost/refused", *wheelhouse)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert buildah.run("inspect", "--type", "image", "localhost/refused").returncode != 0


def test_without_a_base_there_is_nothing_to_build(buildah: Buildah) -> None:
    done = buildah.run(
        *("build", "--isolation", "chroot", "--pull-never"),
        *("--file", str(REPOSITORY / "deploy" / "Containerfile"), str(REPOSITORY)),
    )
    assert done.returncode != 0


def test_the_context_holds_what_is_copied_and_nothing_else(
    buildah: Buildah, tmp_path: Path
) -> None:
    """By the ignore file, over a checkout with a key and a store left lying about."""
    context = tmp_path / "checkout"
    for name in ("src/assay/x.py", "deploy/install.sh", "LICENSE", "README.md", "pyproject.toml"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text("wanted")
    for name in (
        *("control.key", ".env", "node-8080.sqlite3", ".git/config", "tests/t.py"),
        *("src/assay/__pycache__/x.pyc", "src/vllm_assay.egg-info/PKG-INFO"),
    ):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text("unwanted")
    recipe = context / "deploy" / "Containerfile"
    recipe.write_text("FROM scratch\nCOPY . /\n")
    ignore = (REPOSITORY / "deploy" / "Containerfile.dockerignore").read_text()
    recipe.with_name("Containerfile.dockerignore").write_text(ignore)
    buildah.must("build", "--file", str(recipe), "--tag", "localhost/context", str(context))
    container = buildah.must("from", "--pull-never", "localhost/context")
    root = Path(buildah.must("mount", container))
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {path.read_text() for path in files if path.parent.name != "deploy"} == {"wanted"}
    assert {"install.sh", "x.py", "LICENSE", "README.md", "pyproject.toml"} <= {
        path.name for path in files
    }
    buildah.must("umount", container)
    buildah.must("rm", container)
