"""Claims and replays whose tokens were really drawn: a toy model, the tape of runner V2, and the
ways to cheat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.claims.claim import Claim, Evidence, LogprobsMode, Prompt, Replay, Tape, Usage
from assay.claims.positions import Position, TopEntry
from assay.scoring.tape import draw_position, gumbel
from assay.scoring.tape_v1 import row_seeds, splitmix_gumbel

VOCABULARY = 400
PROMPT = (5, 6, 7, 8)
V2 = Tape(runner="v2")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Logits [n, vocabulary] that every engine computes up to its own noise, and the request.

    A toy without context: the distributions do not depend on the tokens chosen, so a claim of any
    tokens can be replayed.
    """

    n: int = 64
    temperature: float = 1.0
    seed: int | None = 7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    sharpness: float = 2.2
    number: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    tape: Tape = V2

    @property
    def logits(self) -> Floats:
        rng = np.random.default_rng(self.number)
        scale = self.sharpness * rng.uniform(0.5, 1.6, size=(self.n, 1))
        return np.asarray(rng.normal(0, 1, (self.n, VOCABULARY)) * scale)

    @property
    def request(self) -> dict[str, Any]:
        return {
            "model": "toy",
            "temperature": self.temperature,
            "seed": self.seed,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": 1.0,
            "max_tokens": self.n,
        } | self.extra

    def engine(self, noise: float, number: int = 1) -> Floats:
        """Logits of an engine that is off by ``noise`` nats."""
        rng = np.random.default_rng(10_000 + 100 * self.number + number)
        return np.asarray(self.logits + noise * rng.normal(0, 1, self.logits.shape))


def log_softmax(logits: Floats) -> Floats:
    top = logits.max(axis=1, keepdims=True)
    return np.asarray(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))


def processed(logits: Floats, world: World) -> Floats:
    """Log probabilities [n, vocabulary] after temperature, min-p, top-k and top-p, as the engine
    applies them; -inf for what is cut."""
    if world.temperature == 0:
        return log_softmax(logits)
    scaled = logits / world.temperature
    if world.min_p > 0:
        best = scaled.max(axis=1, keepdims=True)
        scaled = np.where(scaled < best + np.log(world.min_p), -np.inf, scaled)
    order = np.argsort(-scaled, axis=1)
    ranked = np.take_along_axis(scaled, order, axis=1)
    if world.top_k > 0:
        ranked[:, world.top_k :] = -np.inf
    if world.top_p < 1:
        shares = np.exp(log_softmax(ranked))
        before = np.cumsum(shares, axis=1) - shares
        ranked = np.where(before < world.top_p, ranked, -np.inf)
    out = np.empty_like(ranked)
    np.put_along_axis(out, order, ranked, axis=1)
    return log_softmax(out)


def noise_of(world: World, *, fp64: bool = False) -> Floats:
    """Noise [n, vocabulary] of every draw; zeros for a greedy request."""
    if world.temperature == 0:
        return np.zeros((world.n, VOCABULARY))
    seed = world.seed or 0
    if world.tape.runner == "v1":
        return splitmix_gumbel(row_seeds(seed, world.n)[:, None], np.arange(VOCABULARY)[None, :])
    places = np.array([draw_position(len(PROMPT), i) for i in range(world.n)])
    return gumbel(seed, places[:, None], np.arange(VOCABULARY)[None, :], fp64=fp64)


def tokens_of(logits: Floats, world: World) -> list[int]:
    chosen = (processed(logits, world) + noise_of(world)).argmax(axis=1)
    return [int(token) for token in chosen]


def listed(logprobs: Floats, tokens: list[int], k: int) -> tuple[Position, ...]:
    """The top ``k`` of each row and the chosen id, as an engine lists them."""
    out = []
    for row, token in zip(logprobs, tokens, strict=True):
        best = [int(i) for i in np.argsort(-row)[:k]]
        ids = best if token in best else [token, *best]
        top = tuple(TopEntry(key=i, logprob=float(row[i])) for i in ids)
        out.append(Position(token=token, logprob=float(row[token]), top=top))
    return tuple(out)


def numbers(logits: Floats, world: World, mode: LogprobsMode) -> Floats:
    return log_softmax(logits) if mode == "raw_logprobs" else processed(logits, world)


def claim_by(
    world: World,
    logits: Floats,
    *,
    tokens: list[int] | None = None,
    mode: LogprobsMode = "raw_logprobs",
    k: int = 20,
    **fields: Any,
) -> Claim:
    """What an engine with ``logits`` reports of ``tokens``, its own draws by default."""
    chosen = tokens_of(logits, world) if tokens is None else tokens
    return Claim(
        **{
            "id": f"claim {world.number}",
            "endpoint": "completions",
            "prompt": Prompt(token_ids=PROMPT, source="response"),
            "request": world.request,
            "output_ids": tuple(chosen),
            "positions": listed(numbers(logits, world, mode), chosen, k),
            "finish_reason": "length",
            "usage": Usage(prompt_tokens=len(PROMPT), completion_tokens=world.n),
            "logprobs_mode": mode,
            "tape": world.tape,
        }
        | fields
    )


def decode_replay(
    world: World,
    claim: Claim,
    logits: Floats,
    *,
    k: int = 20,
    tape: Tape | None = V2,
    noise: bool = True,
) -> Replay:
    """The validator's decode replay of ``claim`` with the plugin's evidence."""
    tokens = list(claim.output_ids or ())
    raw, after, g = log_softmax(logits), processed(logits, world), noise_of(world)
    rows, drawn = np.arange(world.n), np.array(tokens_of(logits, world))
    forced = np.array(tokens)

    def column(values: Floats, ids: Any) -> tuple[float | None, ...]:
        return tuple(float(v) if np.isfinite(v) else None for v in values[rows, ids])

    evidence = Evidence(
        runner="v2" if tape is None else tape.runner,
        drawn=tuple(int(i) for i in drawn),
        rank_raw=(1,) * world.n,
        rank_processed=(1,) * world.n,
        logprob_raw=column(raw, forced),
        logprob_processed=column(after, forced),
        drawn_raw=column(raw, drawn) if noise else (),
        drawn_processed=column(after, drawn) if noise else (),
        noise_drawn=column(g, drawn) if noise else (),
        noise_forced=column(g, forced) if noise else (),
        tape=tape,
    )
    return _replay(world, claim, logits, k, path="decode", evidence=evidence)


def prefill_replay(world: World, claim: Claim, logits: Floats, *, k: int = 20) -> Replay:
    """One forward pass: lists only."""
    return _replay(world, claim, logits, k, path="prefill")


def _replay(world: World, claim: Claim, logits: Floats, k: int, **fields: Any) -> Replay:
    mode = claim.logprobs_mode or "raw_logprobs"
    return Replay(
        id="r",
        prompt_token_ids=PROMPT,
        positions=listed(numbers(logits, world, mode), list(claim.output_ids or ()), k),
        usage=Usage(prompt_tokens=len(PROMPT), completion_tokens=world.n),
        logprobs_mode=mode,
        mode_source="explicit",
        **fields,
    )
