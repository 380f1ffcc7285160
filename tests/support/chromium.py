"""Headless Chromium from the command line: what it makes of a page, as DOM and as a picture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # Nothing outside this machine may be reached, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # Virtual milliseconds for scripts to finish.
    "--virtual-time-budget=10000",
)
LIMIT_S = 120


def chromium() -> str | None:
    """The command, or ``None`` where none is installed (``scripts/browser.sh`` installs one)."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def dump_dom_of(url: str, profile: Path) -> str:
    """The same of a page that a server on this machine serves."""
    return _open(url, profile, "--dump-dom").stdout


def screenshot_of(url: str, picture: Path, profile: Path) -> None:
    """A picture (PNG) of a served page, 1100 x 700 pixels."""
    _open(url, profile, f"--screenshot={picture}", "--window-size=1100,700")


def dump_dom(page: Path, profile: Path, *, fragment: str = "") -> str:
    """The DOM of ``page`` as HTML after its scripts have run."""
    return _run(page, profile, fragment, "--dump-dom").stdout


def screenshot(page: Path, picture: Path, profile: Path, width: int, height: int) -> None:
    """Write ``picture`` (PNG) of the top ``width x height`` pixels of ``page``."""
    _run(page, profile, "", f"--screenshot={picture}", f"--window-size={width},{height}")


def _run(page: Path, profile: Path, fragment: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return _open(page.resolve().as_uri() + fragment, profile, *flags)


def _open(address: str, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = chromium()
    if command is None:
        raise RuntimeError("no Chromium: run scripts/browser.sh")
    return subprocess.run(
        [command, *FLAGS, f"--user-data-dir={profile}", *flags, address],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
