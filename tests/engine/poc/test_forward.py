"""The forward on both runners: rows, lengths, seeds, bounds, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.poc.architectures import reference
from tests.engine.poc.conftest import Engines
from tests.engine.poc.process import OPTIONS, EngineProcess

SEQ_LEN = 50  # no multiple of a block
CHALLENGE = ("BLOCK", "KEY")
WITHIN = 0.005
"""L2 between this forward and an independent one in float32; float16 alone costs 0.0004."""
NOISE = 1e-3
"""L2 between two batches of this forward: how sums are grouped, and one float16 step of rounding."""
UNRELATED = 0.5
"""Vectors of different inputs are sqrt(2) apart; this is far from that and from all noise."""

both = pytest.mark.parametrize("engines", ["v1", "v2"], indirect=True)


def rows(answer: dict[str, Any]) -> np.ndarray:
    assert "error" not in answer, answer
    assert all(answer["finite"])
    return np.array(answer["vectors"])


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest L2 distance of two rows."""
    return float(np.linalg.norm(a - b, axis=-1).max())


@pytest.fixture(scope="module")
def expected(tiny_path: Path) -> np.ndarray:
    """Nonces 0 to 3 by transformers, in float32."""
    return reference(tiny_path, range(4), SEQ_LEN, CHALLENGE)


@both
def test_both_runners_give_the_vectors_of_an_independent_forward(
    engine: EngineProcess, engines: Engines, expected: np.ndarray
) -> None:
    assert apart(rows(engine.vectors(range(4), SEQ_LEN)), expected) <= WITHIN
    profile = engine.rpc("assay_poc_profile")[0]
    assert profile["runner"] == engines.runner
    assert profile["token_budget"] == OPTIONS["max_num_batched_tokens"]


@both
def test_rows_do_not_depend_on_their_neighbours(engine: EngineProcess) -> None:
    """A nonce alone, first, last and in the middle of 32."""
    alone = rows(engine.vectors([7], SEQ_LEN))
    others = [nonce for nonce in range(100, 131)]
    for place in (0, 15, 31):
        batch = rows(engine.vectors([*others[:place], 7, *others[place:]], SEQ_LEN))
        assert apart(batch[place : place + 1], alone) <= NOISE
    assert apart(batch[:1], alone) >= UNRELATED


@both
def test_f34_a_batch_is_one_forward(engine: EngineProcess) -> None:
    """F34: the layers are called once for 32 nonces (more than once is refused, F74)."""
    answer = engine.vectors(range(32), SEQ_LEN)
    assert len(rows(answer)) == 32
    assert set(answer["seconds"]) == {"inputs", "metadata", "forward", "projection"}


@both
def test_f21_f22_f24_lengths_in_turn(engine: EngineProcess, expected: np.ndarray) -> None:
    """F21, F22, F24: metadata, block tables and slots are those of this call, never of another."""
    long = rows(engine.vectors(range(4), 256))
    for seq_len in (1, 31, 32, 33, 256, 512):
        rows(engine.vectors(range(4), seq_len))
        assert apart(rows(engine.vectors(range(4), SEQ_LEN)), expected) <= WITHIN
    assert apart(rows(engine.vectors(range(4), 256)), long) <= NOISE
    assert apart(long, expected) >= UNRELATED


@both
def test_f26_the_stronger_seed_takes_the_same_path(engine: EngineProcess) -> None:
    """F26: another input, repeatable, and the plain one after it unchanged."""
    plain = rows(engine.vectors(range(4), SEQ_LEN))
    strong = rows(engine.vectors(range(4), SEQ_LEN, stronger=True))
    assert apart(strong, plain) >= UNRELATED
    assert apart(rows(engine.vectors([2], SEQ_LEN, stronger=True)), strong[2:3]) <= NOISE
    assert apart(rows(engine.vectors(range(4), SEQ_LEN)), plain) <= NOISE


@both
def test_f32_reflections_follow_the_challenge(
    engine: EngineProcess, tiny_path: Path, expected: np.ndarray
) -> None:
    """F32: no hook of the block before is left, and the next block's vectors are its own."""
    other = ("ANOTHER BLOCK", "KEY")
    given = rows(engine.vectors(range(2), SEQ_LEN, challenge=other))
    assert apart(given, reference(tiny_path, range(2), SEQ_LEN, other)) <= WITHIN
    assert engine.rpc("probe_hooks") == [0]
    assert apart(rows(engine.vectors(range(4), SEQ_LEN)), expected) <= WITHIN


@both
@pytest.mark.parametrize(
    ("nonces", "seq_len", "says"),
    [
        (range(64), 512, ("64 x 512 = 32768", "2048", "--max-num-batched-tokens 32768")),
        (range(5), 512, ("5 x 512 = 2560", "2048")),
        ([1], 513, ("513", "512")),
        ([1], 0, ("seq_len", "0")),
        ([], 50, ("nonces", "empty")),
        ([-1], 50, ("nonce", "-1")),
        ([2**32], 50, ("nonce", str(2**32))),
    ],
)
def test_case_49_too_much_is_refused_with_numbers(
    engine: EngineProcess, nonces: Sequence[int], seq_len: int, says: tuple[str, ...]
) -> None:
    """Case 49, F72: over the token budget or the context, refused before anything runs."""
    answer = engine.vectors(nonces, seq_len)
    assert answer["error"] == "SettingsError"
    assert all(part in answer["message"] for part in says), answer["message"]


@both
def test_case_49_exactly_the_budget_runs(engine: EngineProcess) -> None:
    assert len(rows(engine.vectors(range(4), 512))) == 4


@both
def test_f24_f25_one_scratch_cache_for_all_layers(engine: EngineProcess) -> None:
    """F24, F25: one tensor per layout, the budget's blocks and block 0, whatever came before."""
    rows(engine.vectors(range(4), 512))
    first = engine.rpc("probe_shape")[0]
    rows(engine.vectors(range(32), 33))
    second = engine.rpc("probe_shape")[0]
    assert first["reflected"] == list(range(first["layers"]))
    assert second["scratch_tensors"] == first["scratch_tensors"] == 1
    a_block = first["live_bytes"] // first["layers"] // OPTIONS["num_gpu_blocks_override"]
    # 4 x 512 tokens take 64 blocks of 32; 32 x 33 tokens take two each.
    assert first["scratch_bytes"] in (65 * a_block, second["scratch_bytes"])
    assert second["scratch_bytes"] == 65 * a_block


@both
def test_case_39_answers_are_plain_data(engine: EngineProcess) -> None:
    """Case 39, F33: bytes, lists, numbers and strings, over RPC without pickled objects."""
    answer = engine.rpc("probe_kinds")[0]
    assert answer == {
        "nonces": "list[int]",
        "vectors": "bytes",
        "finite": "list[bool]",
        "seconds": "dict[str, float]",
    }
