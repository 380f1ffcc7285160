"""docs/faults.md names, for every fault of the engine part, tests that exist or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = (*range(1, 21), 36, 37)
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def rows() -> dict[int, str]:
    table = (ROOT / "docs" / "faults.md").read_text()
    return {int(fault): held for fault, _, held in ROW.findall(table)}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_names_tests_that_exist(fault: int) -> None:
    named = re.findall(r"`(tests/[^`]+)`", rows()[fault])
    assert named
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }, name
