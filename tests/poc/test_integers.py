"""Everything of a challenge that is an integer, against the published vectors: exact."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from assay import poc
from assay.errors import SettingsError
from assay.poc import torch_batch, torch_hash
from assay.poc.settings import NETWORK
from assay.poc.verdict import mismatch_p_value

VECTORS = Path(__file__).parents[2].parent / "shared" / "vectors" / "poc_integers.json"


@pytest.fixture(scope="module")
def published() -> dict:
    if not VECTORS.is_file():
        pytest.skip("shared/vectors/poc_integers.json is not beside the repository")
    return json.loads(VECTORS.read_text())


def test_seed(published):
    for entry in published["seed"]:
        assert poc.seed(entry["text"]) == entry["seed"]


def test_murmur_numpy_and_torch(published):
    for entry in published["murmur"]:
        assert poc.murmur3_32(entry["keys"], entry["seed"]).tolist() == entry["hash"]
        seeds = torch_hash.seed_tensor([entry["seed"]], "cpu")
        hashed = torch_hash.unsigned(torch_hash.hash_keys(seeds, 0, len(entry["keys"])))
        assert hashed[0].tolist() == entry["hash"]


def test_murmur_is_without_the_length_xor():
    # The library form of MurmurHash3 of four zero bytes with seed 0 is 0x2362F9DE; it xors the
    # length (4). The challenge does not, and vectors made with the library form are unrelated.
    assert poc.murmur3_32([0], 0)[0] != 0x2362F9DE


def test_murmur_broadcasts_and_wraps():
    keys = np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint32)
    seeds = np.array([[0], [2**32 - 1]], dtype=np.uint32)
    both = poc.murmur3_32(keys, seeds)
    assert both.shape == (2, 4) and both.dtype == np.uint32
    for row, seed in zip(both, (0, 2**32 - 1), strict=True):
        assert row.tolist() == [int(poc.murmur3_32(int(key), seed)) for key in keys]


def test_torch_hash_equals_numpy_for_every_bit_pattern_of_the_seed():
    rng = np.random.default_rng(1)
    seeds = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, *rng.integers(0, 2**32, 100).tolist()]
    for start in (0, 12345, 2**31 - 300):
        expected = poc.murmur3_32(
            np.arange(start, start + 257, dtype=np.uint32),
            np.array(seeds, dtype=np.uint32)[:, None],
        )
        made = torch_hash.hash_keys(torch_hash.seed_tensor(seeds, "cpu"), start, 257)
        assert np.array_equal(torch_hash.unsigned(made).numpy(), expected)


def test_pseudo_token_ids_numpy_and_torch(published):
    for entry in published["pseudo_token_ids"]:
        names = entry["block_hash"], entry["public_key"]
        ids = poc.pseudo_token_ids(*names, entry["nonce"], 256, entry["vocab"])
        assert ids.dtype == np.int32
        assert ids[:16].tolist() == entry["first16"]
        assert int(ids.sum(dtype=np.int64)) == entry["sum256"]
        batch = torch_batch.pseudo_token_ids(*names, [5, entry["nonce"]], 256, entry["vocab"])
        assert batch.dtype == torch.int32
        assert batch[1].tolist() == ids.tolist()


def test_pick_in_canonical_order_numpy_and_torch(published):
    for entry in published["pick"]:
        names = entry["block_hash"], entry["public_key"]
        hidden, k = entry["hidden_size"], entry["k"]
        picked = poc.pick_indices(*names, entry["nonce"], hidden, k)
        assert picked.tolist() == entry["canonical_order"]
        batch = torch_batch.pick_indices(*names, [9, entry["nonce"], 0], hidden, k)
        assert batch[1].tolist() == entry["canonical_order"]


@pytest.mark.parametrize("hidden_size", [12, 13, 64, 577, 4096])
@pytest.mark.parametrize("k", [1, 2, 12])
def test_pick_numpy_equals_torch(hidden_size, k):
    nonces = [0, 1, 7, 2**32 - 1]
    batch = torch_batch.pick_indices("b", "p", nonces, hidden_size, k)
    for row, nonce in zip(batch, nonces, strict=True):
        picked = poc.pick_indices("b", "p", nonce, hidden_size, k)
        assert row.tolist() == picked.tolist()
        assert len(set(picked.tolist())) == k


@pytest.mark.parametrize("k", [0, 13])
def test_pick_more_than_there_is_is_refused(k):
    with pytest.raises(SettingsError, match=f"cannot pick {k} of 12"):
        poc.pick_indices("b", "p", 0, 12, k)
    with pytest.raises(SettingsError, match=f"cannot pick {k} of 12"):
        torch_batch.pick_indices("b", "p", [0], 12, k)


def test_stronger_seed_words(published):
    for entry in published["stronger_seed_words"]:
        assert list(poc.strong_seed_words(entry["text"])) == entry["words"]
        assert poc.strong_seed_words(entry["text"])[0] == poc.seed(entry["text"])


def test_nonce_partition(published):
    for entry in published["nonce_partition"]:
        mine = poc.partition(
            entry["node_id"], entry["node_count"], entry["group_id"], entry["n_groups"]
        )
        assert list(itertools.islice(mine, len(entry["first"]))) == entry["first"]


def test_nonce_partition_covers_every_nonce_once():
    seen: list[int] = []
    for node in range(3):
        for group in range(4):
            seen += itertools.islice(poc.partition(node, 3, group, 4), 10)
    assert sorted(seen) == list(range(120))


def test_nonce_partition_starts_in_the_middle_and_ends_at_32_bits():
    assert list(itertools.islice(poc.partition(1, 2, start=5), 2)) == [11, 13]
    assert list(poc.partition(0, 1, start=2**32 - 2)) == [2**32 - 2, 2**32 - 1]


@pytest.mark.parametrize("ids", [(2, 2, 0, 1), (-1, 2, 0, 1), (0, 0, 0, 1), (0, 1, 1, 1)])
def test_nonce_partition_refuses_an_id_outside_its_count(ids):
    with pytest.raises(SettingsError, match="ids run from 0 to count - 1"):
        poc.partition(*ids)


def test_binomial_p_values(published):
    for entry in published["fraud_test"]:
        p_value = mismatch_p_value(entry["n_mismatch"], entry["n_total"], entry["p_mismatch"])
        assert p_value == pytest.approx(entry["p_value"], rel=1e-9)


def test_28_of_200_convict_at_network_settings_and_31_at_one_per_cent():
    p = NETWORK.p_mismatch
    assert mismatch_p_value(27, 200, p) >= NETWORK.alpha > mismatch_p_value(28, 200, p)
    assert mismatch_p_value(30, 200, p) >= 0.01 > mismatch_p_value(31, 200, p)
