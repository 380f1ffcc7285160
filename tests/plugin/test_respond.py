"""The evidence on its way back: one response field, one stream chunk."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from assay.plugin.ingest import Job
from assay.plugin.respond import evidence_field, with_chunk, with_field

JOB = Job(
    key="k",
    positions=4,
    mode="processed_logprobs",
    mode_source="inferred",
    inferred={"low_id_ratio": 0.3, "entries": 40},
    trace_field="enforced_tokens",
)


def part(at: list[int], base: int = 0, runner: str = "v2", **changed: Any) -> dict[str, Any]:
    """What one worker measured at the positions ``at``; numbers tell worker and position."""
    made = {
        "size": 4,
        "at": at,
        "drawn": [base + p for p in at],
        "rank_raw": [base + 10 + p for p in at],
        "rank_processed": [base + 20 + p for p in at],
        "logprob_raw": [-float(base + p) for p in at],
        "logprob_processed": [-float(base + 30 + p) for p in at],
        "drawn_raw": [-float(base + 40 + p) for p in at],
        "drawn_processed": [-float(base + 50 + p) for p in at],
        "noise_drawn": [float(base + 60 + p) for p in at],
        "noise_forced": [float(base + 70 + p) for p in at],
        "runner": runner,
        "tape": {"runner": runner, "generation": 1, "fp64": False, "device": "cpu"},
    }
    return {**made, **changed}


def test_the_field_is_the_documented_one() -> None:
    assert evidence_field(JOB, [part([0, 1, 2, 3])]) == {
        "version": 1,
        "runner": "v2",
        "tape": {"runner": "v2", "generation": 1, "fp64": False, "device": "cpu"},
        "logprobs_mode": "processed_logprobs",
        "mode_source": "inferred",
        "inferred": {"low_id_ratio": 0.3, "entries": 40},
        "positions": 4,
        "drawn": [0, 1, 2, 3],
        "rank_raw": [10, 11, 12, 13],
        "rank_processed": [20, 21, 22, 23],
        "logprob_raw": [0.0, -1.0, -2.0, -3.0],
        "logprob_processed": [-30.0, -31.0, -32.0, -33.0],
        "drawn_raw": [-40.0, -41.0, -42.0, -43.0],
        "drawn_processed": [-50.0, -51.0, -52.0, -53.0],
        "noise_drawn": [60.0, 61.0, 62.0, 63.0],
        "noise_forced": [70.0, 71.0, 72.0, 73.0],
        "grammar_conflict": None,
        "complete": True,
    }


def test_shards_are_merged_by_position_and_the_first_worker_speaks() -> None:
    """Sharded samplers hold some positions each; tensor-parallel ranks all hold the same."""
    field = evidence_field(JOB, [None, part([1, 3]), part([0, 1, 2], base=100), None])
    assert field["drawn"] == [100, 1, 102, 3]
    assert field["logprob_raw"] == [-100.0, -1.0, -102.0, -3.0]
    assert field["complete"] is True


def test_identical_ranks_give_one_answer() -> None:
    same = part([0, 1, 2, 3])
    assert evidence_field(JOB, [same, dict(same)]) == evidence_field(JOB, [same])


@pytest.mark.parametrize(
    ("at", "length"), [([0, 1, 2], 3), ([0, 2, 3], 1), ([1, 2, 3], 0), ([], 0)]
)
def test_a_missing_position_makes_it_incomplete_and_nothing_is_shifted(
    at: list[int], length: int
) -> None:
    field = evidence_field(JOB, [part(at)])
    assert field["complete"] is False
    assert field["positions"] == length
    assert field["drawn"] == list(range(length))
    assert all(
        len(field[name]) == length for name in ("rank_raw", "logprob_raw", "logprob_processed")
    )


def test_no_worker_with_evidence_is_incomplete_and_no_error() -> None:
    field = evidence_field(JOB, [None, None])
    assert (field["positions"], field["complete"]) == (0, False)


def test_case10_minus_infinity_becomes_null_and_the_body_is_strict_json() -> None:
    """Case 10: JSON has no infinities. A raw -inf is the grammar's mask: the conflict's position."""
    field = evidence_field(
        JOB,
        [
            part(
                [0, 1, 2, 3],
                logprob_raw=[-1.0, -2.0, -math.inf, -math.inf],
                logprob_processed=[-math.inf, -1.0, -math.inf, -1.0],
            )
        ],
    )
    assert field["logprob_raw"] == [-1.0, -2.0, None, None]
    assert field["logprob_processed"] == [None, -1.0, None, -1.0]
    assert field["grammar_conflict"] == 2
    json.dumps(field, allow_nan=False)


def test_noise_that_cannot_be_repeated_is_null_and_the_body_is_strict_json() -> None:
    """An unseeded request beside a seeded one: NaN in the worker, null in the field."""
    field = evidence_field(
        JOB,
        [part([0, 1, 2, 3], noise_drawn=[math.nan, 0.5, math.inf, 0.0], noise_forced=[0.0] * 4)],
    )
    assert field["noise_drawn"] == [None, 0.5, None, 0.0]
    assert field["noise_forced"] == [0.0] * 4
    json.dumps(field, allow_nan=False)


def test_a_processed_minus_infinity_alone_is_no_grammar_conflict() -> None:
    """It is what top-k and top-p do to an id outside their support."""
    field = evidence_field(JOB, [part([0, 1, 2, 3], logprob_processed=[-math.inf] * 4)])
    assert field["grammar_conflict"] is None


def test_the_field_is_added_and_the_body_kept() -> None:
    body = {"id": "x", "choices": [{"text": "ä", "logprobs": None}], "usage": {"total_tokens": 3}}
    got = with_field(json.dumps(body).encode(), {"version": 1})
    assert got == {**body, "assay": {"version": 1}}


# -- streams

HEAD = {"id": "c-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}


def chunk(**changed: Any) -> str:
    return (
        "data: "
        + json.dumps({**HEAD, "choices": [{"delta": {"content": "x"}}], **changed})
        + "\n\n"
    )


DONE = "data: [DONE]\n\n"


class Fetched:
    """The RPC to the workers: counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return {"version": 1}


