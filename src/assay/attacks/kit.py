"""The whole kit: which servers to start, in which order, and what to ask of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assay.attacks.ask import claim_name
from assay.attacks.catalogue import (
    ATTACKS,
    BFLOAT16,
    HONEST_RUNS,
    REAL,
    Attack,
    Executor,
    Run,
)
from assay.attacks.produce import LAUNDRY, Amount, Say, attacked, fill_replays, fill_run, made_of
from assay.attacks.servers import serving
from assay.attacks.traces import Traces
from assay.attacks.vectors import (
    BATCHES,
    BLOCK,
    NONCES,
    OLD_BLOCK,
    VECTOR_ATTACKS,
    VectorAttack,
    VectorFiles,
    computed,
    send,
)
from assay.claims.claim import Claim
from assay.errors import SettingsError
from assay.replay.client import EngineClient, HttpEngineClient
from assay.replay.request import PathChoice
from assay.settings import ClientSettings

HONEST_AMOUNTS: Mapping[str, Amount] = {
    "honest": Amount(240),
    "honest-alone": Amount(40),
    "honest-bfloat16": Amount(110),
    "honest-processed": Amount(80),
    "honest-free": Amount(80),
}
"""Honest claims a condition: 550 in all. Half of them calibrate; a fitted tail needs 40 of one set of
conditions (``scoring.constants.TAIL_MIN_CLAIMS``), and the float32 runs are one."""
COMPUTED = "poc-computed"
"""The validator's own vectors, which are also the published ones a forger learns from."""
BEFORE: Mapping[Executor, str] = {
    REAL: "poc-before",
    BFLOAT16.executor: "poc-before-bfloat16",
}
"""Honest vectors of the block before, by engine: what a profile for vectors is made from."""


@dataclass(frozen=True)
class Kit:
    """Where things are. ``model`` is the honest folder."""

    traces: Traces
    vectors: VectorFiles
    model: Path
    logs: Path
    environment: Mapping[str, str]
    settings: ClientSettings
    say: Say

    def serve(self, executor: Executor) -> ServerSlot:
        return ServerSlot(self, executor)


class ServerSlot:
    """A server that is started when it is first needed and ends with the block."""

    def __init__(self, kit: Kit, executor: Executor) -> None:
        self._kit, self._executor = kit, executor
        self._stack = AsyncExitStack()
        self._client: EngineClient | None = None

    async def client(self) -> EngineClient:
        """The server's client; the first call starts the server."""
        if self._client is None:
            self._kit.say(f"starting the server {self._executor.name}")
            kit = self._kit
            self._client = await self._stack.enter_async_context(
                serving(self._executor, kit.model, kit.environment, kit.logs, kit.settings)
            )
        return self._client

    async def __aenter__(self) -> ServerSlot:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._stack.aclose()


def runs_needed(attacks: Sequence[Attack]) -> list[Run]:
    """Every base run of ``attacks`` and every honest run, once, the honest ones first."""
    runs = [*HONEST_RUNS, *(attack.base for attack in attacks)]
    return list({run.name: run for run in runs}.values())


async def fill_everything(kit: Kit, attacks: Sequence[Attack], amount: Amount) -> None:
    """Make whatever is missing of claims, vectors and replays; one server at a time."""
    runs = runs_needed(attacks)
    for executor in dict.fromkeys(run.executor for run in runs):
        async with kit.serve(executor) as slot:
            for run in (run for run in runs if run.executor == executor):
                wanted = HONEST_AMOUNTS.get(run.name, amount)
                if len(made_of(kit.traces.claims(run.name), run.name, wanted)) < wanted.claims:
                    await fill_run(await slot.client(), kit.traces, run, wanted, kit.say)
            await _fill_vectors(kit, slot, executor)
    async with kit.serve(REAL) as slot:
        await _launder(kit, slot, attacks, amount)
        for path in ("decode", "prefill"):
            await _replay_all(kit, slot, attacks, amount, path)


async def _fill_vectors(kit: Kit, slot: ServerSlot, executor: Executor) -> None:
    """The vectors that ``executor`` sends; on the real server those that everybody is held to."""
    for attack in VECTOR_ATTACKS:
        learns = attack.trick in ("mean", "search")
        if attack.executor == executor and not learns and not kit.vectors.has(attack.name):
            kit.say(f"{attack.name}: {NONCES} vectors")
            kit.vectors.write(attack.name, await send(attack, await slot.client(), None))
    before = BEFORE.get(executor)
    if before is not None and not kit.vectors.has(before):
        body = await computed(await slot.client(), OLD_BLOCK, range(NONCES), BATCHES[0])
        kit.vectors.write(before, body)
    if executor != REAL:
        return
    if not kit.vectors.has(COMPUTED):
        kit.vectors.write(
            COMPUTED, await computed(await slot.client(), BLOCK, range(NONCES), BATCHES[1])
        )
    for attack in VECTOR_ATTACKS:
        if attack.trick in ("mean", "search"):
            await _fill_forgery(kit, slot, attack)


async def _fill_forgery(kit: Kit, slot: ServerSlot, attack: VectorAttack) -> None:
    if not kit.vectors.has(attack.name):
        kit.vectors.write(attack.name, await send(attack, None, kit.vectors.read(COMPUTED)))
    if not kit.vectors.has(f"{attack.name}-computed"):
        kit.say(f"{attack.name}: {NONCES} vectors recomputed")
        nonces = list(kit.vectors.read(attack.name).vectors)
        body = await computed(await slot.client(), BLOCK, nonces, BATCHES[1])
        kit.vectors.write(f"{attack.name}-computed", body)


