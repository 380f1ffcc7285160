"""From names to files: every run answered, every attack edited, every claim replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from assay.attacks import constants, edit
from assay.attacks.ask import RETRIES, answers, claim_name
from assay.attacks.catalogue import BFLOAT16, HONEST, Attack, Run
from assay.attacks.traces import Traces
from assay.claims.claim import Claim, EngineIdentity, Replay
from assay.errors import ReplayError
from assay.replay.client import EngineClient
from assay.replay.identity import identify
from assay.replay.paths import replay_claim
from assay.replay.prefill_fits import NOT_AVAILABLE
from assay.replay.request import PathChoice, ReplayOptions

Say = Callable[[str], None]
LAUNDRY = "laundry"
"""Name of the replays a launderer makes, as a path in ``Traces``. The validator makes its own."""


@dataclass(frozen=True)
class Amount:
    """How many claims of how many tokens; ``fields`` of the request win over the usual ones."""

    claims: int = constants.CLAIMS
    tokens: int = constants.TOKENS
    fields: Mapping[str, Any] = field(default_factory=dict)


async def fill_run(
    client: EngineClient, traces: Traces, run: Run, amount: Amount, say: Say
) -> None:
    """Have the executor behind ``client`` answer whatever ``traces`` lacks of ``run``."""
    done = traces.claims(run.name)
    missing = amount.claims - sum(claim_name(run.name, i) in done for i in range(amount.claims))
    if missing <= 0:
        return
    say(f"{run.name}: {missing} claims of {amount.tokens} tokens")
    async with aclosing(
        answers(
            client,
            run,
            claims=amount.claims,
            tokens=amount.tokens,
            fields=amount.fields,
            done=done,
        )
    ) as made:
        async for claim in made:
            traces.add_claims(run.name, [claim])


async def fill_replays(
    client: EngineClient,
    traces: Traces,
    name: str,
    claims: Sequence[Claim],
    *,
    path: PathChoice = "decode",
    as_path: str | None = None,
    batch: int = constants.VALIDATOR_BATCH,
) -> None:
    """Replay on the real server whatever ``traces`` lacks of ``name``.

    The replays are kept under ``as_path``: the path itself, or ``LAUNDRY`` for the launderer's.
    Claims that cannot be prefilled are left out. Raises ReplayError when the server fails.
    """
    kept_as = as_path or path
    done = traces.replays(name, kept_as)
    left = [claim for claim in claims if claim.id not in done]
    if not left:
        return
    server = await identify(client)
    slots = asyncio.Semaphore(batch)

    async def one(claim: Claim) -> list[Replay]:
        async with slots:
            try:
                run = await replay_claim(
                    client, server, claim, ReplayOptions(path=path), retries=RETRIES
                )
            except ReplayError as error:
                if error.code == NOT_AVAILABLE:
                    return []
                raise
        return [run.replay.model_copy(update={"id": claim.id})]

    tasks = [asyncio.create_task(one(claim)) for claim in left]
    try:
        for task in asyncio.as_completed(tasks):
            traces.add_replays(name, kept_as, await task)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def attacked(traces: Traces, attack: Attack, amount: Amount) -> list[Claim]:
    """The claims of ``attack``, edited from the answers of its base run.

    Each says that the honest engine made it, as far as ``traces`` hold an honest run. Claims whose
    answer is too short for the edit are left out. Laundering needs the launderer's replays.
    """
    base = traces.claims(attack.base.name)
    found = made_of(base, attack.base.name, amount)
    real = traces.replays(attack.base.name, LAUNDRY) if attack.edit == "launder" else {}
    # An executor that cheats says it is honest; a disguised one that it is another honest one.
    engine = _engine(traces, BFLOAT16 if attack.edit == "disguise" else HONEST)
    made = []
    for index, claim in enumerate(found):
        other = found[(index + 1) % len(found)]
        done = _edited(attack, claim, other, real.get(claim.id))
        if done is not None:
            told = done if engine is None else edit.disguise(done, engine)
            made.append(edit.renamed(told, claim_name(attack.name, index)))
    return made


def made_of(claims: Mapping[str, Claim], run: str, amount: Amount) -> list[Claim]:
    """The first ``amount.claims`` of a run, as far as they are there."""
    names = (claim_name(run, index) for index in range(amount.claims))
    return [claims[name] for name in names if name in claims]


def _engine(traces: Traces, run: Run) -> EngineIdentity | None:
    first = next(iter(traces.claims(run.name).values()), None)
    return None if first is None else first.engine


def _edited(attack: Attack, claim: Claim, other: Claim, real: Replay | None) -> Claim | None:
    if attack.edit == "replace-token":
        return edit.replace_token(claim)
    if attack.edit == "truncate":
        return edit.truncate(claim) if len(claim.output_ids or ()) > 1 else None
    if attack.edit == "inflate":
        return edit.inflate(claim, constants.INFLATED_BY)
    if attack.edit == "copy":
        return edit.copy_answer(claim, other)
    if attack.edit == "launder":
        return None if real is None else edit.launder(claim, real)
    return claim
