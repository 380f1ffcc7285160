"""The command as a whole: version, help, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay import __version__
from assay.cli import docs
from assay.cli.exits import exit_code
from assay.cli.main import run

COMMANDS = ("demo", "serve", "record", "verify", "score", "report", "doctor", "poc")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"assay {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command} " in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage: assay" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["verify"], ["verify", "x", "--nonsense"], ["nonsense"], ["report"]]
)
def test_a_usage_error_is_1_and_never_reads_as_a_failed_verification(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("assay: ")
    assert errors.count("\n") == 1


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASSAY_TIMEOUT_S", "soon")
    assert run(["doctor", "--server", "http://127.0.0.1:9"]) == 1
    assert "ASSAY_TIMEOUT_S" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "fail", "inconclusive"], 2),
        (["pass", "inconclusive"], 3),
        (["inconclusive"], 3),
        ([], 3),
    ],
)
def test_exit_codes(verdicts: list[str], code: int) -> None:
    assert exit_code(verdicts) == code


def test_the_console_script_passes_the_code_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "verify"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_docs_cli_md_is_current() -> None:
    """Written by ``python -m assay.cli.docs``."""
    file = Path(__file__).parents[2] / "docs" / "cli.md"
    assert file.read_text(encoding="utf-8") == docs.render(), (
        "docs/cli.md is not what the commands say; run: python -m assay.cli.docs > docs/cli.md"
    )
