"""Refuse a base image whose vLLM this assay does not support, before anything is installed.

    python3 base_engine.py vllm_assay-0.1.0-py3-none-any.whl

The supported range is not written here: the wheel is imported as it lies, and its plugin makes the
check it makes at every start of a server. Needs nothing but the standard library and the wheel.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """0: supported. 1: refused, with the reason on standard error. 2: not called as above."""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        print("usage: base_engine.py WHEEL (the built wheel of vllm-assay)", file=sys.stderr)
        return 2
    sys.path.insert(0, str(Path(arguments[0]).resolve()))
    from assay.cli.machine import ENGINE_PACKAGES, engine
    from assay.errors import SurfaceError
    from assay.plugin.surfaces import check_version

    found = engine()
    if found is None:
        print(
            f"base image refused: {sys.executable} finds no {' or '.join(ENGINE_PACKAGES)}. "
            "Give an image that holds vLLM for this interpreter: --build-arg BASE=IMAGE",
            file=sys.stderr,
        )
        return 1
    package, version = found
    try:
        check_version(version)
    except SurfaceError as error:
        print(f"base image refused: {error}", file=sys.stderr)
        return 1
    print(f"base image accepted: {package} {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
