"""Results as JSON lines: crashes, other writers, versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.results import make_result

from assay.errors import StoreError
from assay.store.result import claim_digest
from assay.store.results_file import ResultsFile, read_results


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.jsonl"
    results = [make_result("a"), make_result("b", verdict="fail")]
    with ResultsFile(path) as file:
        for result in results:
            file.append(result)
    assert read_results(path) == results


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_crash_inside_a_line_loses_only_that_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path) as file:
        file.append(make_result("a"))
        file.append(make_result("b"))
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert [result.claim.id for result in read_results(path)] == ["a"]
    with ResultsFile(path) as file:
        assert file.cut_bytes > 0
        file.append(make_result("c"))
    assert [result.claim.id for result in read_results(path)] == ["a", "c"]


def test_a_later_result_of_the_same_work_replaces_the_earlier(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path) as file:
        file.append(make_result("a", verdict="inconclusive", blame="validator"))
        file.append(make_result("a"))
        file.append(make_result("a", label="another executor"))
    found = read_results(path)
    assert [(result.label, result.verdict.verdict) for result in found] == [
        ("honest", "pass"),
        ("another executor", "pass"),
    ]


def test_two_writers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path), pytest.raises(StoreError, match="another `assay verify`"):
        ResultsFile(path)
    with ResultsFile(path):
        pass


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"schema_version": 2}', "[1]"])
def test_an_unreadable_line_is_named_and_not_dropped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path) as file:
        file.append(make_result("a"))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(StoreError, match=r"r\.jsonl, line 2"):
        read_results(path)


def test_a_result_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    body = json.loads(make_result("a").model_dump_json()) | {"forged": 1}
    path.write_text(json.dumps(body) + "\n")
    with pytest.raises(StoreError, match="forged"):
        read_results(path)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read results"):
        read_results(tmp_path / "none.jsonl")


def test_digests_follow_the_content() -> None:
    claim = make_result("a").claim
    assert claim_digest(claim) == claim_digest(claim.model_copy())
    assert claim_digest(claim) != claim_digest(claim.model_copy(update={"finish_reason": "stop"}))


def test_an_outage_is_not_settled_and_everything_else_is() -> None:
    assert not make_result("a", verdict="inconclusive", blame="validator").settled
    assert make_result("a", verdict="fail", blame="claim").settled
    assert make_result("a", verdict="inconclusive").settled
