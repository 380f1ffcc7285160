"""How the engine tests read an answer.

One :class:`Answer` for chat completions and completions, streamed or not, so that a test can be
written once and run over all four.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity in a JSON body."""
CLOSE = 1e-4
"""Most a log probability may differ between two runs of one request, in nats (float32 here)."""

CHOICE_COLUMNS = ("drawn_processed", "noise_drawn", "logprob_processed", "noise_forced")
COLUMNS = (
    "drawn", "rank_raw", "rank_processed", "logprob_raw", "drawn_raw", *CHOICE_COLUMNS,
)  # fmt: skip

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One answer: ids and chosen log probabilities [positions], alternatives by id a position."""

    ids: list[int]
    chosen: list[float]
    tops: list[dict[int, float]]
    finish: str | None
    stop_reason: int | str | None
    text: str
    assay: dict[str, Any] | None
    usage: dict[str, Any]
    prompt_ids: list[int]


def token_id(spelled: str) -> int:
    """``token_id:17`` as 17; anything else is a fault of the answer."""
    prefix, _, number = spelled.partition(":")
    assert prefix == "token_id", spelled
    return int(number)


def read_json(body: Body, is_chat: bool) -> Answer:
    (choice,) = body["choices"]
    prompt = body.get("prompt_token_ids") if is_chat else choice.get("prompt_token_ids")
    ids, chosen, tops = _scores(choice.get("logprobs"), is_chat)
    if choice.get("token_ids") is not None:
        assert not ids or ids == choice["token_ids"]
        ids = choice["token_ids"]
    return Answer(
        ids=ids,
        chosen=chosen,
        tops=tops,
        finish=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        text=(choice["message"]["content"] if is_chat else choice["text"]) or "",
        assay=body.get("assay"),
        usage=body["usage"],
        prompt_ids=prompt or [],
    )


def read_stream(lines: Sequence[str], is_chat: bool) -> Answer:
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    ids: list[int] = []
    chosen: list[float] = []
    tops: list[dict[int, float]] = []
    words: list[str] = []
    prompt: list[int] = []
    finish = stop_reason = None
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            prompt += (chunk if is_chat else choice).get("prompt_token_ids") or []
            more, more_chosen, more_tops = _scores(choice.get("logprobs"), is_chat)
            ids += choice.get("token_ids") or more
            chosen += more_chosen
            tops += more_tops
            words.append((choice["delta"].get("content") if is_chat else choice["text"]) or "")
            finish = choice["finish_reason"] or finish
            stop_reason = choice.get("stop_reason") or stop_reason
    extra = [chunk for chunk in chunks if "assay" in chunk]
    assert len(extra) <= 1
    assert all(chunk is chunks[-1] and chunk["choices"] == [] for chunk in extra)
    return Answer(
        ids=ids,
        chosen=chosen,
        tops=tops,
        finish=finish,
        stop_reason=stop_reason,
        text="".join(words),
        assay=extra[0]["assay"] if extra else None,
        usage={},
        prompt_ids=prompt,
    )


def _scores(
    scores: Body | None, is_chat: bool
) -> tuple[list[int], list[float], list[dict[int, float]]]:
    if not scores:
        return [], [], []
    if is_chat:
        content = scores["content"] or []
        return (
            [token_id(entry["token"]) for entry in content],
            [entry["logprob"] for entry in content],
            [{token_id(t["token"]): t["logprob"] for t in e["top_logprobs"]} for e in content],
        )
    return (
        [token_id(token) for token in scores["tokens"]],
        list(scores["token_logprobs"]),
        [{token_id(k): v for k, v in top.items()} for top in scores["top_logprobs"] or ()],
    )


def furthest(left: Answer, right: Answer) -> float:
    """Largest difference of a log probability at any position, alternatives included.

    Two alternatives that tie may change places at the end of the list: ids only one side has are
    compared with the other side's smallest.
    """
    assert left.ids == right.ids
    assert len(left.chosen) == len(right.chosen) == len(left.ids)
    gaps = [abs(a - b) for a, b in zip(left.chosen, right.chosen, strict=True)]
    for ours, theirs in zip(left.tops, right.tops, strict=True):
        for token in ours.keys() | theirs.keys():
            gaps.append(
                abs(ours.get(token, min(ours.values())) - theirs.get(token, min(theirs.values())))
            )
    return max(gaps)


def check_evidence(answer: Answer, *, runner: str) -> Body:
    """The evidence field must fit the answer it came with; returns it."""
    field = answer.assay
    assert field is not None
    size = field["positions"]
    assert field["version"] == 1
    assert field["runner"] == runner
    assert field["complete"] is True
    assert {name: len(field[name]) for name in COLUMNS} == dict.fromkeys(COLUMNS, size)
    assert field["tape"]["runner"] == runner
    mode = field["logprobs_mode"].removesuffix("_logprobs")
    for at in range(size if answer.chosen else 0):
        own = field[f"logprob_{mode}"][at]
        assert abs((IMPOSSIBLE if own is None else own) - answer.chosen[at]) <= CLOSE
        # A top list holds the ids of rank 1 to k, and ids that tie with the last.
        inside = [v for v in answer.tops[at].values() if v > answer.chosen[at] + CLOSE]
        assert field[f"rank_{mode}"][at] > len(inside)
    for at in range(size):
        _check_draw(*(field[name][at] for name in CHOICE_COLUMNS))
    return field


def _check_draw(
    drawn: float, noise: float | None, forced: float | None, theirs: float | None
) -> None:
    """The sampler drew argmax(processed + noise): no other id, the forced one included, beats it."""
    assert (noise is None) == (theirs is None)
    if noise is not None and theirs is not None and forced is not None:
        assert drawn + noise >= forced + theirs - CLOSE
