"""docs/faults.md names, for every lifecycle fault of PoC, tests that exist or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEADING = "## Lifecycle of proof of compute"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def rows() -> dict[int, str]:
    section = (ROOT / "docs" / "faults.md").read_text().partition(HEADING)[2]
    return {int(fault): held for fault, _, held in ROW.findall(section)}


@pytest.mark.parametrize("fault", range(35, 57))
def test_every_fault_names_tests_that_exist_or_a_reason(fault: int) -> None:
    held = rows()[fault]
    named = re.findall(r"`(tests/[^`]+)`", held)
    assert named or held.startswith("Cannot occur: ")
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, functions)}, name
