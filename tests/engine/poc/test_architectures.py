"""Model families: the vectors of an independent forward, or a refusal with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.poc.architectures import FAMILIES, WINDOW, reference, tiny
from tests.engine.poc.conftest import Engines
from tests.engine.poc.test_forward import CHALLENGE, NOISE, WITHIN, apart, rows

SEQ_LEN = 150
"""Longer than three sliding windows, and no multiple of a block."""
RUN = ("gemma3_text", "gpt2", "qwen3_moe")
"""One family a kind: sliding windows in several groups, hidden states alone, experts."""
PROMPTS = [[5 + (7 * at + row) % 500 for at in range(SEQ_LEN)] for row in range(3)]
SAME = 2e-4
"""Nats between two prefills of the same prompts in float32."""
REFUSED = {
    "jamba": "has no token blocks",  # a state-space model
    # vLLM 0.32's MLA backend for CPUs gives an ordinary prompt other numbers beside other prompts.
    "deepseek_v2": "CPU_MLA does not keep the sequences of a batch apart",
}
v1 = pytest.mark.parametrize("engines", ["v1"], indirect=True)


@v1
@pytest.mark.parametrize("family", RUN)
def test_f22_f29_f30_vectors_of_other_families(
    engines: Engines, cache_dir: Path, family: str
) -> None:
    """F22, F29, F30: each family's own cache layout, layer output and metadata."""
    folder = tiny(cache_dir, family)
    engine = engines.load(folder, skip_tokenizer_init=True)
    shape = engine.rpc("probe_shape")[0]
    layers = shape["layers"]
    assert shape["reflected"] == list(range(layers))
    assert sum(count for count, _ in shape["groups"]) == layers
    caches = engine.rpc("probe_caches")
    expected = reference(folder, [5, 9], SEQ_LEN, CHALLENGE)
    assert apart(rows(engine.vectors([3, 5, 9], SEQ_LEN))[1:], expected) <= WITHIN
    # As many tokens as the engine takes: buffers sized at start are enough (F29).
    assert len(rows(engine.vectors(range(13), SEQ_LEN))) == 13
    assert engine.rpc("probe_caches") == caches
    assert engine.rpc("probe_hooks") == [0]


@v1
def test_f22_the_forward_is_the_engines_own_prefill(engines: Engines, cache_dir: Path) -> None:
    """F22: ordinary prompts through our metadata and scratch cache get the logits of a request."""
    engine = engines.load(tiny(cache_dir, "gemma3_text"), skip_tokenizer_init=True)
    served = [answer["logprobs"][0] for answer in engine.ask("chat", PROMPTS, 1)["answers"]]
    wanted = [[token for token, _ in row] for row in served]
    ours = engine.rpc("probe_prefill", PROMPTS, wanted)[0]
    for row, mine in zip(served, ours, strict=True):
        assert mine == pytest.approx([logprob for _, logprob in row], abs=SAME)
    caches = engine.rpc("probe_caches")
    batch = rows(engine.vectors([3, 5, 9], SEQ_LEN))
    assert apart(rows(engine.vectors([5], SEQ_LEN)), batch[1:2]) <= NOISE
    assert engine.rpc("probe_caches") == caches


@v1
def test_f22_a_window_cuts_what_a_layer_sees(engines: Engines, cache_dir: Path) -> None:
    """F22: the vectors above come from windows: seven groups, and sequences longer than one."""
    engine = engines.load(tiny(cache_dir, "gemma3_text"), skip_tokenizer_init=True)
    assert (
        len(engine.rpc("probe_shape")[0]["groups"]) == FAMILIES["gemma3_text"]["num_hidden_layers"]
    )
    assert SEQ_LEN > 3 * WINDOW


@v1
@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_repeated_is_refused_with_the_reason(
    engines: Engines, cache_dir: Path, family: str
) -> None:
    engine = engines.load(tiny(cache_dir, family), skip_tokenizer_init=True)
    answer = engine.rpc("probe_vectors", *CHALLENGE, [1], 50, False)[0]
    assert answer["error"] == "SurfaceError"
    assert REFUSED[family] in answer["message"]
    assert engine.rpc("probe_hooks") == [0]
