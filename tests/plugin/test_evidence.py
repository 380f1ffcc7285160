"""The worker's evidence: bounded, merged, taken once, freed (case 42's in-process half)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.plugin.evidence import EvidenceStore


def step(
    store: EvidenceStore, *rows: tuple[str, int, int], base: int = 0, batch: int | None = None
) -> None:
    """One step that measures ``rows`` (key, position, trace length); numbers tell row and position."""
    size = batch or len(rows)
    at = torch.arange(size)
    ints = torch.stack((base + at, base + 100 + at, base + 200 + at))
    floats = torch.stack([-(base + 50 * column + at.float()) for column in range(6)])
    store.add(ints, floats, tuple((row, *spec) for row, spec in enumerate(rows)))


def test_a_replay_is_given_back_once_as_plain_data() -> None:
    """Case 39: lists and numbers only, so that it crosses the RPC without pickle."""
    store = EvidenceStore()
    step(store, ("a", 0, 2), ("b", 0, 3))
    step(store, ("b", 1, 3), ("a", 1, 2), base=10)
    assert store.take("a") == {
        "size": 2,
        "at": [0, 1],
        "drawn": [0, 11],
        "rank_raw": [100, 111],
        "rank_processed": [200, 211],
        "logprob_raw": [0.0, -11.0],
        "logprob_processed": [-50.0, -61.0],
        "drawn_raw": [-100.0, -111.0],
        "drawn_processed": [-150.0, -161.0],
        "noise_drawn": [-200.0, -211.0],
        "noise_forced": [-250.0, -261.0],
    }
    taken = EvidenceStore().take("a")
    assert taken is None
    assert store.take("a") is None, "taken twice"
    assert (len(store), store.positions) == (1, 3)
    other = store.take("b")
    assert other is not None
    assert other["at"] == [0, 1]
    assert all(
        type(value) in (int, float) for name in other if name != "size" for value in other[name]
    )
    assert type(other["size"]) is int
    assert (len(store), store.positions) == (0, 0)


def test_only_positions_that_were_measured_are_listed() -> None:
    """A sharded sampler, or a cut replay, leaves gaps; none is invented."""
    store = EvidenceStore()
    step(store, ("a", 3, 6))
    step(store, ("a", 1, 6))
    taken = store.take("a")
    assert taken is not None
    assert (taken["size"], taken["at"]) == (6, [1, 3])


def test_a_position_measured_again_counts_once_and_the_last_number_stands() -> None:
    """A resumed request samples its position again after a discarded prefill chunk."""
    store = EvidenceStore()
    step(store, ("a", 0, 1))
    step(store, ("a", 0, 1), base=7)
    taken = store.take("a")
    assert taken is not None
    assert (taken["at"], taken["drawn"]) == ([0], [7])
    assert store.positions == 0


def test_case42_a_dropped_replay_is_forgotten_and_a_late_step_does_not_reopen_it() -> None:
    """The client went away while steps were in flight: sizes go back to what they were."""
    store = EvidenceStore()
    step(store, ("a", 0, 4), ("b", 0, 2))
    store.drop("a")
    assert (len(store), store.positions) == (1, 2)
    step(store, ("a", 1, 4), ("b", 1, 2))
    assert (len(store), store.positions) == (1, 2)
    assert store.take("a") is None


def test_a_step_that_arrives_after_its_replay_was_taken_does_not_reopen_it() -> None:
    store = EvidenceStore()
    step(store, ("a", 0, 2))
    store.take("a")
    step(store, ("a", 1, 2))
    assert (len(store), store.positions) == (0, 0)


def test_a_drop_before_the_first_step_keeps_it_closed() -> None:
    store = EvidenceStore()
    store.drop("a")
    step(store, ("a", 0, 2))
    assert len(store) == 0


def test_dropping_what_is_not_there_is_fine() -> None:
    store = EvidenceStore()
    store.drop("nobody")
    store.drop("nobody")
    assert (len(store), store.positions) == (0, 0)


def test_the_number_of_replays_is_bounded_and_the_oldest_goes_first() -> None:
    store = EvidenceStore(max_replays=3)
    for key in "abcd":
        step(store, (key, 0, 1))
    assert len(store) == 3
    assert store.take("a") is None
    assert all(store.take(key) for key in "bcd")


def test_the_number_of_positions_is_bounded() -> None:
    store = EvidenceStore(max_positions=10)
    step(store, ("a", 0, 4))
    step(store, ("b", 0, 4))
    step(store, ("c", 0, 6))
    assert store.positions == 10
    assert store.take("a") is None
    assert store.take("b") is not None
    assert store.take("c") is not None


def test_an_evicted_replay_does_not_come_back_with_its_next_step() -> None:
    """It would look like evidence that begins in the middle."""
    store = EvidenceStore(max_replays=1)
    step(store, ("a", 0, 3))
    step(store, ("b", 0, 3))
    step(store, ("a", 1, 3))
    assert store.take("a") is None
    assert store.take("b") is not None


def test_what_is_remembered_of_gone_replays_is_bounded_too() -> None:
    store = EvidenceStore(max_replays=4)
    for number in range(100):
        store.drop(f"k{number}")
    assert len(store._dropped) == 4
    step(store, ("k99", 0, 1), ("k98", 0, 1))
    assert len(store) == 0


def test_minus_infinity_and_large_ids_survive() -> None:
    store = EvidenceStore()
    ints = torch.tensor([[2**31 - 1], [1], [151_936]])
    floats = torch.tensor([[-torch.inf], [-0.5], [-0.1], [-0.2], [torch.nan], [0.0]])
    store.add(ints, floats, ((0, "a", 0, 1),))
    taken = store.take("a")
    assert taken is not None
    assert taken["drawn"] == [2**31 - 1]
    assert taken["rank_processed"] == [151_936]
    assert taken["logprob_raw"] == [-np.inf]
    assert np.isnan(taken["noise_drawn"][0])
    assert taken["noise_forced"] == [0.0]


@pytest.mark.parametrize("seed", range(5))
def test_many_replays_in_mixed_batches_against_a_plain_dictionary(seed: int) -> None:
    """Rows of a step belong to any replays in any order; compared with a dictionary kept by hand."""
    random = np.random.default_rng(seed)
    store, expected = EvidenceStore(), {}
    lengths = {f"k{i}": int(random.integers(1, 9)) for i in range(12)}
    for number in range(60):
        chosen = random.permutation(list(lengths))[: random.integers(1, 8)]
        rows = [(str(key), int(random.integers(0, lengths[key])), lengths[key]) for key in chosen]
        step(store, *rows, base=1000 * number, batch=len(rows) + 2)
        for row, (key, position, _) in enumerate(rows):
            expected.setdefault(key, {})[position] = 1000 * number + row
    assert store.positions == sum(lengths[key] for key in expected)
    for key, drawn in expected.items():
        taken = store.take(key)
        assert taken is not None
        assert dict(zip(taken["at"], taken["drawn"], strict=True)) == drawn
    assert (len(store), store.positions) == (0, 0)


def test_a_record_costs_37_bytes_a_position() -> None:
    """The number the bound of 148 MiB a worker rests on (``constants.py``)."""
    store = EvidenceStore()
    step(store, ("a", 0, 1000))
    record = store._records["a"]
    assert record.ints.nbytes + record.floats.nbytes + record.seen.nbytes == 37 * 1000
