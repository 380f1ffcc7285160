"""Makes a folder for PYTHONPATH that vLLM finds a general plugin in, without installing it."""

from __future__ import annotations

from pathlib import Path


def general_plugin(folder: Path, name: str, module: str, source: str) -> Path:
    """Write ``module`` with ``source`` and the metadata that names ``module:register`` as ``name``."""
    info = folder / f"{module}-0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {module}:register\n")
    return folder
