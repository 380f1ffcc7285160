"""Claims and replays on disk survive a crash in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.made import honest, real_replay

from assay.attacks.traces import Traces
from assay.errors import StoreError


def test_what_was_written_is_read_in_order(tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    claims = [honest("honest-0001"), honest("honest-0000", first=300)]
    for claim in claims:
        traces.add_claims("honest", [claim])
    assert list(traces.claims("honest").values()) == claims
    replay = real_replay(claims[0])
    traces.add_replays("honest", "decode", [replay])
    assert traces.replays("honest", "decode") == {replay.id: replay}
    assert traces.replays("honest", "prefill") == {} and traces.claims("other") == {}


def test_a_line_cut_by_a_crash_is_made_again(tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    traces.add_claims("honest", [honest("honest-0000"), honest("honest-0001")])
    file = tmp_path / "claims" / "honest.jsonl"
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert list(traces.claims("honest")) == ["honest-0000"]
    traces.add_claims("honest", [honest("honest-0002")])
    assert list(traces.claims("honest")) == ["honest-0000", "honest-0002"]


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "honest.jsonl").write_text('{"id": "x"}\n', encoding="utf-8")
    with pytest.raises(StoreError, match=r"honest\.jsonl line 1: not a claim"):
        Traces(tmp_path).claims("honest")