async def run(items: list[Any]) -> tuple[list[Any], int]:
    async def stream() -> AsyncIterator[Any]:
        for item in items:
            yield item

    fetched = Fetched()
    return [item async for item in with_chunk(stream(), fetched)], fetched.calls


async def test_one_chunk_with_the_evidence_comes_before_done() -> None:
    items = [chunk(), chunk(), chunk(choices=[], usage={"total_tokens": 2}), DONE]
    got, calls = await run(items)
    assert [*got[:3], got[4]] == items, "nothing else is touched"
    assert got[3].startswith("data: ")
    assert got[3].endswith("\n\n")
    assert json.loads(got[3][6:]) == {**HEAD, "choices": [], "assay": {"version": 1}}
    assert calls == 1


async def test_bytes_and_blank_lines_pass_through_unchanged() -> None:
    items = [chunk().encode(), "\n", ": ping\n\n", memoryview(chunk().encode()), DONE.encode()]
    got, calls = await run(items)
    assert [*got[:4], got[5]] == items
    assert calls == 1


@pytest.mark.parametrize(
    "message", ['data: {"error": {"message": "x"}}\n\n', 'data: {"error":{}}\n\n']
)
async def test_a_stream_that_ends_in_an_error_gets_no_evidence(message: str) -> None:
    items = [chunk(), message, DONE]
    assert await run(items) == (items, 0)


async def test_a_stream_that_was_an_error_from_the_start_gets_none() -> None:
    items = ['data: {"error": {"message": "x"}}\n\n', DONE]
    assert await run(items) == (items, 0)


async def test_a_stream_cut_before_done_gets_none() -> None:
    items = [chunk(), chunk()]
    assert await run(items) == (items, 0)


async def test_several_events_in_one_item_are_still_followed_by_the_evidence() -> None:
    """A server may join events; the last one of an item can be the end."""
    items = [chunk() + chunk(), chunk() + DONE]
    got, calls = await run(items)
    text = "".join(item if isinstance(item, str) else item.decode() for item in got)
    assert calls == 1
    events = [event for event in text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["assay"] == {"version": 1}
    assert text.replace(events[-2] + "\n\n", "") == "".join(items)


async def test_an_error_joined_to_another_event_is_seen() -> None:
    items = [chunk() + 'data: {"error": {"message": "x"}}\n\n', DONE]
    assert await run(items) == (items, 0)