async def _launder(kit: Kit, slot: ServerSlot, attacks: Sequence[Attack], amount: Amount) -> None:
    """The launderer's replays, one set for each executor that writes."""
    for run in {a.base.name: a.base for a in attacks if a.edit == "launder"}.values():
        claims = made_of(kit.traces.claims(run.name), run.name, amount)
        if any(claim.id not in kit.traces.replays(run.name, LAUNDRY) for claim in claims):
            kit.say(f"laundering {run.name}")
            await fill_replays(
                await slot.client(), kit.traces, run.name, claims, as_path=LAUNDRY, batch=run.batch
            )


async def _replay_all(
    kit: Kit, slot: ServerSlot, attacks: Sequence[Attack], amount: Amount, path: PathChoice
) -> None:
    """The validator's replays of everything by one path."""
    twins = {attack.name: attack for attack in attacks if attack.edit in SAME_TOKENS}
    for name, claims in everything(kit.traces, attacks, amount):
        done = kit.traces.replays(name, path)
        left = [claim for claim in claims if claim.id not in done]
        if not left:
            continue
        if name in twins:
            _take_replays(kit.traces, _unedited(twins[name], attacks), path, left)
            continue
        kit.say(f"{path}: replaying {len(left)} claims of {name}")
        await fill_replays(await slot.client(), kit.traces, name, left, path=path)


SAME_TOKENS: Final = ("launder", "inflate", "disguise")
"""Edits that leave prompt, request and tokens alone: a replay does not see them."""


def _unedited(twin: Attack, attacks: Sequence[Attack]) -> str:
    """Under which name the base run's own claims were replayed: an attack's, or the run's."""
    same = (a.name for a in attacks if a.base.name == twin.base.name and a.edit == "none")
    return next(same, twin.base.name)


def _take_replays(traces: Traces, source: str, path: str, claims: Sequence[Claim]) -> None:
    """The replays of ``source`` are those of its edited claims too."""
    held = traces.replays(source, path)
    for claim in claims:
        name, index = claim.id.rsplit("-", 1)
        real = held.get(claim_name(source, int(index)))
        if real is not None:
            traces.add_replays(name, path, [real.model_copy(update={"id": claim.id})])


def everything(
    traces: Traces, attacks: Sequence[Attack], amount: Amount
) -> list[tuple[str, list[Claim]]]:
    """Every honest run and every attack with its claims."""
    honest = [
        (run.name, made_of(traces.claims(run.name), run.name, HONEST_AMOUNTS.get(run.name, amount)))
        for run in HONEST_RUNS
    ]
    return [*honest, *((a.name, attacked(traces, a, amount)) for a in attacks)]


async def produce_one(
    kit: Kit, attack: Attack, amount: Amount, server: str | None, real: str | None
) -> list[Claim]:
    """The claims of one attack, from servers at the given addresses or started for it.

    ``server`` is the cheating executor's address, ``real`` the real model's, which only laundering
    asks. Raises ReplayError when a server does not answer, ClaimError when an answer is no claim.
    """
    async with AsyncExitStack() as stack:
        writer = await at(kit, stack, attack.base.executor, server)
        await fill_run(writer, kit.traces, attack.base, amount, kit.say)
        if attack.edit == "launder":
            if attack.base.executor == REAL and real is None:
                launderer = writer
            else:
                launderer = await at(kit, stack, REAL, real)
            claims = made_of(kit.traces.claims(attack.base.name), attack.base.name, amount)
            await fill_replays(
                launderer,
                kit.traces,
                attack.base.name,
                claims,
                as_path=LAUNDRY,
                batch=attack.base.batch,
            )
    return attacked(kit.traces, attack, amount)


async def produce_vectors(kit: Kit, attack: VectorAttack, server: str | None) -> dict[str, Any]:
    """The vectors of one attack, as the JSON of a file; ``server`` is its executor's address.

    A forgery learns from vectors that the real server publishes. Raises ReplayError when the
    server fails.
    """
    async with AsyncExitStack() as stack:
        client = await at(kit, stack, attack.executor, server)
        if attack.trick not in ("mean", "search"):
            return await send(attack, client, None)
        kit.vectors.write(COMPUTED, await computed(client, BLOCK, range(NONCES), BATCHES[1]))
        return await send(attack, None, kit.vectors.read(COMPUTED))


async def at(
    kit: Kit, stack: AsyncExitStack, executor: Executor, address: str | None
) -> EngineClient:
    """A client of the server at ``address``, or of one started for ``executor``; both end with
    ``stack``."""
    if address is not None:
        return await stack.enter_async_context(HttpEngineClient(address, kit.settings))
    kit.say(f"starting the server {executor.name}")
    return await stack.enter_async_context(
        serving(executor, kit.model, kit.environment, kit.logs, kit.settings)
    )


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks of those names, all of them for none. SettingsError for an unknown name."""
    unknown = [name for name in names if name not in {attack.name for attack in ATTACKS}]
    if unknown:
        raise SettingsError(f"no attack is called {', '.join(unknown)}")
    return [attack for attack in ATTACKS if not names or attack.name in names]
