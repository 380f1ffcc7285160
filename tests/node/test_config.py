"""The node's settings: what is refused, what wins over what, and that no key is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import SettingsError
from assay.node.config import NodeConfig
from assay.node.config_file import as_toml, node_config

SECRET = "correct-horse-battery"


def written(folder: Path, text: str) -> Path:
    file = folder / "node.toml"
    file.write_text(text)
    return file


def test_defaults_are_the_ports_that_clients_know() -> None:
    config = node_config(environment={})
    assert (config.host, config.port) == ("127.0.0.1", 8080)
    assert (config.backends.first_port, config.proxy.port) == (5001, 5000)
    assert config.backends.hung_s == 120
    assert config.backends.failures == 3
    assert config.backends.stop_grace_s == 20


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'port = 9000\n[keys]\ncontrol = "from-file"\n[backends]\ncount = 2\n')
    config = node_config(
        file, {"port": 9001, "backends.count": None}, {"ASSAY_NODE_CONTROL_KEY": "from-env"}
    )
    assert config.port == 9001
    assert config.backends.count == 2
    assert config.keys.control is not None
    assert config.keys.control.get_secret_value() == "from-env"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[backends]\nhung_s = -1\n", "backends.hung_s: Input should be greater than 0"),
        ("[backends]\nhungs_s = 1\n", "backends.hungs_s: there is no such setting; did you mean hung_s?"),
        ("prot = 1\n", "prot: there is no such setting; did you mean port?"),
        ("port = 70000\n", "port: Input should be less than or equal to 65535"),
        ("port = 8080\n[proxy]\nport = 8080\n", "proxy.port: the same as port"),
        ("backends = 3\n", "backends: Input should be a valid"),
        ("port = \n", "not TOML"),
        ('[logs]\nlevel = "loud"\n', "logs.level: String should match pattern"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_field(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        node_config(written(tmp_path, text), environment={})
    assert says in str(caught.value)
    assert "node.toml" in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu-7.example.org"])
def test_a_public_address_without_a_control_key_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="control key"):
        node_config(None, {"host": host}, {})
    assert node_config(None, {"host": host}, {"ASSAY_NODE_CONTROL_KEY": SECRET}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_the_loopback_needs_no_key(host: str) -> None:
    assert node_config(None, {"host": host}, {}).keys.control is None


def test_a_key_can_come_from_a_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{SECRET}\n")
    config = node_config(written(tmp_path, f'[keys]\ncontrol_file = "{key}"\n'), environment={})
    assert config.keys.control is not None
    assert config.keys.control.get_secret_value() == SECRET
    with pytest.raises(SettingsError, match=r"keys\.control_file"):
        node_config(None, {"keys.control_file": str(tmp_path / "none")}, {})


@pytest.mark.parametrize("key", ["", "two words", "ключ", "new\nline"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        node_config(None, {"keys.inference": key}, {})
    assert "keys.inference" in str(caught.value)
    assert not key or key not in str(caught.value)


def test_no_secret_is_printed_or_shown(tmp_path: Path) -> None:
    config = node_config(
        None,
        {
            "keys.control": SECRET,
            "keys.inference": SECRET,
            "store.url": f"postgresql://me:{SECRET}@host/db",
            "backends.environment": {"HF_TOKEN": SECRET},
        },
        {},
    )
    assert SECRET not in as_toml(config)
    assert SECRET not in repr(config)
    assert SECRET not in str(config.model_dump())
    assert "HF_TOKEN" in as_toml(config)
    assert config.store_url == f"postgresql://me:{SECRET}@host/db"


def test_what_is_printed_can_be_read_back(tmp_path: Path) -> None:
    config = node_config(
        None,
        {
            "port": 9000,
            "proxy.port": 0,
            "backends.gpus": ["0", "3"],
            "backends.command": ["run", 'a "quoted" path'],
            "callbacks.allow": ["10.0.0.0/8"],
        },
        {},
    )
    again = node_config(written(tmp_path, as_toml(config)), environment={})
    assert again == config


def test_every_setting_is_described() -> None:
    def undescribed(model: type, path: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                found += undescribed(kind, f"{path}{name}.")
            elif not field.description:
                found.append(path + name)
        return found

    assert undescribed(NodeConfig, "") == []
