"""How far honest rounding and cheaper weights move a claim: what `scoring/constants.py` rests on.

    python bench/distances.py [--cache DIR] [--tokens 48]

Needs the extras ``cpu`` and ``models``. Each executor (the model itself computed in bfloat16, and
copies with rounded weights) writes an answer to each prompt and reports its raw top 5; the model in
float32 reads the same tokens. Printed for each: mean distance, deviation / mean within a claim
(1 or less supports DISTANCE_SHAPE), correlation of neighbours, share of positions within the default
pass limit (that of int8 gives MIN_INFORMATIVE), alternatives within 1 nat, and the verdicts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.claims.claim import Claim, Prompt, Replay
from assay.claims.positions import Position, TopEntry
from assay.demo.models import rounded_copy, smollm2
from assay.scoring.constants import DEFAULT_THRESHOLD, MIN_INFORMATIVE
from assay.scoring.verdict import judge

K = 5
PROMPTS = (
    "What is the capital of France? Answer in one sentence.",
    "¿Cuál es la capital de Francia? Responde en una sola frase.",
    "法国的首都是哪里？请用一句话回答。",
    "Write a short story about a lighthouse.",
    "List three uses of copper.",
    "Explain why the sky is blue.",
    "Write a JSON object with name and age.",
    "How do I boil an egg?",
)


def executors(base: Path) -> Iterator[tuple[str, Any]]:
    """Name and model of each executor; one at a time, since two fit into little memory."""
    yield "bfloat16", load(base, torch.bfloat16)
    for bits in ("int8", "fp8", "int4"):
        yield bits, load(rounded_copy(base, bits), torch.float32)


def load(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def answer(model: Any, prompt: torch.Tensor, tokens: int) -> torch.Tensor:
    """Prompt and ``tokens`` sampled ids, [1, prompt + tokens]."""
    torch.manual_seed(5)
    return model.generate(
        prompt,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=True,
        temperature=0.7,
        top_k=50,
        top_p=0.95,
        pad_token_id=0,
    )


def read(model: Any, ids: torch.Tensor, prompt: int) -> tuple[Position, ...]:
    """The positions that ``model`` reports for the ids after the first ``prompt``."""
    logits = model(ids).logits[0].float()[prompt - 1 : -1]  # [tokens, vocabulary]
    table = torch.log_softmax(logits, dim=-1)
    values, keys = table.topk(K)
    chosen = ids[0, prompt:]
    return tuple(
        Position(
            token=int(token),
            logprob=float(row[token]),
            top=tuple(
                TopEntry(key=int(key), logprob=float(value))
                for key, value in zip(tops, probabilities, strict=True)
            ),
        )
        for token, row, tops, probabilities in zip(chosen, table, keys, values, strict=True)
    )


def measure(name: str, claims: list[Any], replays: list[Any]) -> None:
    """One line of the table, and the verdicts of the claims cut to several lengths."""
    verdicts = [judge(claim, replay) for claim, replay in zip(claims, replays, strict=True)]
    rows = [np.array(v.distances, dtype=np.float64) for v in verdicts]
    every = np.concatenate(rows)
    spread = [row.std() / row.mean() for row in rows]
    neighbours = [float(np.corrcoef(row[:-1], row[1:])[0, 1]) for row in rows]
    near = [v.mean_near_best or 0.0 for v in verdicts]
    print(
        f"{name:9} mean {every.mean():.4f} (claims {min(r.mean() for r in rows):.4f} to"
        f" {max(r.mean() for r in rows):.4f})  deviation/mean {min(spread):.2f} to {max(spread):.2f}"
        f"  neighbours {np.mean(neighbours):+.2f}  within limit"
        f" {(every <= 1 - DEFAULT_THRESHOLD).mean():.2f}  within 1 nat {min(near):.2f} to"
        f" {max(near):.2f}"
    )
    for count in (MIN_INFORMATIVE - 2, MIN_INFORMATIVE, 24, len(every) // len(rows)):
        tally = Counter(
            judge(
                claim.model_copy(update={"positions": claim.positions[:count]}),
                replay.model_copy(update={"positions": replay.positions[:count]}),
            ).verdict
            for claim, replay in zip(claims, replays, strict=True)
        )
        print(f"{'':9} {count:3} positions: {dict(tally)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    base = smollm2(options.cache)
    tokenizer = AutoTokenizer.from_pretrained(base)
    validator = load(base, torch.float32)
    with torch.no_grad():
        for name, executor in executors(base):
            claims, replays = [], []
            for text in PROMPTS:
                prompt = tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    add_generation_prompt=True,
                    return_tensors="pt",
                    return_dict=True,
                )["input_ids"]
                ids = answer(executor, prompt, options.tokens)
                length = prompt.shape[1]
                claims.append(
                    Claim(
                        id=text,
                        endpoint="chat",
                        prompt=Prompt(),
                        positions=read(executor, ids, length),
                        logprobs_mode="raw_logprobs",
                    )
                )
                replays.append(
                    Replay(
                        id=text,
                        positions=read(validator, ids, length),
                        logprobs_mode="raw_logprobs",
                    )
                )
            measure(name, claims, replays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
