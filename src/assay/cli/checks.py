"""Checks of ``assay doctor`` on this machine. None of them imports an engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from assay.cli import machine
from assay.errors import SettingsError
from assay.plugin.constants import RING_CHUNKS_SETTING, SUPPORTED_ENGINES
from assay.plugin.ring import needed_bytes, parse_chunks

State = Literal["pass", "warn", "fail"]
MIB = 1 << 20
SHM = Path("/dev/shm")
TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True)
class Check:
    """One finding: a sentence about what is, and where it matters what to do."""

    name: str
    state: State
    message: str
    action: str = ""


def local_checks(environment: Mapping[str, str]) -> list[Check]:
    """Everything that can be known without a server."""
    return [
        engine_check(),
        runner_check(environment),
        entry_points_check(),
        plugins_setting_check(environment.get("VLLM_PLUGINS")),
        *torch_checks(),
        ring_check(environment),
    ]


def engine_check() -> Check:
    found = machine.engine()
    if found is None:
        return Check(
            "engine",
            "warn",
            "no vLLM is installed here: enough for record, verify, score and report",
            "to serve models install vllm-assay[gpu] or vllm-assay[cpu]",
        )
    package, version = found
    supported = ", ".join(f"{minor}.x" for minor in SUPPORTED_ENGINES)
    if re.match(r"\d+\.\d+(?=\.|$)", version) and ".".join(version.split(".")[:2]) in (
        SUPPORTED_ENGINES
    ):
        return Check("engine", "pass", f"{package} {version} is one of the supported {supported}")
    return Check(
        "engine",
        "fail",
        f"{package} {version} is outside the supported {supported}; the plugin refuses to load",
        f"install one of {supported}, or upgrade vllm-assay",
    )


def runner_check(environment: Mapping[str, str]) -> Check:
    """Which model runner vLLM would pick, by the rule of its ``VllmConfig.use_v2_model_runner``."""
    if machine.engine() is None:
        return Check("runner", "pass", "no engine, so no model runner")
    forced = environment.get("VLLM_USE_V2_MODEL_RUNNER")
    if forced is not None:
        name = "V2" if forced.strip().lower() in ("1", "true") else "V1"
        return Check("runner", "pass", f"{name}, because VLLM_USE_V2_MODEL_RUNNER={forced}")
    if machine.hardware() == "cpu":
        backends = {point.name for point in metadata.entry_points(group="triton.backends")}
        if machine.installed("triton") and "cpu" in backends:
            return Check("runner", "pass", "V2: Triton has a CPU backend")
        return Check("runner", "pass", "V1: Triton has no CPU backend, which V2 needs")
    if machine.installed("triton") is None and machine.installed("pytorch-triton-xpu") is None:
        return Check("runner", "warn", "V1: Triton is not installed", "install triton to get V2")
    return Check("runner", "pass", "V2, unless the model needs a feature that V2 lacks")


def entry_points_check() -> Check:
    missing = [
        f"{name} in {group}"
        for group, name in machine.PLUGIN_GROUPS.items()
        if name not in {point.name for point in metadata.entry_points(group=group)}
    ]
    if missing:
        return Check(
            "plugin",
            "fail",
            f"entry points not visible to vLLM: {', '.join(missing)}",
            "install vllm-assay with pip into the environment of vLLM",
        )
    return Check("plugin", "pass", "both entry points are visible to vLLM")


def plugins_setting_check(value: str | None) -> Check:
    names = None if value is None else [name.strip() for name in value.split(",")]
    if names is None:
        return Check(
            "VLLM_PLUGINS",
            "warn",
            "not set: plain `vllm serve` would load the sampler but not the routes",
            "start with `assay serve`, or set VLLM_PLUGINS=assay,assay_endpoints",
        )
    missing = [name for name in machine.PLUGINS if name not in names]
    if missing:
        return Check(
            "VLLM_PLUGINS",
            "fail",
            f"is an allow-list without {', '.join(missing)}: plain `vllm serve` would not load it",
            f"set VLLM_PLUGINS={machine.plugin_names(value)}, or start with `assay serve`",
        )
    return Check("VLLM_PLUGINS", "pass", f"names both plugins ({value})")


def torch_checks() -> list[Check]:
    """Packages built for another torch: transformers imports them and falls over."""
    torch = machine.installed("torch")
    if torch is None:
        return [Check("torch", "pass", "torch is not installed, so nothing can clash with it")]
    found = [(name, machine.installed(name)) for name in TORCH_COMPANIONS]
    checks = [
        companion_check(name, version, torch, _torch_wanted(name))
        for name, version in found
        if version is not None
    ]
    none = Check("torch", "pass", f"torch {torch} and no companion package that could clash")
    return checks or [none]


def companion_check(name: str, version: str, torch: str, wanted: str | None) -> Check:
    """Compare one companion's build with torch's: release (``wanted``) and local label (+cpu)."""
    base, _, label = torch.partition("+")
    own_label = version.partition("+")[2]
    clash = (wanted is not None and wanted != base) or own_label != label
    if not clash:
        return Check(name, "pass", f"{name} {version} matches torch {torch}")
    return Check(
        name,
        "fail",
        f"{name} {version} was not built for torch {torch}; importing a model then fails with"
        " 'operator torchvision::nms does not exist' or a missing symbol",
        f"pip uninstall {name}: text models do not need it",
    )


def _torch_wanted(name: str) -> str | None:
    """The torch release that ``name`` pins in its metadata."""
    for requirement in metadata.requires(name) or []:
        match = re.match(r"torch\s*\(?==\s*([0-9.]+)", requirement)
        if match:
            return match.group(1)
    return None


def ring_check(environment: Mapping[str, str], shm: Path = SHM, workers: int = 1) -> Check:
    """Whether /dev/shm can hold the broadcast rings of one engine with ``workers`` workers."""
    try:
        chunks = parse_chunks(environment.get(RING_CHUNKS_SETTING))
    except SettingsError as error:
        return Check(RING_CHUNKS_SETTING, "fail", str(error), "correct or unset it")
    if not shm.is_dir():
        return Check("/dev/shm", "warn", f"{shm} does not exist", "mount it: vLLM needs it")
    free = shutil.disk_usage(shm).free // MIB
    need = needed_bytes(workers, chunks) // MIB
    each = (needed_bytes(workers + 1, chunks) - needed_bytes(workers, chunks)) // MIB
    sizes = (
        f"{free} MiB free; one engine's rings can take {need} MiB with {workers} worker and about"
        f" {each} MiB more for each further one ({chunks or 'stock'} chunks)"
    )
    if free < need:
        return Check(
            "/dev/shm",
            "fail",
            sizes,
            "give the container a larger --shm-size, or lower VLLM_MQ_MAX_CHUNKS",
        )
    return Check("/dev/shm", "pass", sizes)
