"""The recipe, read by BuildKit's own parser and by hadolint; none of this builds anything."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dockerfile
import pytest

from assay.node.config import NodeConfig
from assay.node.config_file import as_toml, node_config
from assay.plugin.constants import SUPPORTED_ENGINES

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
RECIPE = DEPLOY / "Containerfile"
SECRETS = re.compile(r"pass|token|secret|key|credential", re.IGNORECASE)


@pytest.fixture(scope="module")
def commands() -> list[dockerfile.Command]:
    return list(dockerfile.parse_file(str(RECIPE)))


@pytest.fixture(scope="module")
def final(commands: list[dockerfile.Command]) -> list[dockerfile.Command]:
    """The instructions of the last stage, its FROM first."""
    last = max(i for i, command in enumerate(commands) if command.cmd == "FROM")
    return commands[last:]


def values(commands: list[dockerfile.Command], name: str) -> list[tuple[str, ...]]:
    return [command.value for command in commands if command.cmd == name]


def flags(command: dockerfile.Command, name: str) -> list[str]:
    start = f"--{name}="
    return [flag.removeprefix(start) for flag in command.flags if flag.startswith(start)]


def test_hadolint_finds_nothing() -> None:
    """Its own rules for recipes, and ShellCheck's for the commands in them."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", RECIPE], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Containerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && apt-get install $X\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--no-color", bad],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert "DL3006" in done.stdout  # an image without a tag
    assert "SC2086" in done.stdout  # a variable without quotes


def test_both_stages_stand_on_the_base_that_is_given(commands: list[dockerfile.Command]) -> None:
    assert values(commands, "ARG")[0] == ("BASE",), "a default would be a base nobody chose"
    assert values(commands, "FROM") == [("${BASE}", "AS", "wheel"), ("${BASE}",)]


def test_the_supported_range_is_written_in_no_file_of_the_recipe() -> None:
    files = [path for path in DEPLOY.iterdir() if path.is_file()]
    assert len(files) >= 6
    for file in files:
        for minor in SUPPORTED_ENGINES:
            assert minor not in file.read_text(), f"{file.name} repeats the range"


def copied(commands: list[dockerfile.Command]) -> Iterator[str]:
    for command in commands:
        if command.cmd in ("COPY", "ADD") and not flags(command, "from"):
            yield from command.value[:-1]


def test_every_file_that_is_copied_exists(commands: list[dockerfile.Command]) -> None:
    sources = list(copied(commands))
    assert "deploy/install.sh" in sources
    assert [source for source in sources if not (REPOSITORY / source).exists()] == []


def test_the_ignore_file_lets_in_what_is_copied_and_no_more(
    commands: list[dockerfile.Command],
) -> None:
    lines = (DEPLOY / "Containerfile.dockerignore").read_text().split("\n")
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert let_in == {source.split("/")[0] for source in copied(commands)}


def test_what_the_recipe_runs_is_copied_before(commands: list[dockerfile.Command]) -> None:
    """install.sh calls the two guards that lie beside it."""
    names = {Path(source).name for source in copied(commands)}
    called = set(re.findall(r'"\$here/([a-z_]+\.py)"', (DEPLOY / "install.sh").read_text()))
    assert called == {"base_engine.py", "base_packages.py"}
    assert called | {"install.sh", "livez.py", "node.toml"} <= names


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_command_is_one_a_shell_can_read(
    commands: list[dockerfile.Command], shell: str
) -> None:
    """The base may have set either with SHELL."""
    scripts = [value[0] for value in values(commands, "RUN")]
    assert len(scripts) >= 3
    for script in [*scripts, (DEPLOY / "install.sh").read_text()]:
        done = subprocess.run(
            [shell, "-n"], input=script, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), script


def test_install_is_one_layer_without_the_wheel(final: list[dockerfile.Command]) -> None:
    """What is removed in a later layer is still in the image: so the wheel is mounted, not copied."""
    (install,) = [run for run in final if run.cmd == "RUN" and "install.sh" in run.value[0]]
    assert "type=bind,from=wheel,source=/wheel,target=/wheel" in flags(install, "mount")
    assert not [c for c in final if c.cmd == "COPY" and flags(c, "from")]


def test_no_secret_is_in_a_layer_or_the_environment(commands: list[dockerfile.Command]) -> None:
    for command in commands:
        if command.cmd in ("ARG", "ENV", "LABEL"):
            names = command.value[::2] if command.cmd != "ARG" else command.value
            assert not [name for name in names if SECRETS.search(name)], command.original
        for flag in flags(command, "mount"):
            if "target=/run/secrets" in flag:
                assert flag.startswith("type=secret,"), command.original
    # pip keeps what it fetched, and the address it fetched from, unless told not to.
    for run in values(commands, "RUN"):
        if "pip " in run[0]:
            assert "--no-cache-dir" in run[0]
    assert "--no-cache-dir" in (DEPLOY / "install.sh").read_text()


def test_the_image_does_not_run_as_root(final: list[dockerfile.Command]) -> None:
    users = values(final, "USER")
    assert users[-1] == ("10001:10001",), "a number: Kubernetes' runAsNonRoot cannot read a name"
    (add,) = [run[0] for run in values(final, "RUN") if "useradd" in run[0]]
    assert "--uid 10001 --gid 10001" in add
    after = [c.cmd for c in final[[c.cmd for c in final].index("ENTRYPOINT") :]]
    assert "USER" not in after


def test_ports_are_the_nodes_and_no_backend_is_exposed(final: list[dockerfile.Command]) -> None:
    defaults = NodeConfig()
    assert values(final, "EXPOSE") == [(str(defaults.port), str(defaults.proxy.port))]
    assert f":{defaults.port}/livez" in (DEPLOY / "livez.py").read_text()


def test_health_is_whether_the_node_lives(final: list[dockerfile.Command]) -> None:
    (health,) = [command for command in final if command.cmd == "HEALTHCHECK"]
    assert health.value == ("CMD", "python3", "/opt/assay/livez.py")
    assert ("deploy/livez.py", "/opt/assay/livez.py") in values(final, "COPY")


def test_what_it_starts_is_the_node_with_its_file(final: list[dockerfile.Command]) -> None:
    """Lists, not shell lines: the node itself gets the signal that ends the container."""
    (entry,) = [command for command in final if command.cmd == "ENTRYPOINT"]
    (arguments,) = [command for command in final if command.cmd == "CMD"]
    assert entry.json
    assert arguments.json
    assert (*entry.value, *arguments.value) == (
        "assay", "node", "--config", "/etc/assay/node.toml",
    )  # fmt: skip
    assert ("deploy/node.toml", "/etc/assay/node.toml") in values(final, "COPY")


def test_the_nodes_file_is_public_behind_a_key_with_backends_inside(tmp_path: Path) -> None:
    text = (DEPLOY / "node.toml").read_text()
    assert 'control_file = "/run/secrets/control_key"' in text
    key = tmp_path / "key"
    key.write_text("a-control-key\n")
    file = tmp_path / "node.toml"
    file.write_text(text.replace("/run/secrets/control_key", str(key)))
    config = node_config(file, environment={})
    assert config.host == "0.0.0.0"
    assert config.keys.control is not None
    assert config.backends.host == "127.0.0.1"
    assert config.port == NodeConfig().port
    # What --print-config makes of it can be mounted in its place.
    printed = tmp_path / "printed.toml"
    printed.write_text(as_toml(config))
    assert "a-control-key" not in printed.read_text()
    assert node_config(printed, environment={}) == config
