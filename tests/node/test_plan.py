"""How many backends a request makes, and on which GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from assay.node import gpus
from assay.node.config import Backends
from assay.node.failures import NodeRefusal
from assay.node.plan import UpRequest, backend_environment, effective_flags, gpu_slices, gpus_each
from assay.settings import process_environment


@pytest.mark.parametrize(
    ("flags", "each"),
    [
        ([], 1),
        (["--tensor-parallel-size", "4"], 4),
        (["--tensor_parallel_size=4", "--pipeline-parallel-size", "2"], 8),
        (["-tp", "2", "-pp=3"], 6),
        (["--tensor-parallel-size", "2", "--tensor-parallel-size", "4"], 4),
        (["-tp", "2", "-dp", "2"], 4),
        (["--max-model-len", "2"], 1),
    ],
)
def test_gpus_a_backend_needs(flags: list[str], each: int) -> None:
    assert gpus_each(flags) == each


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5"])
def test_a_parallel_size_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(NodeRefusal, match="expected a number from 1"):
        gpus_each(["--tensor-parallel-size", value])


@pytest.mark.parametrize(
    ("count", "each", "instances", "slices"),
    [
        (8, 2, None, [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]),
        (8, 3, None, [("0", "1", "2"), ("3", "4", "5")]),
        (4, 8, None, [("0", "1", "2", "3")]),  # vLLM itself says that these are too few
        (0, 4, None, [()]),
        (0, 1, 2, [(), ()]),
        (4, 1, 2, [("0",), ("1",)]),
    ],
)
def test_slices(
    count: int, each: int, instances: int | None, slices: list[tuple[str, ...]]
) -> None:
    """max(1, GPUs // (TP * PP)), a CPU box being one slice."""
    assert gpu_slices([str(i) for i in range(count)], each, instances) == slices


def test_more_backends_than_the_gpus_hold_are_refused() -> None:
    with pytest.raises(NodeRefusal, match="3 backends of 2 GPUs need 6 and there are 4"):
        gpu_slices(["0", "1", "2", "3"], 2, 3)


async def test_the_real_command_is_asked_what_it_would_do(tiny_path: Path) -> None:
    serve = (sys.executable, "-m", "assay.cli.main", "serve")
    request = UpRequest(model=str(tiny_path), dtype="float32", additional_args=("-tp", "2"))
    flags = await effective_flags(serve, request, process_environment())
    assert str(tiny_path) in flags
    assert gpus_each(flags) == 2
    assert flags[flags.index("--dtype") + 1] == "float32"
    with pytest.raises(NodeRefusal, match="worker extension"):
        bad = UpRequest(model=str(tiny_path), additional_args=("--worker-extension-cls", "x"))
        await effective_flags(serve, bad, process_environment())


async def test_presets_of_the_command_count_too() -> None:
    """The 235B preset sets TP 4 on NVIDIA hardware; nothing on a CPU."""
    serve = (sys.executable, "-m", "assay.cli.main", "serve")
    request = UpRequest(model="Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")
    flags = await effective_flags(serve, request, process_environment())
    preset = "--tensor-parallel-size" in flags
    assert gpus_each(flags) == (4 if preset else 1)


@pytest.mark.parametrize(
    "request_",
    [
        UpRequest(model="--model"),
        UpRequest(model="m", dtype="--x"),
        UpRequest(model="m", additional_args=("--host=0.0.0.0",)),
        UpRequest(model="m", additional_args=("--uds", "/x")),
        UpRequest(model="m", additional_args=("a\0b",)),
    ],
)
async def test_what_only_the_node_decides_is_refused(request_: UpRequest) -> None:
    from assay.node.plan import plan

    with pytest.raises(NodeRefusal) as caught:
        await plan(request_, Backends(command=(sys.executable, "-c", "raise SystemExit(9)")))
    assert caught.value.status == 400


def test_backends_do_not_get_the_nodes_keys() -> None:
    settings = Backends.model_validate({"environment": {"POC_POLICY": "share"}})
    environment = backend_environment(settings, {"PATH": "/bin", "ASSAY_NODE_CONTROL_KEY": "k"})
    assert environment == {"PATH": "/bin", "POC_POLICY": "share"}


def test_visible_gpus_are_those_configured_then_those_of_the_environment() -> None:
    assert gpus.visible_gpus(["3"], {"CUDA_VISIBLE_DEVICES": "0,1"}) == ["3"]
    assert gpus.visible_gpus(None, {"CUDA_VISIBLE_DEVICES": "0, GPU-abc"}) == ["0", "GPU-abc"]
    assert gpus.visible_gpus(None, {"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpus.visible_gpus(None, {"CUDA_VISIBLE_DEVICES": "-1"}) == []


NVML = """
# The calls of nvidia-ml-py that the node makes, on a machine with two GPUs, one of them lost.
class NVMLError(Exception): pass
class Memory: total, free, used = 80 * 2**30, 60 * 2**30, 20 * 2**30
class Rates: gpu = 45
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index: raise NVMLError("GPU is lost")
    return index
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetName(handle): return "NVIDIA H100"
def nvmlDeviceGetUUID(handle): return b"GPU-1"
def nvmlDeviceGetUtilizationRates(handle): return Rates
def nvmlDeviceGetTemperature(handle, sensor): raise NVMLError("no sensor")
def nvmlSystemGetCudaDriverVersion(): return 12080
def nvmlSystemGetDriverVersion(): return "570.1"
def nvmlSystemGetNVMLVersion(): return "12.570.1"
"""


def test_devices_and_driver_as_nvml_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no NVML, so a module with its calls stands in for it."""
    nvml = ModuleType("pynvml")
    exec(NVML, nvml.__dict__)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found, reason = gpus.devices()
    assert reason is None
    assert (found[0].name, found[0].uuid, found[0].index) == ("NVIDIA H100", "GPU-1", 0)
    assert (found[0].total_memory_mb, found[0].used_memory_mb) == (81920, 20480)
    assert (found[0].utilization_percent, found[0].temperature_c) == (45, None)
    assert (found[1].is_available, found[1].error_message) == (False, "GPU is lost")
    assert gpus.visible_gpus(None, {}) == ["0", "1"]
    assert gpus.driver() == {
        "driver_version": "570.1",
        "cuda_driver_version": "12.8",
        "nvml_version": "12.570.1",
    }
