"""docs/cases.md names, for every public report this project answers, tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The kinds logprob-values, json, token-ids, streaming, structured, async-sched, prompt-logprobs,
# spec-decode, plugin, abort and forced-decoding (issue 2); nondeterminism and audit (issue 4); shm,
# sleep and gonka (issue 5).
CASES = (
    *(1, 2, 3, 5, 7, 8, 9, 10, 13, 15, 16, 17, 19, 20, 22, 23, 24, 25, 27, 28, 30, 32),
    *(33, 35, 37, 39, 40, 41, 42, 44, 46, 47, 49, 50, 51, 53, 54, 56, 57, 59),
)
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.M)


def rows() -> dict[int, list[str]]:
    table = (ROOT / "docs" / "cases.md").read_text()
    return {int(case): re.findall(r"`([^`]+)`", tests) for case, tests in ROW.findall(table)}


@pytest.mark.parametrize("case", CASES)
def test_every_case_names_tests_that_exist(case: int) -> None:
    named = rows()[case]
    assert named
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        found = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in found, name


def test_the_table_has_no_other_rows() -> None:
    assert sorted(rows()) == list(CASES)
