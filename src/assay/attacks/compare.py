"""``assay attack compare``: other detectors on the kit's traces, side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from assay.attacks import activations, difr
from assay.attacks.catalogue import ATTACKS, BFLOAT16, HONEST, HONEST_RUNS, REAL, Attack, Executor
from assay.attacks.constants import VALIDATOR_BATCH
from assay.attacks.figures import auc
from assay.attacks.kit import Kit, at, everything
from assay.attacks.models import served_folder
from assay.attacks.pairs import column, pairs
from assay.attacks.produce import Amount, made_of
from assay.attacks.report import comparison_file, model_facts
from assay.attacks.servers import SERVED_NAME
from assay.claims.claim import Claim
from assay.replay.client import EngineClient

Column = dict[str, float | None]
Table = dict[str, Column]

ABOUT = {
    "assay value": "mean distance of the claimed log probabilities, decode path",
    "assay choice": "mean margin by which the validator's draw beats the claimed token, decode path",
    "token-difr published": f"token-difr {difr.VERSION}, called on a prefill's top 50: share of"
    " tokens it would not have drawn. Its noise is that of a GPU; vLLM 0.32 on a CPU draws from"
    " another, so here it sees little but the text's likelihood",
    "token-difr margin": "its mean margin given the engine's own noise (`attacks/difr.py`),"
    f" infinite ones at {difr.MARGIN_CLIP:g}",
    "activations": "a check in the style of TOPLOC on the last hidden states, whose executor must"
    " send them beside every answer (`attacks/activations.py`). The package itself is left out: its"
    " wheel does not import on current torch and its source did not build here. No figure where the"
    " executor's states cannot be had from a plain forward (fp8 KV cache, hidden prompt)",
}
"""What each column is."""


DIFR = {"published": "token-difr published", "margin": "token-difr margin"}


async def compare_all(kit: Kit, amount: Amount | None = None, real: str | None = None) -> Table:
    """Every method's AUC by attack against the honest float32 claims; the honest bfloat16 claims
    stand among the attacks, where a good detector is near 0.5. Also left on disk for the page.

    Needs the claims and decode replays that ``assay attack table`` makes. ``real`` is the real
    model's server; one is started without. Raises SettingsError when token-difr cannot be fetched.
    """
    wanted = amount or Amount()
    raw = [a for a in ATTACKS if a.base.mode == HONEST.mode]
    claims = dict(everything(kit.traces, raw, wanted))
    kept = {HONEST.name, BFLOAT16.name, *(attack.name for attack in raw)}
    claims = {
        name: made_of({c.id: c for c in held}, name, wanted)
        for name, held in claims.items()
        if name in kept
    }
    measured: dict[str, dict[str, list[float]]] = {}
    measured["assay value"] = _ours(kit, claims, "value_distance")
    measured["assay choice"] = _ours(kit, claims, "choice_margin")
    measured |= await _difr(kit, claims, real)
    measured["activations"] = _activations(kit, claims, {a.name: a for a in raw})
    table: Table = {}
    for method, values in measured.items():
        table[method] = {
            attack.name: auc(values.get(HONEST.name, ()), values.get(attack.name, ()))
            for attack in raw
        }
        table[method][f"{BFLOAT16.name} (honest)"] = auc(
            values.get(HONEST.name, ()), values.get(BFLOAT16.name, ())
        )
    comparison_file(kit).write_text(
        json.dumps({"auc": table, "about": ABOUT, "claims": wanted.claims}, indent=1),
        encoding="utf-8",
    )
    return table


def _ours(kit: Kit, claims: Mapping[str, list[Claim]], statistic: str) -> dict[str, list[float]]:
    return {
        name: column(pairs(kit.traces, name, "decode", held), statistic)
        for name, held in claims.items()
    }


async def _difr(
    kit: Kit, claims: Mapping[str, list[Claim]], real: str | None
) -> dict[str, dict[str, list[float]]]:
    """Its two figures of every claim; asks the real server for what is not stored."""
    common = difr.load(kit.logs.parent)
    known = model_facts(kit.model)
    found: dict[str, dict[str, list[float]]] = {f: {} for f in DIFR.values()}
    async with AsyncExitStack() as stack:
        client: EngineClient | None = None
        for name, held in claims.items():
            file = kit.logs.parent / "difr" / f"{name}.json"
            stored = _stored(file)
            left = [claim for claim in held if claim.id not in stored]
            if left and client is None:
                client = await at(kit, stack, REAL, real)
            for start in range(0, len(left), VALIDATOR_BATCH):
                batch = left[start : start + VALIDATOR_BATCH]
                asked = (difr.prefill_rows(client, SERVED_NAME, claim) for claim in batch if client)
                for claim, rows in zip(batch, await asyncio.gather(*asked), strict=True):
                    stored[claim.id] = difr.scores(common, claim, rows, known)
            _store(file, stored)
            for figure, title in DIFR.items():
                found[title][name] = [stored[claim.id][figure] for claim in held]
            kit.say(f"token-difr: {name}")
    return found


def _activations(
    kit: Kit, claims: Mapping[str, list[Claim]], attacks: Mapping[str, Attack]
) -> dict[str, list[float]]:
    """The distance of every claim whose executor's states a plain forward gives."""
    verifier = activations.HiddenStates(kit.model)
    executors: dict[Executor, activations.HiddenStates] = {}
    found: dict[str, list[float]] = {}
    for name, held in claims.items():
        seen = _seen_by_executor(kit, name, held, attacks.get(name))
        executor = _writer(name, attacks.get(name))
        if seen is None or executor.kv_cache != "auto":
            continue
        file = kit.logs.parent / "activations" / f"{name}.json"
        stored = _stored(file)
        for claim, (prompt, output) in zip(held, seen, strict=True):
            if claim.id in stored:
                continue
            if executor not in executors:
                folder = served_folder(kit.model, executor.weights)
                executors[executor] = activations.HiddenStates(folder, executor.dtype)
            sent = activations.commit(executors[executor].bits(prompt, output))
            ours = verifier.bits(claim.prompt.token_ids or (), claim.output_ids or ())
            stored[claim.id] = {"distance": activations.distance(sent, ours)}
        _store(file, stored)
        found[name] = [stored[claim.id]["distance"] for claim in held]
        kit.say(f"activations: {name}")
    return found


def _writer(name: str, attack: Attack | None) -> Executor:
    """Whose activations the executor sends: a launderer sends the real model's."""
    if attack is None:
        return next(run.executor for run in HONEST_RUNS if run.name == name)
    return REAL if attack.edit == "launder" else attack.base.executor


Seen = list[tuple[Sequence[int], Sequence[int]]]


def _seen_by_executor(
    kit: Kit, name: str, held: Sequence[Claim], attack: Attack | None
) -> Seen | None:
    """Prompt and output ids as the executor ran them; ``None`` where nobody knows its prompt."""
    if attack is None or attack.edit in ("none", "launder", "inflate", "truncate", "disguise"):
        if attack is not None and attack.base.system is not None and attack.edit != "launder":
            return None
        return [(claim.prompt.token_ids or (), claim.output_ids or ()) for claim in held]
    base = made_of(kit.traces.claims(attack.base.name), attack.base.name, Amount(len(held)))
    shift = 1 if attack.edit == "copy" else 0
    ran = [base[(index + shift) % len(base)] for index in range(len(base))]
    return [(claim.prompt.token_ids or (), claim.output_ids or ()) for claim in ran]


def _stored(file: Path) -> dict[str, dict[str, float]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _store(file: Path, values: Mapping[str, Mapping[str, float]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")
