"""``assay score``: files in, exit code and JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.claims.bodies import chat, entry, sse
from tests.scoring.sides import DATA, needs_data, positions
from typer import Typer
from typer.testing import CliRunner

from assay.claims.jsonl import dump_claim
from assay.claims.positions import IMPOSSIBLE, Position
from assay.claims.read_json import read_response
from assay.cli.score import score, score_files
from assay.errors import ClaimError, SettingsError

app = Typer()
app.command()(score)


def body(held: tuple[Position, ...], **fields: Any) -> dict[str, Any]:
    content = [
        entry(
            f"token_id:{p.token}",
            p.logprob,
            [
                (f"token_id:{e.key}", -9999.0 if e.logprob == IMPOSSIBLE else e.logprob)
                for e in p.top
            ],
        )
        for p in held
    ]
    return chat(content, choice={"token_ids": [p.token for p in held]}, **fields)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    claim, replay = tmp_path / "claim.json", tmp_path / "replay.json"
    claim.write_text(json.dumps(body(positions(48, noise=0.002))))
    replay.write_text(json.dumps(body(positions(48))))
    return claim, replay


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_pass_is_0_and_json_is_one_object(files: tuple[Path, Path]) -> None:
    code, output = run(*files, "--json")
    verdict = json.loads(output)
    assert code == 0
    assert verdict["verdict"] == "pass"
    assert verdict["reasons"] == []
    assert verdict["positions"] == 48
    assert verdict["similarity"] > 0.99
    assert verdict["similarity_v1"] > 0.99
    assert verdict["top1_agreement"] == 1.0


def test_fail_is_2(files: tuple[Path, Path]) -> None:
    files[0].write_text(json.dumps(body(positions(48, noise=1.5))))
    code, output = run(*files, "--json")
    assert code == 2
    assert json.loads(output)["reasons"][0]["code"] == "similarity_below"


def test_inconclusive_is_3(files: tuple[Path, Path]) -> None:
    files[0].write_text(json.dumps(body(positions(10))))
    code, output = run(*files)
    assert code == 3
    assert "too_short_to_tell" in output


def test_a_recorded_claim_of_our_own_form(files: tuple[Path, Path]) -> None:
    claim = read_response(files[0].read_bytes())
    files[0].write_text(dump_claim(claim))
    assert run(*files)[0] == 0


def test_a_streamed_claim_and_replay(files: tuple[Path, Path]) -> None:
    for file in files:
        whole = json.loads(file.read_text())
        choice = whole["choices"][0]
        chunks = [
            {
                "id": "chatcmpl-1",
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": "x"},
                        "logprobs": {"content": [one]},
                        "token_ids": [token],
                        "finish_reason": None,
                    }
                ],
            }
            for one, token in zip(choice["logprobs"]["content"], choice["token_ids"], strict=True)
        ]
        last = {"id": "chatcmpl-1", "choices": [], "usage": whole["usage"]}
        file.write_text("\n".join(sse(*chunks, last)))
    assert run(*files)[0] == 0


@pytest.mark.parametrize("literal", ["NaN", "Infinity"])
def test_case_10_a_claim_with_nan_fails_with_line_and_column(
    files: tuple[Path, Path], literal: str
) -> None:
    held = json.loads(files[0].read_text())
    held["choices"][0]["logprobs"]["content"][4]["logprob"] = "HERE"
    files[0].write_text(json.dumps(held, indent=1).replace('"HERE"', literal))
    code, output = run(*files, "--json")
    verdict = json.loads(output)
    assert (code, verdict["verdict"]) == (2, "fail")
    assert verdict["reasons"][0]["code"] == "malformed"
    assert "line " in verdict["reasons"][0]["message"]
    assert "column " in verdict["reasons"][0]["message"]


@pytest.mark.parametrize("literal", ["-Infinity", "null", "-9999.0"])
def test_case_10_impossible_in_a_claim_is_read(files: tuple[Path, Path], literal: str) -> None:
    for file in files:
        held = json.loads(file.read_text())
        held["choices"][0]["logprobs"]["content"][4]["top_logprobs"][4]["logprob"] = "HERE"
        file.write_text(json.dumps(held).replace('"HERE"', literal))
    assert run(*files)[0] == 0


def test_case_10_a_replay_with_nan_decides_nothing(files: tuple[Path, Path]) -> None:
    files[1].write_text(files[1].read_text().replace('"logprob": -', '"logprob": NaN, "x": -', 1))
    code, output = run(*files, "--json")
    assert code == 3
    assert json.loads(output)["reasons"][0]["code"] == "replay_unavailable"


def test_case_27_a_truncated_claim_fails(files: tuple[Path, Path]) -> None:
    held = body(positions(1))
    held["usage"]["completion_tokens"] = 4
    held["choices"][0]["token_ids"] = None
    files[0].write_text(json.dumps(held))
    code, output = run(*files, "--json")
    assert code == 2
    assert json.loads(output)["reasons"][0]["code"] == "position_gap"


def test_case_46_a_claim_without_log_probabilities_fails(files: tuple[Path, Path]) -> None:
    for logprobs in (None, {"content": []}, {"content": None}):
        held = body(positions(48))
        held["choices"][0]["logprobs"] = logprobs
        files[0].write_text(json.dumps(held))
        code, output = run(*files, "--json")
        assert code == 2
        assert json.loads(output)["reasons"][0]["code"] == "one_sided_evidence"


def test_case_1_modes_given_on_the_command_line(files: tuple[Path, Path]) -> None:
    code, output = run(
        *files, "--claim-mode", "raw_logprobs", "--replay-mode", "processed_logprobs"
    )
    assert code == 3
    assert "mode_mismatch" in output
    same = ("--claim-mode", "raw_logprobs", "--replay-mode", "raw_logprobs")
    assert run(*files, *same)[0] == 0
    with pytest.raises(SettingsError):
        run(*files, "--claim-mode", "raw")


def test_natural_and_enforced(files: tuple[Path, Path]) -> None:
    held = json.loads(files[1].read_text())
    held["choices"][0]["token_ids"][40] = 7
    held["choices"][0]["logprobs"]["content"][40]["token"] = "token_id:7"
    files[1].write_text(json.dumps(held))
    assert run(*files)[0] == 3
    assert run(*files, "--natural")[0] == 3
    assert run(*files, "--enforced")[0] == 2


def test_threshold_vocabulary_and_request(files: tuple[Path, Path], tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "m", "max_tokens": 8}))
    assert run(*files, "--threshold", "0.5")[0] == 0
    assert run(*files, "--vocab-size", "10")[0] == 2
    assert run(*files, "--request", request)[0] == 2  # 48 tokens although max_tokens was 8
    with pytest.raises(SettingsError):
        run(*files, "--threshold", "1")


@pytest.mark.parametrize("text", ["", "not json", '{"a": ', "\x00"])
def test_a_file_that_is_no_json_is_an_error(files: tuple[Path, Path], text: str) -> None:
    for file in files:
        kept = file.read_text()
        file.write_text(text)
        with pytest.raises(ClaimError, match=file.name):
            score_files(*files)
        file.write_text(kept)


def test_a_missing_file_and_several_choices_are_errors(files: tuple[Path, Path]) -> None:
    with pytest.raises(ClaimError, match=r"none\.json"):
        score_files(files[0].with_name("none.json"), files[1])
    held = json.loads(files[0].read_text())
    held["choices"].append(held["choices"][0])
    files[0].write_text(json.dumps(held))
    with pytest.raises(ClaimError, match="n=1"):
        score_files(*files)


def test_hostile_text_does_not_reach_the_terminal(files: tuple[Path, Path]) -> None:
    held = json.loads(files[0].read_text())
    held["choices"][0]["logprobs"]["content"][1]["token"] = "\x1b[2J"
    files[0].write_text(json.dumps(held))
    assert "\x1b" not in run(*files)[1]


def test_the_module_is_a_command_of_its_own(files: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "assay.cli.score"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "verdict: pass" in done.stdout
    missing = [*command, "none.json", str(files[1])]
    done = subprocess.run(missing, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot read none.json" in done.stderr


@needs_data
@pytest.mark.parametrize(
    ("case", "code", "similarity"), [("same_model", 0, 1.0), ("awq_int4_vs_fp8", 3, 0.966889)]
)
def test_recorded_qwq_pairs(case: str, code: int, similarity: float) -> None:
    folder = DATA / "gonka-testdata" / f"qwq32b_{case}"
    found, output = run(folder / "inference.json", folder / "validation-1.json", "--json")
    assert found == code
    assert json.loads(output)["similarity"] == pytest.approx(similarity, abs=1e-6)
