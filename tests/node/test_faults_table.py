"""docs/faults.md names, for every fault the node could have, tests that exist or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def rows() -> dict[int, str]:
    _, _, after = (ROOT / "docs" / "faults.md").read_text().partition("\n## The node\n")
    section = after.partition("\n## ")[0]
    return {int(fault): held for fault, _, held in ROW.findall(section)}


@pytest.mark.parametrize("fault", range(38, 57))
def test_every_fault_names_tests_that_exist_or_a_reason(fault: int) -> None:
    held = rows()[fault]
    named = re.findall(r"`(tests/[^`]+)`", held)
    assert named or held.startswith("Cannot occur: ")
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, functions)}, name


def test_the_table_has_no_other_rows() -> None:
    assert sorted(rows()) == list(range(38, 57))
