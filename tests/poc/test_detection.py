"""The evaluation of profiles: what is left out is out, and docs/poc-detection.md says what is true."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from assay.poc import encode_vector, vector_from_state
from assay.poc.detection import evaluate, main
from assay.poc.detection_table import TARGETS, _of, rate, report
from assay.poc.draws import subsets
from assay.poc.evaluation import Evaluation
from assay.poc.labelled_keys import deployment, hardware_kind, labelled_key
from assay.poc.profile import set_digest
from assay.poc.table import read_labelled_sets

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "poc"
PAGE = ROOT / "docs" / "poc-detection.md"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="shared/data/poc is not beside the repository"
)
HIDDEN = 1024  # of Qwen3-0.6B, the smallest model the labels know


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> Path:
    """Four honest kinds of GPU, one of them bit-equal to another, and other weights on two."""
    folder = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(3)
    clean = rng.normal(size=HIDDEN) * 0.7 + rng.normal(size=(260, HIDDEN)) * 0.7
    quantised = clean + 0.35 * rng.normal(size=clean.shape)
    honest = {gpu: clean + 0.1 * rng.normal(size=clean.shape) for gpu in ("A100", "B200", "H100")}
    honest["H200"] = honest["H100"]
    cheats = {gpu: quantised + 0.1 * rng.normal(size=clean.shape) for gpu in ("A100", "H200")}
    rows = []
    for label, weights, made in (("honest", "fp8", honest), ("fraud", "int4", cheats)):
        for gpu, states in made.items():
            name = f"{gpu}-{weights}.json"
            artifacts = [
                {
                    "nonce": nonce,
                    "vector_b64": encode_vector(vector_from_state(state, "block", "key", nonce)),
                }
                for nonce, state in enumerate(states)
            ]
            body = {"block_hash": "block", "public_key": "key", "artifacts": artifacts}
            (folder / name).write_text(json.dumps(body))
            rows.append((name, "g", "org/Qwen3-0.6B", weights, label, f"2x{gpu}"))
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "path",
                "group",
                "model",
                "weights",
                "label",
                "gpu",
                "block_hash",
                "public_key",
                "seq_len",
            ]
        )
        writer.writerows((*row, "block", "key", 16) for row in rows)
    return folder


def test_nothing_of_the_hardware_left_out_is_in_the_profile(made_up):
    work = Evaluation(read_labelled_sets(made_up), draws=5)
    assert len(work.pairs) == 6
    for kind in ("a100", "b200"):
        left = work.records_without(kind)
        assert left and all(kind not in record.hardware for record in left)
    # H200 has the vectors of H100, so leaving one out leaves the other out.
    digests = {set_digest(one.vectors) for one in work.honest if hardware_kind(one) == "h200"}
    for kind in ("h100", "h200"):
        assert {record.hardware for record in work.records_without(kind)} == {("a100", "b200")}
        assert all(not digests & set(record.sets) for record in work.records_without(kind))


def test_every_pair_is_judged_once_for_every_kind_it_touches(made_up):
    units, _ = evaluate(made_up, draws=5)
    honest = [unit for unit in _of(units, "honest", 50) if "A100-fp8" in unit.name]
    assert sorted((unit.held_out, unit.name.count("A100")) for unit in honest) == [
        ("a100", 1),
        ("a100", 1),
        ("a100", 1),
        ("b200", 1),
        ("h100", 1),
        ("h200", 1),
    ]
    assert {unit.basis for unit in _of(units, "cheat", 50)} == {"configuration"}
    assert {unit.basis for unit in _of(units, "mixed, same pair", 50)} == {"pair"}


def test_the_page_of_a_small_folder_has_every_target_and_spares_the_honest(made_up, capsys):
    assert main([str(made_up), "--draws", "10"]) == 0
    page = capsys.readouterr().out
    assert all(f"| {target.text} | " in page for target in TARGETS)
    assert f"| {TARGETS[0].text} | 0.00% (0.0% to " in page
    assert page == report(*evaluate(made_up, 10))


def test_a_folder_without_labels_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert "labels.csv" in capsys.readouterr().err


def test_a_lighter_weight_of_the_pooled_spread_convicts_no_more(made_up):
    units, others = evaluate(made_up, draws=5)
    convicted = [
        sum(unit.convicted for unit in _of(some, "cheat", 50))
        for some in (others[4.0], units, others[20.0])
    ]
    assert convicted == sorted(convicted)
    assert {unit.kind for unit in others[4.0]} == {"honest", "cheat"}


def test_a_rate_counts_pairs_and_not_draws(made_up):
    units, _ = evaluate(made_up, draws=5)
    found = rate(_of(units, "honest", 50), lambda unit: unit.convicted)
    assert (found.pairs, found.units) == (6, 12)
    low, high = found.interval
    assert low == pytest.approx(0) and high == pytest.approx(1.959964**2 / (6 + 1.959964**2))
    assert rate([], lambda unit: 1) is None


def test_draws_have_no_nonce_twice_and_are_the_same_every_time():
    index = subsets(80, 50, 7)
    assert index.shape == (7, 50)
    assert all(len(set(row)) == 50 for row in index.tolist())
    subsets.cache_clear()
    assert np.array_equal(index, subsets(80, 50, 7))


# --- the published sets ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> Evaluation:
    return Evaluation(read_labelled_sets(DATA), draws=40)


@needs_data
def test_labels_become_configurations(published):
    by_file = {one.labels["path"].rsplit("/", 1)[-1]: one for one in published.sets}
    april = by_file["2026-04__minimax-m27-fp8-2xb200__nonces_triton.json"]
    may = by_file["2026-05__minimax-m27-fp8-2xb200__nonces_1000.json"]
    assert (deployment(april), deployment(may)) == ("b200 triton", "b200")
    assert labelled_key(april).engine_version != labelled_key(may).engine_version
    assert labelled_key(april).architecture == "MiniMax-M2"
    a100 = [one for one in published.sets if one.labels["gpu"] in ("A100-PCIE", "4xa100")]
    assert {hardware_kind(one) for one in a100} == {"a100"}


@needs_data
def test_no_profile_holds_vectors_of_the_kind_it_leaves_out(published):
    for kind in {hardware_kind(one) for one in published.sets}:
        its_own = {set_digest(o.vectors) for o in published.honest if hardware_kind(o) == kind}
        for record in published.records_without(kind):
            assert not its_own & set(record.sets)
            assert not [name for name in record.hardware if name.startswith(kind)]


@needs_data
def test_the_page_says_what_the_published_sets_say(published):
    """A quarter of the draws of the page: every target within two points of what it prints."""
    units = [*published.unseen(), *published.seen()]
    page = PAGE.read_text()
    for target in TARGETS:
        row = re.search(rf"^\| {re.escape(target.text)} \| ([\d.]+)%[^|]*\| (\w+)", page, re.M)
        assert row is not None, target.text
        found = rate(_of(units, target.kind, target.n), lambda unit: unit.convicted)
        assert 100 * found.value == pytest.approx(float(row[1]), abs=2), target.text
        assert row[2] == ("reached" if target.reached(float(row[1]) / 100) else "missed")
    head = report([], {}).split("| target |")[0]
    assert page.startswith(head), (
        "run: python -m assay.poc.detection FOLDER > docs/poc-detection.md"
    )
