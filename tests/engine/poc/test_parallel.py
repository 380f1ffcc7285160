"""Several workers on one machine: tensor and pipeline parallelism with the tiny model.

Pipeline stages on V1 are refused before anything is loaded: ``tests/plugin/test_poc_deployments.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.poc.architectures import reference
from tests.engine.poc.conftest import Engines
from tests.engine.poc.process import EngineProcess
from tests.engine.poc.test_chat import CALL, chat
from tests.engine.poc.test_forward import CHALLENGE, SEQ_LEN, WITHIN, apart, both, rows

v2 = pytest.mark.parametrize("engines", ["v2"], indirect=True)


def check(engine: EngineProcess, model: Path) -> None:
    """Right vectors from the one rank that returns, errors from all, and chat unharmed.

    ``EngineProcess.vectors`` fails when no rank or more than one returns, and every answer has to
    come within its time (F31: ranks that wait for each other never answer).
    """
    expected = reference(model, range(4), SEQ_LEN, CHALLENGE)
    before = chat(engine)
    assert apart(rows(engine.vectors(range(4), SEQ_LEN)), expected) <= WITHIN
    errors = engine.rpc("probe_vectors", *CHALLENGE, list(range(5)), 512)
    assert [answer["error"] for answer in errors] == ["SettingsError"] * 2
    caches = engine.rpc("probe_caches")
    assert apart(rows(engine.vectors(range(4), SEQ_LEN)), expected) <= WITHIN
    assert engine.rpc("probe_caches") == caches
    assert engine.rpc("probe_hooks") == [0, 0]
    during = chat(engine, calls={"each": CALL}, between=6)
    assert during["in_flight"] == 16
    assert during["answers"] == chat(engine)["answers"]
    assert [answer["ids"] for answer in during["answers"]] == [
        answer["ids"] for answer in before["answers"]
    ]


@both
def test_f31_tensor_parallel(engines: Engines, tiny_path: Path) -> None:
    """F31: two ranks, same nonces in the same order, TP 1's vectors."""
    engine = engines.load(tiny_path, tensor_parallel_size=2)
    shapes = engine.rpc("probe_shape")
    assert [shape["reflected"] for shape in shapes] == [[0, 1], [0, 1]]
    check(engine, tiny_path)
    failed = engine.rpc("probe_faulty", "raise", [1, 2], 64)
    assert [answer["error"] for answer in failed] == ["InjectedError"] * 2
    expected = reference(tiny_path, [3], SEQ_LEN, CHALLENGE)
    assert apart(rows(engine.vectors([3], SEQ_LEN)), expected) <= WITHIN


@v2
def test_f31_pipeline_parallel_on_v2(engines: Engines, tiny_path: Path) -> None:
    """F31: the first stage makes the embeddings, the last one returns."""
    engine = engines.load(tiny_path, pipeline_parallel_size=2)
    shapes = engine.rpc("probe_shape")
    assert [shape["reflected"] for shape in shapes] == [[0], [1]]
    assert [shape["layers"] for shape in shapes] == [2, 2]
    check(engine, tiny_path)
    assert engine.rpc("probe_vectors", *CHALLENGE, [1], SEQ_LEN)[0] is None
