"""One real server: honest claims, and claims laundered from a hidden system prompt.

The launderer writes under a system prompt and claims the log probabilities that the same model
gives without it, so the value channel has nothing to see. Weights are laundered in the same way
(docs/detection.md has the figures); a second server would cost this test a minute.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.server import Server

from assay.attacks.catalogue import REAL, Run, attack
from assay.attacks.kit import produce_one
from assay.attacks.pairs import Pair, column, pairs
from assay.attacks.produce import Amount, fill_replays, fill_run
from assay.attacks.store import open_kit_at
from assay.replay.client import HttpEngineClient
from assay.scoring.verdict import judge
from assay.settings import ClientSettings

pytestmark = [pytest.mark.engine, pytest.mark.v1]

AMOUNT = Amount(claims=6, tokens=24)


@pytest.fixture(scope="module")
def made(
    v1_server: Server, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Pair]]:
    """Honest and laundered claims, each with a replay in batches the executor did not use."""
    kit = open_kit_at(smollm2_path, tmp_path_factory.mktemp("kit"), {}, ClientSettings(), print)

    async def run() -> dict[str, list[Pair]]:
        found = {}
        async with HttpEngineClient(v1_server.url, kit.settings) as client:
            honest = Run("honest", REAL, batch=1)
            await fill_run(client, kit.traces, honest, AMOUNT, kit.say)
            claims = {
                "honest": list(kit.traces.claims("honest").values()),
                "laundered": await produce_one(
                    kit, attack("laundered-system-prompt"), AMOUNT, v1_server.url, None
                ),
            }
            for name, held in claims.items():
                await fill_replays(client, kit.traces, name, held, batch=4)
                found[name] = pairs(kit.traces, name, "decode", held)
        return found

    return asyncio.run(run())


def test_honest_claims_are_the_draws_of_their_seeds(made: dict[str, list[Pair]]) -> None:
    assert len(made["honest"]) == AMOUNT.claims
    # Other batches round otherwise: one near tie in a claim is allowed.
    assert max(column(made["honest"], "choice_mismatch")) <= 1 / AMOUNT.tokens
    assert max(column(made["honest"], "value_distance")) < 1e-3


def test_laundered_claims_look_perfect_by_value(made: dict[str, list[Pair]]) -> None:
    """The distances of a laundered claim are no larger than those of an honest one."""
    assert len(made["laundered"]) == AMOUNT.claims
    assert max(column(made["laundered"], "value_distance")) < 1e-3


def test_laundered_claims_are_caught_by_the_choice(made: dict[str, list[Pair]]) -> None:
    """Case of spec replay, section 5: distance 0, and the seed draws other tokens."""
    mismatches = column(made["laundered"], "choice_mismatch")
    assert sum(mismatches) / len(mismatches) > 0.05
    outcomes = {
        name: [
            channel.outcome
            for pair in held
            for channel in judge(pair.claim, pair.replay, kind="enforced").channels
            if channel.name == "choice"
        ]
        for name, held in made.items()
    }
    assert set(outcomes["honest"]) <= {"pass", "inconclusive"}
    # Without a profile and after 24 tokens: some answers begin alike, others part at once.
    assert outcomes["laundered"].count("fail") >= 2
