"""The twins module of the CPU Triton helper, for tests that do not start a server."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from tests.support.cpu_triton_site import SOURCE


def load_twins() -> ModuleType:
    """Loaded from its file: the helper must not be importable in the tests' own process."""
    file = SOURCE / "src" / "assay_cpu_triton" / "twins.py"
    spec = importlib.util.spec_from_file_location("assay_cpu_triton_twins", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
