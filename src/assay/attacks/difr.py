"""token-difr on the kit's traces: the published package, only its call.

token-difr (MIT) draws every position again from a prefill's likeliest ``top_k`` logits, with the
noise of a seeded torch generator, which is what runner V1 does. Its own entry point starts an
engine on CUDA and imports clients of paid services; the function that verifies is independent of
both, takes tensors, and is called here on the CPU. It is kept outside the environment: the package
is unpacked into the cache folder without its dependencies, and the one file is loaded from there.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from assay.attacks.constants import TEMPERATURE, TOP_K, TOP_P
from assay.claims.account import Known
from assay.claims.claim import Claim
from assay.demo.folders import made_once
from assay.errors import ReplayError, SettingsError
from assay.replay.client import EngineClient

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
    """The package's figures of one claim: share of tokens it would not have drawn, and the mean
    margin by which another won.

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
    drawn, _, margins = common._verify_vllm_gumbel_max(
        temperature=temperature,
        seed=int(fields["seed"]),
        logits_JV=logits,
        probs_JV=probabilities,
        gold_col_idx_J=gold,
        top_k_tensor_J=top_k,
        top_p_tensor_J=top_p,
    )
    return {
        "mismatch": float((drawn != gold).double().mean()),
        "margin": float(margins.nan_to_num(MARGIN_CLIP).clamp(max=MARGIN_CLIP).mean()),
    }
