"""docs/faults.md names, for every fault of the PoC forward, tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## Forward of proof of compute"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def rows() -> dict[int, str]:
    section = (ROOT / "docs" / "faults.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    return {int(fault): held for fault, _, held in ROW.findall(section)}


@pytest.mark.parametrize("fault", [*range(21, 35), 72, 74])
def test_every_fault_names_tests_that_exist(fault: int) -> None:
    named = re.findall(r"`(tests/[^`]+)`", rows()[fault])
    assert named
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, functions)}, name
