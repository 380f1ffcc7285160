"""Inputs of one PoC batch: all nonces in one go against a straightforward loop, one nonce a step.

    python bench/poc_inputs.py [--batch 32] [--seq-len 256] [--hidden 576] [--stronger]

Both make the same embeddings on the same device in the same run; rounds alternate, medians count.
The loop is the plain way to write it in torch: uint32 arithmetic as int64 with a mask, one nonce
after another. Prints both times and the ratio; exits 1 when the embeddings differ.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch

from assay.poc.normals import strong_lengths
from assay.poc.seeds import input_text, seed, strong_seed_words
from assay.poc.torch_batch import FLOAT_TOLERANCE, input_embeddings

MASK = 0xFFFFFFFF


def murmur(keys: torch.Tensor, seed_value: int) -> torch.Tensor:
    k = (keys * 0xCC9E2D51) & MASK
    k = ((k << 15) | (k >> 17)) & MASK
    k = (k * 0x1B873593) & MASK
    h = k ^ seed_value
    h = ((h << 13) | (h >> 19)) & MASK
    h = (h * 5 + 0xE6546B64) & MASK
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def normals(seed_value: int, n: int, device: str) -> torch.Tensor:
    pairs = (n + 1) // 2
    keys = torch.arange(2 * pairs, dtype=torch.int64, device=device)
    u = murmur(keys, seed_value).to(torch.float32) / 2**32
    radius = torch.sqrt(-2 * torch.log(u[:pairs].clamp(min=1e-10)))
    angle = 2 * math.pi * u[pairs:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:n]


def one_by_one(
    nonces: range, seq_len: int, hidden: int, stronger: bool, device: str
) -> torch.Tensor:
    rows = []
    for nonce in nonces:
        text = input_text("BENCH_BLOCK", "BENCH_KEY", nonce)
        n = seq_len * hidden
        if stronger:
            words = strong_seed_words(text)
            parts = zip(words, strong_lengths(n, len(words)), strict=True)
            row = torch.cat([normals(word, length, device) for word, length in parts if length])
        else:
            row = normals(seed(text), n, device)
        rows.append(row.reshape(seq_len, hidden))
    return torch.stack(rows)


def timed(work: Callable[[], torch.Tensor], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stronger", action="store_true")
    args = parser.parse_args()
    nonces = range(args.batch)

    def batched() -> torch.Tensor:
        return input_embeddings(
            "BENCH_BLOCK",
            "BENCH_KEY",
            nonces,
            args.seq_len,
            args.hidden,
            args.stronger,
            device=args.device,
        )

    def loop() -> torch.Tensor:
        return one_by_one(nonces, args.seq_len, args.hidden, args.stronger, args.device)

    difference = (batched() - loop()).abs().max().item()
    loops, batches = [], []
    for _ in range(args.rounds):
        loops.append(timed(loop, args.device))
        batches.append(timed(batched, args.device))
    slow, fast = statistics.median(loops), statistics.median(batches)
    print(
        f"{args.batch} x {args.seq_len} x {args.hidden} on {args.device}, "
        f"{'stronger' if args.stronger else 'plain'} seed, medians of {args.rounds} rounds, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"one by one {slow * 1e3:8.2f} ms   batch {fast * 1e3:8.2f} ms")
    print(f"largest difference {difference:.1e} (allowed {FLOAT_TOLERANCE:.0e})")
    print(f"ratio {slow / fast:.2f} (wanted >= 3 at 32 x 256 x 576)")
    return 0 if difference <= FLOAT_TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
