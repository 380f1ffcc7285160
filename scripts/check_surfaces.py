"""Check every private name of ``assay.plugin.surfaces`` on unpacked vLLM sources, without importing them.

    python scripts/check_surfaces.py .cache/wheels/0.31.0 .cache/wheels/0.33.0

Each folder holds a ``vllm`` package (``make wheels`` makes them). Follows re-exports, so a name
counts where the engine looks it up. Exit code 1 when a name or a parameter is missing.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from assay.plugin.surfaces import SURFACES, Surface


def problems(root: Path, surface: Surface) -> list[str]:
    """What is missing of one surface under ``root``; empty when its structure is there."""
    node = _definition(root, surface.module, surface.name)
    if node is None:
        return [f"{surface.path} is not defined"]
    missing = [
        f"{surface.name} has no parameter {name}"
        for name in surface.params
        if name not in _params(root, surface.module, node)
    ]
    for method, params in surface.methods:
        function = _method(root, surface.module, node, method)
        if function is None:
            missing.append(f"{surface.name} has no method {method}")
            continue
        present = _arguments(function)
        missing += [
            f"{surface.name}.{method} has no parameter {name}"
            for name in params
            if name not in present
        ]
    held = _attributes(root, surface.module, node) if surface.fields else set()
    missing += [f"{surface.name} has no field {n}" for n in surface.fields if n not in held]
    return missing


def _tree(root: Path, module: str) -> ast.Module | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _definition(root: Path, module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """The class or function a module-level name stands for, through ``from x import name``."""
    tree = _tree(root, module)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(root, node.module, alias.name)
    return None


def _method(
    root: Path, module: str, node: ast.ClassDef | ast.FunctionDef, name: str
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
            return item
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        if isinstance(base, ast.Name):
            parent = _definition(root, module, base.id)
            found = parent and _method(root, module, parent, name)
            if found:
                return found
    return None


def _params(root: Path, module: str, node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return _arguments(node)
    init = _method(root, module, node, "__init__")
    return _arguments(init) if init else set()


def _attributes(root: Path, module: str, node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Names a class declares or assigns to ``self``, its bases in the same module included."""
    held = set()
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            held.add(item.target.id)
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            held.add(item.attr)
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        parent = _definition(root, module, base.id) if isinstance(base, ast.Name) else None
        held |= _attributes(root, module, parent) if parent else set()
    return held


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    spec = function.args
    return {item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}


def main(folders: list[str]) -> int:
    failed = False
    for folder in folders:
        for surface in SURFACES:
            found = problems(Path(folder), surface)
            failed |= bool(found)
            print(f"{folder}: {surface.path}: {'; '.join(found) or 'ok'}")
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
