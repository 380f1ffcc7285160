"""What a step with replays costs in the sampler, with the evidence and with its choice columns.

    python bench/replay_sampler.py [--rounds 40]

Times ``Sampler.forward`` of V1 on one [32, 49152] batch of seeded requests, a quarter of them (and
then all of them) replays: stock, which forces nothing; ours without evidence; with the evidence the
plugin kept before it knew the choice channel (ids, ranks, log probabilities of the forced id); with
all of it. The four take turns within a round, so that other work on the machine meets all alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from assay.plugin import select
from assay.plugin.constants import KEY_ARG, TRACE_ARG
from assay.plugin.sampler_v1 import AssaySamplerV1, RowBook

BATCH, VOCAB = 32, 49_152
TOP = 5


class WithoutColumns(AssaySamplerV1):
    """The evidence as it was: one gather a mode, no noise."""

    def sample(self, logits: torch.Tensor, metadata: Any, mode: Any = None) -> Any:
        step, raw = self._assay_step, self._assay_raw
        assert step is not None
        assert raw is not None
        stock, self.topk_topp_sampler = self.topk_topp_sampler, self.assay_native
        try:
            drawn, processed = Sampler.sample(self, logits, metadata, "processed_logits")
        finally:
            self.topk_topp_sampler = stock
        sampled = select.force(drawn, step)
        rows = (raw.index_select(0, step.rows), processed.index_select(0, step.rows))
        scores = [select.log_probabilities(values) for values in rows]
        at = sampled.index_select(0, step.rows).unsqueeze(-1)
        own = [values.gather(-1, at) for values in scores]
        ranks = [(v >= o).sum(dim=-1) for v, o in zip(scores, own, strict=True)]
        ints = torch.stack((drawn.index_select(0, step.rows), *ranks))
        floats = torch.cat(own * 3, dim=-1).T  # the store takes six columns
        self.assay_evidence.add(ints, floats, step.plan.evidence)
        return sampled, select.scores(raw, processed, step)


def metadata(replays: int, *, ours: bool, keys: bool) -> SamplingMetadata:
    """A step's metadata: seeded rows, the first ``replays`` of them with a trace of ours."""
    book = RowBook(VOCAB)
    added = []
    for row in range(replays if ours else 0):
        extra: dict[str, Any] = {TRACE_ARG: [7] * 4}
        if keys:
            extra[KEY_ARG] = f"k{row}"
        added.append((row, SamplingParams(seed=row, extra_args=extra), None, []))
    book.update_state(BatchUpdate(batch_size=BATCH, removed=[], added=added, moved=[]))
    zeros = torch.zeros(BATCH)
    return SamplingMetadata(
        temperature=torch.full((BATCH,), 0.8),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={row: torch.Generator().manual_seed(row) for row in range(BATCH)},
        max_num_logprobs=TOP,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=zeros,
        presence_penalties=zeros,
        repetition_penalties=zeros + 1,
        output_token_ids=[[] for _ in range(BATCH)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([book] if ours else []),
    )


def timed(sampler: Sampler, data: SamplingMetadata, logits: torch.Tensor) -> Callable[[], float]:
    def measure() -> float:
        batch = logits.clone()  # the sampler writes into its input
        begun = time.perf_counter()
        sampler(logits=batch, sampling_metadata=data)
        return time.perf_counter() - begun

    return measure


def run(replays: int, rounds: int) -> None:
    logits = torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    kinds = {
        "stock": timed(Sampler(), metadata(replays, ours=False, keys=False), logits),
        "ours, no evidence": timed(
            AssaySamplerV1(), metadata(replays, ours=True, keys=False), logits
        ),
        "evidence without the columns": timed(
            WithoutColumns(), metadata(replays, ours=True, keys=True), logits
        ),
        "evidence with the columns": timed(
            AssaySamplerV1(), metadata(replays, ours=True, keys=True), logits
        ),
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 3):
        order = list(kinds)
        for name in order if number % 2 else reversed(order):
            seconds = kinds[name]()
            if number >= 3:  # the first rounds warm caches and the allocator
                spent[name].append(seconds)
    print(f"V1 Sampler.forward [{BATCH}, {VOCAB}], {replays} of {BATCH} rows replayed, all seeded")
    for name, seconds in spent.items():
        ratio = statistics.median(np.divide(seconds, spent["stock"]))
        print(
            f"  {name}: best {min(seconds) * 1e3:.2f} ms, median"
            f" {statistics.median(seconds) * 1e3:.2f} ms, {ratio:.3f} of stock (median of rounds)"
        )
    added = np.divide(spent["evidence with the columns"], spent["evidence without the columns"])
    print(f"  with / without the columns: {statistics.median(added):.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch._dynamo.config.disable = True  # stock compiles one counting function; run it as written
    torch.set_num_threads(1)
    for replays in (BATCH // 4, BATCH):
        run(replays, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
