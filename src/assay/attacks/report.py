"""From stored claims and replays to the page: nothing here asks a server."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.attacks.catalogue import ATTACKS, BFLOAT16, HONEST_RUNS
from assay.attacks.kit import BEFORE, COMPUTED, Kit, everything
from assay.attacks.page import Page
from assay.attacks.pairs import Pair, pairs
from assay.attacks.produce import Amount
from assay.attacks.prompts import QUESTIONS
from assay.attacks.split import calibrates, index_of, large_enough, profile_of
from assay.attacks.table import Condition, Judging, Outcome, Row, outcome, row
from assay.attacks.targets import TARGETS
from assay.attacks.vector_table import VectorRow, honest_profile, vector_row
from assay.attacks.vectors import VECTOR_ATTACKS
from assay.claims.account import Known
from assay.claims.claim import LogprobsMode

PATHS = ("decode", "prefill")


def build_page(kit: Kit, fpr: float, amount: Amount | None = None) -> Page:
    """Everything the page shows, from what the kit has stored.

    Also writes the profiles, attacks included, beside the traces. Raises ProfileError when a
    path has too few honest claims, StoreError for files of another version.
    """
    known = model_facts(kit.model)
    claims = dict(everything(kit.traces, ATTACKS, amount or Amount()))
    rows: list[Row] = []
    conditions: list[Condition] = []
    outcomes: dict[str, Outcome] = {}
    made = []
    for path in PATHS:
        found = {name: pairs(kit.traces, name, path, held) for name, held in claims.items()}
        judging = _judging(kit, path, found, known, fpr)
        if not judging:
            continue
        crossed = _judging(None, path, found, known, fpr)
        made.append(_made_of(path, found))
        for attack in ATTACKS:
            cheating, honest = found[attack.name], found[attack.honest]
            if not cheating:
                continue
            by = judging[attack.base.mode]
            other = found[BFLOAT16.name] if attack.base.mode == "raw_logprobs" else []
            one = row(
                attack, path, cheating=cheating, honest=honest, other_honest=other, judging=by
            )
            rows.append(one)
            for target in (t for t in TARGETS if t.attack == attack.name):
                # Decode comes first: targets are held against it where both paths were run.
                outcomes.setdefault(target.text, outcome(target, one, cheating, honest))
        conditions += _conditions(path, found, (judging, crossed))
    return Page(
        fpr=fpr,
        made=made,
        rows=rows,
        outcomes=[outcomes.get(t.text, Outcome(t, None)) for t in TARGETS],
        conditions=conditions,
        vectors=_vector_rows(kit),
        **_others(kit),
    )


def model_facts(model: Path) -> Known:
    """What a validator knows of the model in a folder: vocabulary and end ids."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    end = config["eos_token_id"]
    return Known(
        vocab_size=int(config["vocab_size"]),
        eos_ids=tuple(end) if isinstance(end, list) else (int(end),),
    )


def _judging(
    kit: Kit | None, path: str, found: dict[str, list[Pair]], known: Known, fpr: float
) -> dict[LogprobsMode, Judging]:
    """Verdicts by log probability mode, each with the profile of its own honest claims.

    With ``kit`` the profile is made of the claims that calibrate and is written, attacks included;
    without, of the others, to judge those that calibrate.
    """
    judging: dict[LogprobsMode, Judging] = {}
    modes: dict[LogprobsMode, list[Pair]] = {}
    for run in HONEST_RUNS:
        side = [p for p in found[run.name] if calibrates(p) == (kit is not None)]
        modes.setdefault(run.mode, []).extend(side)
    for mode, honest in modes.items():
        if not honest:
            continue
        name = f"attacks-{path}-{mode.removesuffix('_logprobs')}"
        enough = large_enough(honest)
        if not enough:
            judging[mode] = Judging(None, fpr, known)
            continue
        profile = profile_of(name, enough, known)
        judging[mode] = Judging(profile, fpr, known)
        if kit is None:
            continue
        for attack in ATTACKS:
            if attack.base.mode == mode and found[attack.name]:
                measured = [pair.measured for pair in found[attack.name]]
                if any(m.series for m in measured):
                    profile = profile.with_attack(attack.name, measured)
        profile.write(kit.logs.parent / "profiles" / f"{name}.json")
    return judging


