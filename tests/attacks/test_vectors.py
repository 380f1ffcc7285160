"""Sets of vectors: what is sent, kept on disk, and told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.attacks.vector_table import vector_row
from assay.attacks.vectors import (
    BLOCK,
    FORGED_FROM,
    HIDDEN_SIZE,
    KEY,
    NONCES,
    SEQ_LEN,
    VectorFiles,
    as_body,
    send,
    vector_attack,
)
from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.layers import vector_from_state


def states(nonces: range | list[int], *, own: float = 1.0, error: float = 0.0) -> ArtifactSet:
    """Vectors of states with a common part and a part of their own; ``error`` is the engine's."""
    shared = np.random.default_rng(1).normal(size=HIDDEN_SIZE)
    found = {}
    for nonce in nonces:
        state = shared + own * np.random.default_rng(1000 + nonce).normal(size=HIDDEN_SIZE)
        state += error * np.random.default_rng(9000 + nonce).normal(size=HIDDEN_SIZE)
        found[nonce] = vector_from_state(state, BLOCK, KEY, nonce)
    return ArtifactSet(
        Challenge(BLOCK, KEY, seq_len=SEQ_LEN), found, name="made", hidden_size=HIDDEN_SIZE
    )


REAL = states(range(NONCES))


def test_honest_vectors_pass_and_another_models_do_not() -> None:
    honest = vector_row(vector_attack("poc-honest"), states(range(NONCES), error=0.01), REAL)
    assert honest.verdict == "pass" and honest.mismatches.count == 0
    assert honest.unexplained is not None and honest.unexplained < 0.01
    cheat = vector_row(vector_attack("poc-int4"), states(range(NONCES), error=1.0), REAL)
    assert cheat.verdict == "fail" and cheat.mismatches.count > NONCES // 2
    assert cheat.unexplained is not None and cheat.unexplained > 0.3
    assert cheat.mean_distance is not None and cheat.mean_distance > 0.3
    assert not honest.porous and not cheat.porous


async def test_a_forgery_is_made_without_a_model_and_shares_no_nonce_with_what_it_knew() -> None:
    body = await send(vector_attack("poc-mean"), None, REAL)
    nonces = [artifact["nonce"] for artifact in body["artifacts"]]
    assert nonces == list(range(FORGED_FROM, FORGED_FROM + NONCES))
    assert not set(nonces) & set(REAL.vectors)


async def test_a_search_leaves_gaps_that_are_named(tmp_path: Path) -> None:
    files = VectorFiles(tmp_path)
    files.write("poc-sparse", await send(vector_attack("poc-sparse"), None, REAL))
    sparse = files.read("poc-sparse")
    row = vector_row(vector_attack("poc-sparse"), sparse, states(list(sparse.vectors)))
    assert row.porous
    assert len(sparse.vectors) == NONCES


async def test_what_is_missing_is_named() -> None:
    with pytest.raises(SettingsError, match="needs vectors of the block"):
        await send(vector_attack("poc-mean"), None, None)
    with pytest.raises(SettingsError, match="needs a server"):
        await send(vector_attack("poc-int4"), None, REAL)


def test_files_hold_what_was_written(tmp_path: Path) -> None:
    files = VectorFiles(tmp_path)
    assert not files.has("poc-honest")
    files.write("poc-honest", as_body(REAL))
    back = files.read("poc-honest")
    assert replace(back, vectors={}, name="made", profile={}) == replace(REAL, vectors={})
    worst = max(np.abs(back.vectors[n] - REAL.vectors[n]).max() for n in REAL.vectors)
    assert worst < 1e-3  # float16
