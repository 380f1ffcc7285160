"""SmolLM2-135M against the shared vectors of an independent float32 forward."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.engine.poc.conftest import Engines
from tests.engine.poc.test_forward import WITHIN, apart, rows

SHARED = Path(__file__).resolve().parents[4] / "shared" / "vectors" / "poc_smollm2_float32.json"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared vectors are not beside this checkout")
@pytest.mark.parametrize("engines", ["v1"], indirect=True)
def test_all_six_sets_of_shared_vectors(engines: Engines, smollm2_path: Path) -> None:
    engine = engines.load(smollm2_path)
    shared = json.loads(SHARED.read_text())
    challenge = (shared["block_hash"], shared["public_key"])
    furthest = {}
    for part in shared["sets"]:
        nonces = [artifact["nonce"] for artifact in part["artifacts"]]
        expected = np.array([artifact["vector"] for artifact in part["artifacts"]])
        stronger = part["poc_stronger_rng"]
        given = rows(engine.vectors(nonces, part["seq_len"], stronger, challenge))
        furthest[part["seq_len"], stronger] = apart(given, expected)
    assert len(furthest) == 6
    assert max(furthest.values()) <= WITHIN, furthest
