"""A tiny random Llama with its own tokenizer, so that engine tests need no download and no time.

It is deterministic, and its next-token distribution is neither flat nor degenerate: ids differ
by nats, every id is possible, and greedy text does not loop on one token. Nothing about
language can be tested with it.
"""

from __future__ import annotations

import json
from pathlib import Path

from assay.demo.folders import made_once

VOCAB = 512
HIDDEN = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # the smallest vLLM's CPU attention has a kernel for
MAX_POSITIONS = 2048
SEED = 20240607
# Standard deviation wanted of the logits over the vocabulary, in nats. The likeliest of 512 ids
# then has a probability of 0.05 to 0.6: sampled text varies, and ranks are well separated.
LOGIT_STD = 2.0
# Part of the cache key: raise it when what this module writes changes.
_LAYOUT = 2

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
ROLE_START, ROLE_END = "<|start|>", "<|end|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)

# Trains the merges of the tokenizer; written for this test. It holds JSON, digits and several
# scripts so that grammar tests and multi-byte characters both meet merged tokens.
CORPUS = (
    "The assay tells what a metal really is, and the server tells what it really runs.",
    "A claim holds a prompt, the tokens of the answer and the log probabilities of each.",
    "user assistant system: what is the name of the city, and how many people live there?",
    '{"name": "city", "count": 12, "items": ["a", "b", "c"], "done": true, "left": null}',
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}}',
    "0123456789 10 20 30 100 1000 3.14159 -1 +1 1e6",
    "Один сервер отвечает, другой проверяет. Ответ записан, проверка честная.",
    "服务器回答问题，验证者检查答案。",
    "La réponse est écrite, la preuve est conservée. Où est le témoin ?",
)


def tiny_llama(cache: Path) -> Path:
    """The folder of the tiny model under ``cache``, made once (about 2 s)."""
    return made_once(cache / "models" / f"tiny-llama-v{_LAYOUT}", _write)


def _write(into: Path) -> None:
    _write_tokenizer(into)
    _write_model(into)


def _write_tokenizer(into: Path) -> None:
    """A byte-level BPE tokenizer with exactly ``VOCAB`` entries, written in the layout of the hub."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, BOS, EOS, ROLE_START, ROLE_END]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCAB}")
    tokenizer.save(str(into / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [ROLE_START, ROLE_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    (into / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def _write_model(into: Path) -> None:
    """Random float32 weights, the output head scaled until the logits spread by ``LOGIT_STD``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    generator = torch.Generator().manual_seed(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                # Fan-in scaling: each layer then moves the residual by about its own size, so
                # the output depends on the whole context and not on the last token alone.
                scale = 1.0 if "embed_tokens" in name else weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        probe = torch.randint(5, VOCAB, (8, 64), generator=generator)  # [batch, seq]
        spread = model(probe).logits.std(dim=-1).mean()  # over the vocabulary
        model.lm_head.weight.mul_(LOGIT_STD / spread)
    model.save_pretrained(into)
