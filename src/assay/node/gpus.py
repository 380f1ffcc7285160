"""GPUs of this machine through NVML, where the optional package nvidia-ml-py is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True)
class GpuDevice:
    """One device, field for field as clients read it. A sensor that does not answer is ``None``."""

    index: int
    name: str
    uuid: str | None
    total_memory_mb: int
    free_memory_mb: int
    used_memory_mb: int
    utilization_percent: int | None
    temperature_c: int | None
    is_available: bool = True
    error_message: str | None = None


def visible_gpus(configured: Sequence[str] | None, environment: Mapping[str, str]) -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES: those configured, else those of the environment, else all."""
    if configured is not None:
        return list(configured)
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [part.strip() for part in named.split(",") if part.strip() not in ("", "-1")]
    with _nvml() as nvml:
        if not isinstance(nvml, str):
            return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    nodes = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name for name in nodes if name.isdecimal()), key=int)


def devices() -> tuple[list[GpuDevice], str | None]:
    """All devices, and why there are none."""
    with _nvml() as nvml:
        if isinstance(nvml, str):
            return [], nvml
        return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())], None


def driver() -> dict[str, str] | str:
    """Versions of the driver, of the newest CUDA it can run, and of NVML; else why not."""
    with _nvml() as nvml:
        if isinstance(nvml, str):
            return nvml
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "driver_version": _text(nvml.nvmlSystemGetDriverVersion()),
            "cuda_driver_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "nvml_version": _text(nvml.nvmlSystemGetNVMLVersion()),
        }


@contextmanager
def _nvml() -> Iterator[Any]:
    """The module, initialised; a text that says why it cannot be used."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        yield "NVML is not available here: the package nvidia-ml-py is not installed"
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield f"NVML is not available here: {error}"
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> GpuDevice:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name, uuid = (
            _text(nvml.nvmlDeviceGetName(handle)),
            _text(nvml.nvmlDeviceGetUUID(handle)),
        )
    except nvml.NVMLError as error:
        return GpuDevice(index, "unknown", None, 0, 0, 0, None, None, False, str(error))
    return GpuDevice(
        index=index,
        name=name,
        uuid=uuid,
        total_memory_mb=memory.total // MIB,
        free_memory_mb=memory.free // MIB,
        used_memory_mb=memory.used // MIB,
        utilization_percent=_sensor(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature_c=_sensor(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, 0)),
    )


def _sensor(nvml: Any, read: Any) -> int | None:
    try:
        return int(read())
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
