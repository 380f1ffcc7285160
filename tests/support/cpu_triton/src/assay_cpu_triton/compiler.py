"""The compiler half Triton's discovery asks for. The interpreter never calls it."""

from __future__ import annotations

from types import ModuleType

from triton.backends.compiler import BaseBackend, GPUTarget, Language

_NO_COMPILER = (
    "the cpu backend of the tests compiles nothing; set TRITON_INTERPRET=1 before triton is "
    "imported so that kernels are interpreted"
)


class InterpretedBackend(BaseBackend):
    """Refuses every compilation with what to set instead."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "assay-cpu-interpreted"

    def parse_options(self, options: dict) -> object:
        raise RuntimeError(_NO_COMPILER)

    def add_stages(self, stages: dict, options: object, language: Language) -> None:
        raise RuntimeError(_NO_COMPILER)

    def load_dialects(self, context: object) -> None:
        raise RuntimeError(_NO_COMPILER)

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
