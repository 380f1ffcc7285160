"""Fixtures of the in-process tests: stock vLLM classes, no server."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator

import pytest

# torch and the engine warn about themselves while they are imported; warnings are errors only for
# what the tests do. Imported here once, before any test module is.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _name in (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "vllm.entrypoints.openai.completion.protocol",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.core.sched.scheduler",
        "vllm.v1.structured_output",
    ):
        importlib.import_module(_name)


class Records(logging.Handler):
    """Keeps what one logger tree says. caplog listens on the root, which vLLM's loggers do not reach."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def at_least(self, level: int) -> list[str]:
        return [r.getMessage() for r in self.records if r.levelno >= level]


@pytest.fixture
def vllm_log() -> Iterator[Records]:
    """Everything the ``vllm`` loggers say during a test, ours (``vllm.assay``) included."""
    logger, handler = logging.getLogger("vllm"), Records()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def no_compiling() -> Iterator[None]:
    """Stock code compiles one small counting function, 10 s here; run it as written instead."""
    import torch

    before = torch._dynamo.config.disable
    torch._dynamo.config.disable = True
    yield
    torch._dynamo.config.disable = before
