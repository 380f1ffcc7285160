"""Where the kit keeps what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assay.attacks.constants import LAYOUT
from assay.attacks.kit import Kit
from assay.attacks.produce import Say
from assay.attacks.traces import Traces
from assay.attacks.vectors import VectorFiles
from assay.demo.models import smollm2
from assay.demo.settings import CacheSettings
from assay.settings import ClientSettings


def cache_folder() -> Path:
    """The folder of the table's claims and replays; it may not exist yet."""
    return CacheSettings().root / "attacks" / f"v{LAYOUT}"


def open_kit(
    folder: Path, environment: Mapping[str, str], settings: ClientSettings, say: Say
) -> Kit:
    """A kit that keeps everything under ``folder``. Makes the demo's model if need be."""
    return open_kit_at(smollm2(), folder, environment, settings, say)


def open_kit_at(
    model: Path,
    folder: Path,
    environment: Mapping[str, str],
    settings: ClientSettings,
    say: Say,
) -> Kit:
    """The same for the model in a folder."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return Kit(
        traces=Traces(folder / "traces"),
        vectors=VectorFiles(folder / "vectors"),
        model=model,
        logs=logs,
        environment={**environment, "POC_STORE_FOLDER": str(logs)},
        settings=settings,
        say=say,
    )
