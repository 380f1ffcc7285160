"""Thresholds of a verdict: both names of alpha, defaults, profiles; F77."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from assay.errors import SettingsError
from assay.poc.settings import NETWORK, REFERENCE, StatTest, read_profile, stat_test


@pytest.mark.parametrize("name", ["fraud_threshold", "p_value_threshold", "alpha"])
def test_every_name_of_alpha_is_read(name):
    # Servers that read only fraud_threshold kept 0.01 when a client sent p_value_threshold 0.05.
    assert stat_test({name: 0.05}).alpha == 0.05


def test_two_names_of_alpha_that_agree_are_one():
    assert stat_test({"fraud_threshold": 0.05, "p_value_threshold": 0.05}).alpha == 0.05


def test_two_names_of_alpha_that_differ_are_refused():
    with pytest.raises(SettingsError, match="two names of one number and differ"):
        stat_test({"fraud_threshold": 0.01, "p_value_threshold": 0.05})


def test_a_request_without_fields_gets_the_wire_defaults():
    assert stat_test(None) == stat_test({}) == REFERENCE == StatTest(0.02, 0.001, 0.01)
    assert stat_test({"dist_threshold": 0.75}, NETWORK) == StatTest(0.75, 0.1, 0.05)


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(SettingsError, match="'dist_treshold'"):
        stat_test({"dist_treshold": 0.4})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dist_threshold", 0),
        ("dist_threshold", float("nan")),
        ("dist_threshold", float("inf")),
        ("dist_threshold", "0.4"),
        ("p_mismatch", 0),
        ("p_mismatch", 1),
        ("p_mismatch", True),
        ("alpha", -0.1),
        ("alpha", 1.0),
        ("alpha", [0.05]),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_field(field, value):
    with pytest.raises(SettingsError, match=field):
        stat_test({field: value})


def _write(tmp_path, body):
    path = tmp_path / "profile.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


@pytest.mark.parametrize(
    "body",
    [
        {"dist_threshold": 0.3, "p_mismatch": 0.2, "alpha": 0.01, "engine_version": "0.32"},
        {"dist_threshold": 0.3, "p_mismatch": 0.2, "p_value_threshold": 0.01},
        {"dist_threshold": 0.3, "stat_test": {"p_mismatch": 0.2, "fraud_threshold": 0.01}},
        {"stat_test": {"dist_threshold": 0.3, "p_mismatch": 0.2, "fraud_threshold": 0.01}},
    ],
)
def test_a_profile_is_read_in_every_published_form(tmp_path, body):
    assert read_profile(_write(tmp_path, body)) == StatTest(0.3, 0.2, 0.01)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"p_mismatch": 0.2, "alpha": 0.01}, "dist_threshold is missing"),
        ({"dist_threshold": 0.3, "alpha": 0.01}, "p_mismatch is missing"),
        ({"dist_threshold": 0.3, "p_mismatch": 0.2}, "alpha is missing"),
        ({"dist_threshold": 0.3, "stat_test": {"dist_threshold": 0.4}}, "keep one"),
        ({"dist_threshold": 0.3, "stat_test": {"typo": 1}}, "unknown field|missing"),
        ({"stat_test": []}, "missing"),
        ({"stat_test": [1]}, "stat_test: a JSON object"),
        ([], "a JSON object is needed"),
        ("{", "not JSON"),
    ],
)
def test_a_profile_that_leaves_something_open_is_refused(tmp_path, body, message):
    with pytest.raises(SettingsError, match=message):
        read_profile(_write(tmp_path, body))


def test_a_profile_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        read_profile(tmp_path / "none.json")


def test_f77_no_environment_variable_changes_a_constant_and_no_engine_is_imported():
    """Constants are source; and the numpy part loads neither torch nor vllm nor fastapi."""
    program = (
        "import sys, assay.poc, assay.poc.compare, assay.poc.table, assay.poc.constants as c;"
        "print(c.K_DIM, c.UNIFORM_FLOOR, c.NETWORK_DIST_THRESHOLD, c.MAX_EXCLUDED_FRACTION);"
        "print(sorted({'torch', 'vllm', 'fastapi'} & set(sys.modules)))"
    )
    names = ("K_DIM", "POC_K_DIM", "ASSAY_POC_K_DIM", "POC_DIST_THRESHOLD", "DIST_THRESHOLD")
    changed = {**os.environ, **dict.fromkeys(names, "3")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=changed, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["12 1e-10 0.4 0.1", "[]"]
