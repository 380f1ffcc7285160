"""The rule that guesses the mode of old claims, and how often it is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.claims.bodies import DATA, chat, entry, needs_data

from assay.claims.mode_inference import infer_mode, main, measure, top_ids
from assay.claims.read_json import read_response


@pytest.mark.parametrize(
    ("low", "entries", "mode"),
    [
        (2, 10, "processed_logprobs"),
        (1, 10, "raw_logprobs"),  # 10 % is not above 10 %
        (0, 10, "raw_logprobs"),
        (9, 9, None),  # too few to judge by
        (0, 0, None),
        (11, 100, "processed_logprobs"),
        (10, 100, "raw_logprobs"),
    ],
)
def test_the_rule(low: int, entries: int, mode: str | None) -> None:
    guess = infer_mode([3] * low + [4] * (entries - low))
    assert guess.mode == mode
    assert guess.entries == entries
    assert guess.ratio == (low / entries if entries else 0.0)


def test_ids_below_four_are_low() -> None:
    assert infer_mode([0, 1, 2, 3] + [4] * 6).ratio == 0.4


def test_case_53_a_tool_call_in_raw_mode_is_misjudged() -> None:
    """Why a guess is reported as one: low ids that are no padding look like padding."""
    content = [
        entry(f"token_id:{i}", -0.2, [(f"token_id:{i}", -0.2), ("token_id:1", -2.0)])
        for i in (60, 44, 46, 10, 44, 60)
    ]
    body = chat(content, choice={"token_ids": [60, 44, 46, 10, 44, 60]})
    positions = read_response(body, {"logprobs_mode": "raw_logprobs"}).positions
    assert positions is not None
    assert infer_mode(top_ids(positions)).mode == "processed_logprobs"


def test_text_gives_no_ids_to_guess_by() -> None:
    content = [entry("a", -0.2, [("a", -0.2), ("b", -2.0)])]
    body = chat(content, choice={"token_ids": None}, prompt_token_ids=None)
    assert top_ids(read_response(body).positions or ()) == []


def test_the_command_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, low in (("a", True), ("b", False)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "meta.json").write_text(json.dumps({"note": "raw logprobs"}))
        content = [
            entry(
                "token_id:50", -0.2, [("token_id:50", -0.2), (f"token_id:{1 if low else 60}", -2)]
            )
            for _ in range(8)
        ]
        body = chat(content, choice={"token_ids": [50] * 8})
        (folder / "inference.json").write_text(json.dumps(body))
    assert main([str(tmp_path)]) == 0
    assert "accuracy 1/2 = 0.500" in capsys.readouterr().out
    assert main([]) == 1


def test_the_command_without_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no accuracy" in capsys.readouterr().out


@needs_data
def test_accuracy_on_real_claims(capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer of known mode is processed; the rule misses those with one alternative."""
    judged = [one for one in measure(DATA) if one.guess is not None and one.guess.mode is not None]
    wrong = [one for one in judged if not one.right]
    assert len(judged) >= 60
    assert all("qwen3-235b" in str(one.file) for one in wrong)
    assert main([str(DATA)]) == 0
    assert f"accuracy {len(judged) - len(wrong)}/{len(judged)}" in capsys.readouterr().out
