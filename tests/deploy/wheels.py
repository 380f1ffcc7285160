"""Wheels made on the spot, so that the guards of the container meet real installations offline."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Iterable[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A pure wheel. Without ``files`` it holds one module that knows its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content = {
        **(files or {f"{module}.py": f"VERSION = {version!r}\n".encode()}),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(data)},{len(data)}\n" for path, data in content.items())
    content[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return wheel


def assay_wheel(folder: Path, requires: Iterable[str] = (), version: str = "0.1.0") -> Path:
    """This checkout's assay, with requirements of the test's choosing."""
    files = {
        path.relative_to(SOURCE).as_posix(): path.read_bytes()
        for path in sorted((SOURCE / "assay").rglob("*.py"))
    }
    return make_wheel(folder, "vllm-assay", version, requires, files)


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"
