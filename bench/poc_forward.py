"""What a proof-of-compute token costs against an ordinary prefill token of the same engine.

    python bench/poc_forward.py [--model FOLDER] [--runner v1|v2] [--rounds 7] [--shapes 8x256 16x256]

One engine in this process; rounds alternate and change their order. ``prefill``: ``generate`` with
one token on as many random prompts of the same length (never the same twice, so the prefix cache
cannot help): one engine step, sampling of one token a prompt included. ``poc``: the whole batch,
inputs and projection included. ``bare``: the same batch without reflections. Prints the medians,
the ratio of token rates (target of issue 3: >= 0.98) and the parts of a batch. V2 runs with
interpreted Triton kernels on a CPU (test helper), give it the tiny model: what it takes for one
token a prompt then dwarfs the model, and only the ratio against the forward alone says anything.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = 0.98
PARTS = ("inputs", "metadata", "forward", "projection")


def environment(runner: str) -> dict[str, str]:
    sys.path.insert(0, str(ROOT))
    from tests.support import specs
    from tests.support.cpu_triton_site import cpu_triton_site

    from assay.demo.settings import CacheSettings

    if runner == "v1":
        spec = specs.v1(Path(), plugin=True, max_model_len=0)
    else:
        cache = CacheSettings().assay_cache_dir or ROOT / ".cache" / "assay"
        spec = specs.v2(Path(), cpu_triton_site(cache), plugin=True, max_model_len=0)
    return {**spec.env, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}


class Bench:
    def __init__(self, model: str, budget: int, seq_len: int) -> None:
        from vllm import LLM, SamplingParams

        self._llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=seq_len + 1,
            max_num_batched_tokens=budget,
            worker_extension_cls="assay.plugin.worker.AssayWorker",
            skip_tokenizer_init=True,
        )
        self._one = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        self._random = random.Random(1)
        self._vocab = self._llm.collective_rpc("assay_poc_profile")[0]["vocab_size"]
        self._next = 0

    def prefill(self, batch: int, seq_len: int) -> float:
        """Seconds of one prefill of ``batch`` prompts of ``seq_len`` random ids."""
        prompts: list[Any] = [
            {"prompt_token_ids": [self._random.randrange(5, self._vocab) for _ in range(seq_len)]}
            for _ in range(batch)
        ]
        begun = time.perf_counter()
        self._llm.generate(prompts, self._one, use_tqdm=False)
        return time.perf_counter() - begun

    def poc(self, batch: int, seq_len: int) -> tuple[float, dict[str, float]]:
        """Seconds of one batch of new nonces, and of its parts."""
        nonces = list(range(self._next, self._next + batch))
        self._next += batch
        args = ("BENCH_BLOCK", "BENCH_KEY", nonces, seq_len, 12, False)
        begun = time.perf_counter()
        answer = self._llm.collective_rpc("assay_poc_forward", args=args)[0]
        seconds = time.perf_counter() - begun
        if not all(answer["finite"]):
            raise SystemExit("vectors are not finite; nothing to measure")
        return seconds, answer["seconds"]

    def bare(self, batch: int, seq_len: int) -> tuple[float, dict[str, float]]:
        """``poc`` without reflections. The vectors are worthless and thrown away."""
        from assay.plugin.poc import forward

        stock = forward.reflections
        forward.reflections = lambda *_: nullcontext()
        try:
            return self.poc(batch, seq_len)
        finally:
            forward.reflections = stock


def measure(bench: Bench, batch: int, seq_len: int, rounds: int) -> float:
    """Print one shape; returns the median of the rounds' ratios."""
    for warm in (bench.prefill, bench.poc, bench.bare):
        warm(batch, seq_len)
    plain: list[float] = []
    whole: list[float] = []
    parts: dict[str, list[float]] = {}
    unreflected: list[float] = []
    for number in range(rounds):
        order = ["prefill", "poc", "bare"] if number % 2 else ["bare", "poc", "prefill"]
        for kind in order:
            if kind == "prefill":
                plain.append(bench.prefill(batch, seq_len))
            elif kind == "poc":
                seconds, split = bench.poc(batch, seq_len)
                whole.append(seconds)
                for name in PARTS:
                    parts.setdefault(name, []).append(split[name])
            else:
                unreflected.append(bench.bare(batch, seq_len)[1]["forward"])
    ratios = [before / after for before, after in zip(plain, whole, strict=True)]
    tokens = batch * seq_len
    ratio = statistics.median(ratios)
    median = {name: statistics.median(seconds) for name, seconds in parts.items()}
    reflected = statistics.median(
        with_them - without
        for with_them, without in zip(parts["forward"], unreflected, strict=True)
    )
    print(
        f"{batch} x {seq_len}: prefill {tokens / statistics.median(plain):.0f} tokens/s, "
        f"poc {tokens / statistics.median(whole):.0f} tokens/s, "
        f"median ratio {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {rounds} rounds), "
        f"best prefill / best poc {min(plain) / min(whole):.3f}"
    )
    alone = statistics.median(
        without / seconds for without, seconds in zip(unreflected, whole, strict=True)
    )
    print(f"  against the model's forward alone (no scheduler, no sampling): {alone:.3f}")
    print(
        "  ms a batch: "
        + ", ".join(f"{name} {median[name] * 1e3:.1f}" for name in PARTS)
        + f"; of the forward, reflections {reflected * 1e3:.1f} "
        f"({reflected / median['forward']:.1%})"
    )
    print(
        f"  {batch / statistics.median(whole) * 60:.0f} nonces/min; "
        f"target {TARGET}: {'reached' if ratio >= TARGET else 'missed'}"
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of the model; default: SmolLM2-135M")
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", default=["8x256", "16x256"])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        # Read when the interpreter and vLLM start, PYTHONPATH above all.
        env = {**os.environ, **environment(options.runner)}
        os.execve(sys.executable, [sys.executable, *sys.argv, "--inside"], env)
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    model = options.model
    if model is None:
        from assay.demo.models import smollm2

        model = str(smollm2())
    bench = Bench(model, max(b * s for b, s in shapes), max(s for _, s in shapes))
    print(f"runner {options.runner}, {Path(model).name}, load {os.getloadavg()[0]:.1f}")
    ratios = [measure(bench, batch, seq_len, options.rounds) for batch, seq_len in shapes]
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0 if min(ratios) >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
