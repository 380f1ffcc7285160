"""Tiny random models of several families, and an independent float32 forward of each.

The reference is transformers' own model with hooks on its layers, on inputs and projection of the
numpy room: nothing of the plugin, of vLLM or of the torch batch takes part in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.demo.folders import made_once
from assay.poc.embeddings import input_embeddings
from assay.poc.layers import layer_vector, vector_from_state

VOCAB, HIDDEN, HEADS, HEAD_DIM, POSITIONS = 512, 64, 4, 32, 512
LAYERS = 3
_LAYOUT = 1  # part of the cache key
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TIED: dict[str, Any] = {**COMMON, "tie_word_embeddings": True}
MOE: dict[str, Any] = {"num_experts_per_tok": 2}
# Sliding window of 40 tokens: no multiple of a block, and shorter than the sequences of the tests.
WINDOW = 40
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "qwen2": {**COMMON, "num_attention_heads": 2, "use_sliding_window": False},
    "qwen3": COMMON,
    "gemma2": {**TIED, "sliding_window": WINDOW, "query_pre_attn_scalar": HEAD_DIM},
    "gemma3_text": {
        **TIED,
        "num_hidden_layers": 7,  # the sixth attends to everything
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": HEAD_DIM,
    },
    "mixtral": {**COMMON, **MOE, "num_local_experts": 4},
    "qwen3_moe": {**COMMON, **MOE, "num_experts": 4, "moe_intermediate_size": 64},
    "gpt2": {
        "vocab_size": VOCAB,
        "n_embd": HIDDEN,
        "n_layer": LAYERS,
        "n_head": 2,
        "n_positions": POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {**COMMON, "num_attention_heads": 2, "rotary_pct": 1.0},
    "opt": {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "word_embed_proj_dim": HIDDEN,
        "ffn_dim": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": POSITIONS,
    },
    "deepseek_v2": {
        **COMMON,
        "num_key_value_heads": HEADS,
        "head_dim": 64,
        "kv_lora_rank": 512,  # 512 + 64 is the one width MLA kernels have
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 64,
        "v_head_dim": 32,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "mamba": {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "state_size": 16,
    },
    "jamba": {
        **{k: v for k, v in COMMON.items() if k != "head_dim"},
        "num_attention_heads": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "num_experts": 2,
        "use_mamba_kernels": False,
    },
}


def tiny(cache: Path, family: str) -> Path:
    """The folder of a tiny random model of ``family`` under ``cache``, made once."""
    return made_once(
        cache / "models" / f"tiny-{family}-v{_LAYOUT}", lambda into: _write(family, into)
    )


def _write(family: str, into: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **FAMILIES[family])
    config.dtype = torch.float32
    generator = torch.Generator().manual_seed(20240607)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240607)
        model = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "conv" not in name and "A_log" not in name:
                # Fan-in scaling: every layer then moves the residual by about its own size.
                weight.copy_(
                    torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5
                )
    model.save_pretrained(into)
    written = json.loads((into / "config.json").read_text())
    assert written["model_type"] == family, written["model_type"]


def reference(
    folder: Path, nonces: Sequence[int], seq_len: int, challenge: tuple[str, str]
) -> np.ndarray:
    """Vectors ``[len(nonces), 12]`` float32 of transformers' own forward with reflections."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    base = model.base_model
    n_layers, hidden = _sizes(model.config)
    layers = next(
        module
        for module in base.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == n_layers
    )
    for index, layer in enumerate(layers):
        direction = torch.from_numpy(layer_vector(challenge[0], index, hidden))
        layer.register_forward_hook(_reflection(direction))
    rows = []
    for nonce in nonces:
        embeds = torch.from_numpy(input_embeddings(*challenge, [nonce], seq_len, hidden))
        with torch.no_grad():
            states = base(inputs_embeds=embeds.view(1, seq_len, hidden), use_cache=False)[0]
        rows.append(vector_from_state(states[0, -1].numpy(), *challenge, nonce))
    return np.stack(rows)


def _sizes(config: Any) -> tuple[int, int]:
    return int(config.num_hidden_layers), int(config.hidden_size)


def _reflection(v: torch.Tensor) -> Callable[[Any, Any, Any], Any]:
    def reflected(_module: Any, _inputs: Any, output: Any) -> Any:
        x = output[0] if isinstance(output, tuple) else output
        x = x - 2 * (x @ v).unsqueeze(-1) * v
        return (x, *output[1:]) if isinstance(output, tuple) else x

    return reflected
