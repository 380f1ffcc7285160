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
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # Virtual milliseconds for scripts to finish.
    "--virtual-time-budget=10000",
)
LIMIT_S = 120


def chromium() -> str | None:
    """The command, or ``None`` where none is installed (``scripts/browser.sh`` installs one)."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def dump_dom(page: Path, profile: Path, *, fragment: str = "") -> str:
    """The DOM of ``page`` as HTML after its scripts have run."""
    return _run(page, profile, fragment, "--dump-dom").stdout


def screenshot(page: Path, picture: Path, profile: Path, width: int, height: int) -> None:
    """Write ``picture`` (PNG) of the top ``width x height`` pixels of ``page``."""
    _run(page, profile, "", f"--screenshot={picture}", f"--window-size={width},{height}")


def _run(page: Path, profile: Path, fragment: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = chromium()
    if command is None:
        raise RuntimeError("no Chromium: run scripts/browser.sh")
    return subprocess.run(
        [command, *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri() + fragment],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
