"""The whole chain on SmolLM2-135M against vectors made by another implementation.

The forward here is plain transformers in float32, no engine. A layer of transformers returns the
sum of what an engine carries as hidden and residual; a reflection is linear, so reflecting the
sum is reflecting both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from assay import poc
from assay.demo.models import smollm2
from assay.errors import SettingsError
from assay.poc import torch_batch

VECTORS = Path(__file__).parents[2].parent / "shared" / "vectors" / "poc_smollm2_float32.json"
L2_TOLERANCE = 0.005


@pytest.fixture(scope="module")
def published() -> dict:
    if not VECTORS.is_file():
        pytest.skip("shared/vectors/poc_smollm2_float32.json is not beside the repository")
    return json.loads(VECTORS.read_text())


@pytest.fixture(scope="module")
def decoder(published) -> Iterator[torch.nn.Module]:
    try:
        folder = smollm2()
    except SettingsError as error:
        pytest.skip(str(error))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a shared machine two threads wait for each other
    yield AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.eval()
    torch.set_num_threads(threads)


@contextmanager
def _reflected(decoder: torch.nn.Module, block_hash: str) -> Iterator[None]:
    vectors = torch_batch.layer_vectors(block_hash, len(decoder.layers), decoder.config.hidden_size)
    handles = [
        layer.register_forward_hook(
            lambda _layer, _inputs, output, v=v: torch_batch.reflect_(output, v)
        )
        for layer, v in zip(decoder.layers, vectors, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _states(decoder, embeddings: torch.Tensor, block_hash: str) -> torch.Tensor:
    with torch.no_grad(), _reflected(decoder, block_hash):
        return decoder(inputs_embeds=embeddings, use_cache=False).last_hidden_state[:, -1]


@pytest.mark.parametrize(
    ("seq_len", "stronger", "count"),
    [(16, False, 8), (16, True, 8), (64, False, 2), (64, True, 2), (256, False, 1), (256, True, 1)],
)
def test_vectors_of_smollm2(published, decoder, seq_len, stronger, count):
    block, key = published["block_hash"], published["public_key"]
    (wanted,) = [
        entry["artifacts"][:count]
        for entry in published["sets"]
        if (entry["seq_len"], entry["poc_stronger_rng"]) == (seq_len, stronger)
    ]
    nonces = [artifact["nonce"] for artifact in wanted]
    embeddings = torch_batch.input_embeddings(
        block, key, nonces, seq_len, decoder.config.hidden_size, stronger
    )
    states = _states(decoder, embeddings, block)
    batch, finite = torch_batch.project(states, block, key, nonces, published["k_dim"])
    assert finite.all()
    for row, artifact in enumerate(wanted):
        expected = np.array(artifact["vector"])
        reference = poc.vector_from_state(states[row].numpy(), block, key, nonces[row])
        assert np.linalg.norm(reference - expected) <= L2_TOLERANCE
        assert np.linalg.norm(batch[row].double().numpy() - expected) <= L2_TOLERANCE
        sent = poc.decode_vector(poc.encode_vector(batch[row].numpy()), published["k_dim"])
        assert np.linalg.norm(sent - poc.decode_vector(artifact["vector_b64"])) <= L2_TOLERANCE


def test_a_vector_without_layer_reflections_is_unrelated(published, decoder):
    """F74: a forward whose reflections were not attached must not look right."""
    block, key = published["block_hash"], published["public_key"]
    wanted = published["sets"][0]
    embeddings = torch_batch.input_embeddings(
        block, key, [0], wanted["seq_len"], decoder.config.hidden_size
    )
    with torch.no_grad():
        state = decoder(inputs_embeds=embeddings, use_cache=False).last_hidden_state[0, -1]
    vector = poc.vector_from_state(state.numpy(), block, key, 0)
    assert np.linalg.norm(vector - np.array(wanted["artifacts"][0]["vector"])) > 0.5
