"""The driver half Triton's discovery asks for: it describes the CPU and launches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

if TYPE_CHECKING:
    import torch


class InterpretedDriver(DriverBase):
    """Never active by itself: vLLM counts the backend by its name, and no GPU is hidden by it."""

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise RuntimeError(f"no C++ launcher exists for {ty}: kernels are interpreted")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        raise RuntimeError("interpreted kernels are not benchmarked")
