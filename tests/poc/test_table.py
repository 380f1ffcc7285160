"""The table over labelled sets; on the published sets, the figures known for them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.poc.challenges import noisy, states, vectors

from assay.errors import ClaimError
from assay.poc import encode_vector
from assay.poc.artifact_file import read_artifact_file
from assay.poc.compare import compare
from assay.poc.settings import NETWORK, StatTest
from assay.poc.statistics import zero_knowledge
from assay.poc.table import hidden_size_of, pairs, read_labelled_sets

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "poc"
KAITAKU = DATA / "kaitakuai-experiments"
REPORT = DATA / "gonka-vllm-poc2-report"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="shared/data/poc is not beside the repository"
)
COLUMNS = [
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


def _write_set(folder: Path, name: str, made) -> None:
    artifacts = [
        {"nonce": nonce, "vector_b64": encode_vector(v)} for nonce, v in made.vectors.items()
    ]
    body = {"block_hash": "block", "public_key": "key", "artifacts": artifacts}
    (folder / name).write_text(json.dumps(body))


def _labels(folder: Path, rows: list[tuple[str, str, str, str]]) -> None:
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, group, weights, label in rows:
            writer.writerow([name, group, "org/m-FP8", weights, label, "G", "block", "key", 16])


@pytest.fixture
def folder(tmp_path) -> Path:
    clean = states(40, shared=0.5)
    for name, scale in (("a.json", 0.0), ("b.json", 0.05), ("c.json", 0.5), ("g.json", 0.02)):
        _write_set(tmp_path, name, vectors(noisy(clean, scale)))
    _write_set(tmp_path, "other.json", vectors(states(40, shared=0.5, seed=9)))
    return tmp_path


def test_pairs_are_those_of_a_group_and_of_a_reference_of_the_same_challenge(folder):
    _labels(
        folder,
        [
            ("a.json", "one", "fp8", "honest"),
            ("b.json", "one", "fp8", "honest"),
            ("c.json", "one", "int4", "fraud"),
            ("g.json", "golden:m", "reference", "honest_reference"),
            ("other.json", "without layer reflections", "fp8", "honest"),
        ],
    )
    found = pairs(read_labelled_sets(folder), [0.2, 2.0])
    names = [(p.first.labels["path"][0], p.second.labels["path"][0], p.kind) for p in found]
    assert names == [
        ("a", "b", "honest/honest"),
        ("a", "c", "honest/cheat"),
        ("a", "g", "honest/honest"),
        ("b", "c", "honest/cheat"),
        ("b", "g", "honest/honest"),
        ("c", "g", "honest/cheat"),
        ("g", "o", "honest/honest"),
    ]
    by_name = {name: pair for name, pair in zip(names, found, strict=True)}
    assert by_name["a", "b", "honest/honest"].rates == (0.0, 0.0)
    assert by_name["a", "c", "honest/cheat"].rates[0] > 0.8
    assert by_name["a", "c", "honest/cheat"].counts.n_compared == 40


def test_a_group_of_two_challenges_is_refused(folder):
    _labels(folder, [("a.json", "one", "fp8", "honest"), ("b.json", "one", "fp8", "honest")])
    body = json.loads((folder / "b.json").read_text())
    (folder / "b.json").write_text(json.dumps({**body, "public_key": "another"}))
    with pytest.raises(ClaimError, match="public_key"):
        pairs(read_labelled_sets(folder), [0.4])


def test_labels_that_cannot_be_read(tmp_path):
    with pytest.raises(ClaimError, match=r"labels\.csv: cannot be read"):
        read_labelled_sets(tmp_path)
    (tmp_path / "labels.csv").write_text("path,model\n")
    with pytest.raises(ClaimError, match="no column 'block_hash'"):
        read_labelled_sets(tmp_path)


def test_hidden_sizes_of_the_labelled_models():
    assert hidden_size_of("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8") == 4096
    assert hidden_size_of("Qwen3-235B-A22B") == 4096
    assert hidden_size_of("MiniMax-M2.7") == 3072
    assert hidden_size_of("moonshotai/Kimi-K2.6") == 7168
    assert hidden_size_of("llama") is None


# --- the published sets ------------------------------------------------------------------------


def _set(path: Path):
    return read_artifact_file(path)


@needs_data
@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        # Qwen3-235B across GPU kinds: 0.083 to 0.092.
        ("2026-05__qwen235b-fp8-2xb200", "2026-05__qwen235b-fp8-4xh100", 0.083, 0.092),
        ("2026-05__qwen235b-fp8-2xb200", "2026-05__qwen235b-fp8-4xh200", 0.083, 0.092),
        # Kimi-K2.6: 0.185 to 0.207.
        (
            "2026-05__kimi_k26_4xb200_b200-k5-kimi-1",
            "2026-05__kimi-k26-int4-2x8xh100__tp16_b32",
            0.185,
            0.207,
        ),
        # MiniMax: same image 0.18 to 0.33, other image versions 0.30 to 0.51.
        (
            "2026-05__minimax-m27-fp8-4xa100",
            "2026-05__minimax_m27_4xa100_sxm4_marlin",
            0.18,
            0.33,
        ),
        ("2026-04__minimax-m27-fp8-2xh200", "2026-05__minimax-m27-fp8-4xa100", 0.30, 0.511),
    ],
)
def test_honest_distances_of_the_published_sets(a, b, low, high):
    first, second = (_set(KAITAKU / f"{name}__nonces_1000.json") for name in (a, b))
    assert low <= round(compare(first, second, NETWORK).verdict.mean_distance, 3) <= high


@needs_data
@pytest.mark.parametrize(
    ("path", "hidden", "threshold", "low", "high"),
    [
        # "passes 55-58 % at 0.75 (MiniMax) and 11 % at 0.4 (Qwen)"; one set by itself: 54 to 56.
        ("2026-05__minimax-m27-fp8-2xb200__nonces_1000", 3072, 0.75, 0.53, 0.58),
        ("2026-05__qwen235b-fp8-2xb200__nonces_1000", 4096, 0.4, 0.10, 0.12),
    ],
)
def test_shared_mean_forgery_of_the_published_sets(path, hidden, threshold, low, high):
    baseline = zero_knowledge(_set(KAITAKU / f"{path}.json"), hidden)
    assert low <= baseline.pass_rate(threshold) <= high


@needs_data
def test_another_challenge_finds_no_shared_part():
    """The baseline works only because picks and rotations are undone exactly."""
    real = _set(KAITAKU / "2026-05__qwen235b-fp8-2xb200__nonces_1000.json")
    other = replace(real, challenge=replace(real.challenge, public_key="another"))
    assert zero_knowledge(other, 4096).mean_distance > 1.3


@needs_data
def test_honest_and_other_weights_of_the_published_sets():
    """The count alone lets int4 pass as fp8 at 0.4 / 0.1; the unexplained share tells them apart."""
    folder = REPORT / "v2" / "qwen236_20260110_072355"
    b200, h200, int4 = (
        _set(folder / f"server_{name}.json") for name in ("B200_FP8", "H200_FP8", "H200_GPTQ-INT4")
    )
    honest = compare(b200, h200, NETWORK, hidden_size=4096)
    cheat = compare(int4, h200, NETWORK, hidden_size=4096)
    assert honest.verdict.n_mismatch == 0
    # Counted straight from the numbers, without any of assay's code.
    straight = sum(
        float(np.sqrt(((int4.vectors[n] - h200.vectors[n]) ** 2).sum())) > 0.4 for n in h200.vectors
    )
    assert cheat.verdict.n_mismatch == straight == 46
    assert cheat.verdict.verdict == "pass"
    assert compare(int4, h200, StatTest(0.2, 0.1, 0.05)).verdict.verdict == "fail"
    assert compare(b200, h200, StatTest(0.2, 0.1, 0.05)).verdict.verdict == "pass"
    assert honest.unexplained.share < 0.02
    assert cheat.unexplained.share - 5 * cheat.unexplained.standard_error > 0.05
