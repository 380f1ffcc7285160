"""Claims in files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.claims.bodies import DATA, chat, completion, needs_data

from assay.claims.claim import Claim, Prompt, Usage
from assay.claims.jsonl import dump_claim, load_claim, read_claims, write_claims
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.claims.read_json import read_response
from assay.claims.schema import claim_schema, main
from assay.errors import ClaimError

DOCS = Path(__file__).resolve().parents[2] / "docs"

logprobs = st.one_of(
    st.just(IMPOSSIBLE), st.floats(max_value=0, allow_nan=False, allow_infinity=False)
)
keys = st.one_of(st.integers(0, 2**31), st.binary(max_size=6).map(lambda raw: f"text:{raw.hex()}"))
position_lists = st.lists(
    st.builds(
        Position,
        token=keys,
        logprob=logprobs,
        top=st.lists(st.builds(TopEntry, key=keys, logprob=logprobs), max_size=4).map(tuple),
        duplicates=st.integers(0, 3),
    ),
    max_size=4,
).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
claims = st.builds(
    Claim,
    id=st.text(min_size=1),
    endpoint=st.sampled_from(["chat", "completions"]),
    prompt=st.builds(
        Prompt,
        token_ids=st.none() | st.lists(st.integers(0, 99)).map(tuple),
        text=st.none() | st.text(),
        source=st.sampled_from(["response", "request", "rerendered"]),
    ),
    request=st.dictionaries(st.text(), json_values, max_size=4),
    output_ids=st.none() | st.lists(st.integers(0, 99)).map(tuple),
    output_text=st.none() | st.text(),
    positions=st.none() | position_lists,
    usage=st.builds(Usage, completion_tokens=st.none() | st.integers(0, 99)),
    warnings=st.lists(st.text()).map(tuple),
)


@settings(deadline=None)  # the machine may be busy
@given(claims)
def test_a_claim_survives_the_file(claim: Claim) -> None:
    assert load_claim(dump_claim(claim)) == claim


def test_impossible_is_null_and_comes_back(tmp_path: Path) -> None:
    body = json.loads(json.dumps(chat()).replace("-1.75", "-9999.0"))
    claim = read_response(body)
    text = dump_claim(claim)
    assert "Infinity" not in text
    again = load_claim(text)
    assert again.positions is not None
    assert again.positions[0].top[1].logprob == IMPOSSIBLE


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_f28_a_claim_cannot_hold_what_is_no_number(value: float) -> None:
    """Written as JSON, NaN would become null, which means impossible."""
    with pytest.raises(ValidationError, match="no log probability"):
        TopEntry(key=1, logprob=value)
    with pytest.raises(ValidationError, match="no log probability"):
        Position(token=1, logprob=value)


@pytest.mark.parametrize("key", [1.0, True, "5", "hello", "text:zz", "text:abc", None])
def test_case_46_a_claim_cannot_hold_a_key_that_is_none(key: Any) -> None:
    with pytest.raises(ValidationError):
        TopEntry(key=key, logprob=-1.0)


def test_files_of_claims(tmp_path: Path) -> None:
    file = tmp_path / "claims.jsonl"
    first, second = read_response(chat()), read_response(completion())
    assert write_claims(file, [first, second]) == 2
    file.write_bytes(file.read_bytes().replace(b"\n", b"\n\n", 1))
    assert read_claims(file) == [first, second]
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "claims.jsonl"
    write_claims(file, [read_response(chat())])
    before = file.read_bytes()

    def broken() -> Any:
        yield read_response(completion())
        raise RuntimeError("the recorder died")

    with pytest.raises(RuntimeError):
        write_claims(file, broken())
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("{", "not_json", "line 1 column"),
        ("{}", "malformed", "Field required"),
        ('{"schema_version": 2}', "unknown_version", "update"),
        ("[]", "malformed", "claim"),
        ('{"id": NaN}', "malformed", "NaN"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, code: str, says: str) -> None:
    file = tmp_path / "claims.jsonl"
    file.write_text(dump_claim(read_response(chat())) + "\n\n" + line + "\n")
    with pytest.raises(ClaimError, match=r"claims\.jsonl line 3") as error:
        read_claims(file)
    assert error.value.code == code
    assert says in str(error.value)


def test_an_error_in_a_position_names_its_path(tmp_path: Path) -> None:
    value = json.loads(dump_claim(read_response(chat())))
    value["positions"][1]["top"][0]["key"] = 1.5
    with pytest.raises(ClaimError, match=r"positions\[1\]\.top\[0\]\.key"):
        load_claim(json.dumps(value))


def test_two_claims_of_one_id_are_refused_and_repeats_dropped(tmp_path: Path) -> None:
    file = tmp_path / "claims.jsonl"
    claim = read_response(chat())
    write_claims(file, [claim, claim])
    assert read_claims(file) == [claim]
    write_claims(file, [claim, claim.model_copy(update={"output_text": "other"})])
    with pytest.raises(ClaimError, match="line 2: the id 'chatcmpl-1'"):
        read_claims(file)


def test_the_schema_in_docs_is_current() -> None:
    assert (DOCS / "claim.schema.json").read_text(encoding="utf-8") == claim_schema()


def test_the_schema_command_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    assert main([str(file)]) == 0
    assert file.read_text(encoding="utf-8") == claim_schema()
    assert main([]) == 0
    assert capsys.readouterr().out == claim_schema()
    assert main(["a", "b"]) == 1


@settings(deadline=None)  # the machine may be busy
@given(claims)
def test_the_schema_accepts_every_claim(claim: Claim) -> None:
    SCHEMA.validate(json.loads(dump_claim(claim)))


@pytest.mark.parametrize(
    ("path", "value"),
    [("schema_version", 2), ("endpoint", "x"), ("output_ids", ["5"]), ("positions", [{}])],
)
def test_the_schema_refuses_what_the_reader_refuses(path: str, value: Any) -> None:
    claim = json.loads(dump_claim(read_response(chat()))) | {path: value}
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(claim)
    with pytest.raises(ClaimError):
        load_claim(json.dumps(claim))


SCHEMA = jsonschema.Draft202012Validator(json.loads(claim_schema()))


@needs_data
def test_recorded_answers_survive_the_file(tmp_path: Path) -> None:
    files = sorted(DATA.rglob("inference.json"))
    assert files
    written = [read_response(file.read_bytes()) for file in files]
    written = [claim.model_copy(update={"id": f"{index}"}) for index, claim in enumerate(written)]
    write_claims(tmp_path / "c.jsonl", written)
    assert read_claims(tmp_path / "c.jsonl") == written
