"""token-difr on the kit's traces: the published package, only its calls.

token-difr (MIT) draws every position again from a prefill's likeliest ``top_k`` logits. Its own
entry point starts an engine on CUDA and imports clients of paid services; the functions that verify
are independent of both, take tensors, and are called here on the CPU. The package is kept outside
the environment: it is unpacked into the cache folder without its dependencies, and the one file is
loaded from there.

Its noise is one row of exponential numbers a token from a torch generator. That is what runner V1
draws on a GPU; on a CPU vLLM 0.32 hashes one number a step instead (``scoring/tape_v1.py``). So
there are two figures: the package as published, and its margin given the engine's own noise.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from assay.attacks.constants import TEMPERATURE, TOP_K, TOP_P
from assay.claims.account import Known
from assay.claims.claim import Claim
from assay.demo.folders import made_once
from assay.errors import ReplayError, SettingsError
from assay.replay.client import EngineClient
from assay.scoring.tape_v1 import row_seeds, splitmix_gumbel

VERSION = "0.1.2"
MARGIN_CLIP = 10.0
"""A margin is infinite where the claimed token is cut by top-k or top-p; the package's own summary
leaves those out of the mean, we count them at this many nats."""

Rows = list[list[tuple[int, float]]]


def load(cache: Path) -> ModuleType:
    """The package's module ``common``. Raises SettingsError when pip cannot fetch it."""
    folder = made_once(cache / f"token-difr-{VERSION}", _install)
    spec = importlib.util.spec_from_file_location(
        "token_difr_common", folder / "token_difr" / "common.py"
    )
    if spec is None or spec.loader is None:
        raise SettingsError(f"{folder} does not hold token-difr; delete it and try again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def _install(into: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
    command += ["--target", str(into), f"token-difr=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise SettingsError(f"token-difr {VERSION} could not be fetched: {last}")


async def prefill_rows(client: EngineClient, model: str, claim: Claim) -> Rows:
    """The likeliest ``TOP_K`` ids and the claimed one at every output position, by one prefill.

    Raises ReplayError when the server refuses or answers something else.
    """
    prompt = [*(claim.prompt.token_ids or ()), *(claim.output_ids or ())]
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": TOP_K,
    }
    reply = await client.send("POST", "/v1/completions", body)
    if reply.status != 200:
        raise ReplayError(
            f"the server refused a prefill: {reply.body[:200].decode(errors='replace')}",
            blame="validator",
            status=reply.status,
        )
    listed = json.loads(reply.body)["choices"][0]["prompt_logprobs"]
    return [
        [(int(token), float(entry["logprob"])) for token, entry in (row or {}).items()]
        for row in listed[len(claim.prompt.token_ids or ()) : len(prompt)]
    ]


def scores(common: ModuleType, claim: Claim, rows: Rows, known: Known) -> dict[str, float]:
    """The package's figures of one claim at a temperature above 0: ``published``, the share of
    tokens it would not have drawn, and ``margin``, the mean by which another won with the
    engine's noise.

    The end token is cut out before, where ``min_tokens`` kept the engine from drawing it: the
    package does not know the parameter.
    """
    import torch

    # [positions, vocabulary]; what is not listed cannot be drawn, as in the package's own reader.
    logits = torch.full((len(rows), known.vocab_size or 0), -torch.inf)
    for index, row in enumerate(rows):
        ids = torch.tensor([token for token, _ in row])
        logits[index, ids] = torch.tensor([logprob for _, logprob in row])
    logits[: int(claim.request.get("min_tokens") or 0), list(known.eos_ids or ())] = -torch.inf
    gold = torch.tensor(list(claim.output_ids or ()))
    fields = claim.request
    temperature = float(fields.get("temperature", TEMPERATURE))
    top_k = torch.full((len(rows),), int(fields.get("top_k", TOP_K)), dtype=torch.long)
    top_p = torch.full((len(rows),), float(fields.get("top_p", TOP_P)))
    probabilities = common._get_probs(logits.clone(), temperature, top_k.clone(), top_p.clone())
    published, _, _ = common._verify_vllm_gumbel_max(
        temperature=temperature,
        seed=int(fields["seed"]),
        logits_JV=logits.clone(),
        probs_JV=probabilities,
        gold_col_idx_J=gold,
        top_k_tensor_J=top_k.clone(),
        top_p_tensor_J=top_p.clone(),
    )
    kept = common._apply_top_k_top_p(logits / temperature, top_k.clone(), top_p.clone())
    margins = common._compute_margin_batch(
        logits,
        _exponentials(int(fields["seed"]), *logits.shape),
        neg_inf_mask_JV=~torch.isfinite(kept),
        temperature=temperature,
        gold_idx_J=gold,
    )
    return {
        "published": float((published != gold).double().mean()),
        "margin": float(margins.nan_to_num(MARGIN_CLIP).clamp(max=MARGIN_CLIP).mean()),
    }


def _exponentials(seed: int, positions: int, vocabulary: int) -> Any:
    """The engine's noise ``[positions, vocabulary]`` in the form the package takes: exp(-Gumbel)."""
    import torch

    rows = row_seeds(seed, positions)[:, None]
    noise = splitmix_gumbel(rows, np.arange(vocabulary)[None, :])
    return torch.from_numpy(np.exp(-noise)).float()
