"""Settings from the environment: every documented name, defaults as operators know them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.errors import SettingsError
from assay.plugin.poc.settings import PocSettings, poc_settings

DOCS = Path(__file__).resolve().parents[3] / "docs" / "poc-server.md"
WIRE_DEFAULTS = {
    "POC_BATCH_SIZE_DEFAULT": 32,
    "POC_RPC_TIMEOUT_MS": 60_000,
    "POC_GENERATE_CHUNK_TIMEOUT_SEC": 60,
    "POC_GENERATE_RESULT_TTL_SEC": 300,
    "POC_MAX_QUEUED_NONCES": 100_000,
    "POC_CALLBACK_INTERVAL_SEC": 5,
    "POC_CALLBACK_MAX_ARTIFACTS": 1_000_000,
    "POC_CALLBACK_MAX_RETRIES": 10,
    "POC_CALLBACK_MAX_CONCURRENT": 10,
    "POC_CALLBACK_QUEUE_SIZE": 10_000,
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PocSettings.model_fields:
        monkeypatch.delenv(f"POC_{name.upper()}", raising=False)


@pytest.mark.parametrize(("name", "default"), WIRE_DEFAULTS.items())
def test_names_and_defaults_that_operators_set_today(
    monkeypatch: pytest.MonkeyPatch, name: str, default: int
) -> None:
    field = name.removeprefix("POC_").lower()
    assert getattr(poc_settings(), field) == default
    monkeypatch.setenv(name, "7")
    assert getattr(poc_settings(), field) == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POC_POLICY", "off"),
        ("POC_POLICY", "Exclusive,share"),
        ("POC_SHARE", "0"),
        ("POC_SHARE", "1.5"),
        ("POC_SHARE", "nan"),
        ("POC_BATCH_SIZE_DEFAULT", "0"),
        ("POC_BATCH_SIZE_DEFAULT", "many"),
        ("POC_MAX_QUEUED_NONCES", "-1"),
        ("POC_CALLBACK_INTERVAL_SEC", "soon"),
    ],
)
def test_f48_a_setting_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        poc_settings()


def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_POLICY", "")
    assert poc_settings().policy == "exclusive"


def test_hosts_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_CALLBACK_ALLOW", "api.example, 10.0.0.0/8,")
    assert poc_settings().callback_allow == ("api.example", "10.0.0.0/8")


def test_every_server_has_its_own_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_STORE_FOLDER", "/data")
    assert poc_settings().store_at(8000) == "/data/poc-8000.sqlite3"
    assert poc_settings().store_at(8001) == "/data/poc-8001.sqlite3"
    monkeypatch.setenv("POC_STORE", "postgresql+psycopg://host/name")
    assert poc_settings().store_at(8000) == "postgresql+psycopg://host/name"


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"^\| `(POC_[A-Z_]+)` \|", DOCS.read_text(), re.M))
    assert documented == {f"POC_{name.upper()}" for name in PocSettings.model_fields}