def _made_of(path: str, found: dict[str, list[Pair]]) -> str:
    honest = [pair for run in HONEST_RUNS for pair in found[run.name]]
    tokens = sum(len(pair.claim.output_ids or ()) for pair in honest)
    first = honest[0].replay.engine if honest else None
    engine = "" if first is None else f" on vLLM {first.engine_version}, runner {first.runner}"
    cheating = sum(len(found[attack.name]) for attack in ATTACKS)
    return (
        f"{path} path: {len(honest)} honest claims of {tokens} tokens in all and {cheating} claims"
        f" of cheating executors, replayed{engine}"
    )


def _conditions(
    path: str,
    found: dict[str, list[Pair]],
    both: tuple[dict[LogprobsMode, Judging], dict[LogprobsMode, Judging]],
) -> list[Condition]:
    """The honest claims by run, then the raw ones by language. Each is judged by the profile that
    it is not part of: ``both`` are those of either half."""
    told = []
    tested: list[tuple[Pair, str]] = []
    for run in HONEST_RUNS:
        if not found[run.name] or any(run.mode not in judging for judging in both):
            continue
        outcomes = [
            (pair, both[int(calibrates(pair))][run.mode].verdict(pair).verdict)
            for pair in found[run.name]
        ]
        told.append(_condition(_describe(run.name), path, outcomes))
        tested += outcomes if run.mode == "raw_logprobs" else []
    for name, english in (("English prompts", True), ("other languages", False)):
        held = [(p, outcome) for p, outcome in tested if (_language(p) == "en") == english]
        told.append(_condition(f"of these, {name}", path, held))
    told.append(_condition("raw log probabilities, together", path, tested))
    return told


def _condition(name: str, path: str, outcomes: Sequence[tuple[Pair, str]]) -> Condition:
    return Condition(name, path, Counter(outcome for _, outcome in outcomes))


def _language(pair: Pair) -> str:
    return QUESTIONS[index_of(pair) % len(QUESTIONS)].language


_CONDITIONS = {
    "honest": "float32, batches of 8",
    "honest-alone": "float32, one request at a time",
    BFLOAT16.name: "bfloat16 executor, batches of 8",
    "honest-processed": "float32, processed log probabilities",
    "honest-free": "float32, answers that end by themselves",
}


def _describe(run: str) -> str:
    return _CONDITIONS.get(run, run)


def _vector_rows(kit: Kit) -> list[VectorRow]:
    rows = []
    profile = None
    if all(kit.vectors.has(name) for name in BEFORE.values()):
        profile = honest_profile(*(kit.vectors.read(name) for name in BEFORE.values()))
    for attack in VECTOR_ATTACKS:
        held = f"{attack.name}-computed" if attack.trick in ("mean", "search") else COMPUTED
        if kit.vectors.has(attack.name) and kit.vectors.has(held):
            claimed, computed = kit.vectors.read(attack.name), kit.vectors.read(held)
            rows.append(vector_row(attack, claimed, computed, profile))
    return rows


def comparison_file(kit: Kit) -> Path:
    """Where ``assay attack compare`` leaves its figures for the page."""
    return kit.logs.parent / "comparison.json"


def _others(kit: Kit) -> dict[str, Any]:
    path = comparison_file(kit)
    if not path.is_file():
        return {}
    body = json.loads(path.read_text(encoding="utf-8"))
    return {"others": body["auc"], "about": body["about"], "compared": body["claims"]}


def as_json(page: Page) -> dict[str, Any]:
    """The page's figures as plain data."""
    return {
        "fpr": page.fpr,
        "attacks": [dataclasses.asdict(one) for one in page.rows],
        "targets": [
            {
                "target": one.target.text,
                "reached": one.reached,
                "met": one.met,
                "claims_needed": None if one.needed is None else one.needed[0],
            }
            for one in page.outcomes
        ],
        "honest": [
            {"condition": c.name, "path": c.path, "outcomes": dict(c.outcomes)}
            for c in page.conditions
        ],
        "vectors": [_vector_json(one) for one in page.vectors],
        "others": {name: dict(found) for name, found in page.others.items()},
    }


def _vector_json(one: VectorRow) -> dict[str, Any]:
    return {
        "attack": one.attack.name,
        "mean_distance": one.mean_distance,
        "mismatches": one.mismatches.count,
        "nonces": one.mismatches.of,
        "verdict": one.verdict,
        "unexplained": one.unexplained,
        "porosity": one.porosity,
        "by_profile": None if one.by_profile is None else one.by_profile.verdict,
    }
