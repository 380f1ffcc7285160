"""The servers of the engine tests: one at a time, each with little room on purpose.

Eight rows, 192 tokens a step and 19 usable blocks of 32 tokens: eight longer replays at once have
to queue, to be prefilled in chunks and to preempt each other, which a roomy server never does.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from tests.engine.plugins import general_plugin
from tests.support import specs
from tests.support.server import ServerSpec

MODEL_LENGTH = 512
STEP_TOKENS = 192
BLOCK = 32
ROWS = 8
MAX_LOGPROBS = 20
"""vLLM's default (case 8)."""
TIGHT = (
    "--max-num-batched-tokens", str(STEP_TOKENS),
    "--max-num-seqs", str(ROWS),
    "--block-size", str(BLOCK),
    "--num-gpu-blocks-override", "20",
    "--max-logprobs", str(MAX_LOGPROBS),
)  # fmt: skip
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
STRICT_JSON = ("--structured-outputs-config.disable_any_whitespace", "true")
"""A random model would write spaces for ever where the grammar lets it."""
XGRAMMAR = ("--structured-outputs-config.backend", "xgrammar")
GUIDANCE = ("--structured-outputs-config.backend", "guidance")
NGRAM = (
    "--speculative-config",
    '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":3}',
)
ASYNC_HELPER = Path(__file__).parent.parent / "support" / "async_cpu" / "assay_async_cpu.py"


def tight_v1(model: Path, *, plugin: bool = True, flags: tuple[str, ...] = ()) -> ServerSpec:
    """V1 and the tiny model; grammars by xgrammar."""
    all_flags = (*TIGHT, *TOOLS, *XGRAMMAR, *STRICT_JSON, *flags)
    return specs.v1(model, plugin=plugin, max_model_len=MODEL_LENGTH, flags=all_flags)


def tight_v2(model: Path, site: Path, flags: tuple[str, ...] = ()) -> ServerSpec:
    """V2 and the tiny model; grammars by guidance."""
    all_flags = (*TIGHT, *TOOLS, *GUIDANCE, *STRICT_JSON, *flags)
    return specs.v2(model, site, plugin=True, max_model_len=MODEL_LENGTH, flags=all_flags)


def with_async(spec: ServerSpec, folder: Path) -> ServerSpec:
    """``spec`` under async scheduling, which a CPU refuses unless the test helper insists."""
    general_plugin(folder, "async_cpu", ASYNC_HELPER.stem, ASYNC_HELPER.read_text())
    return with_plugin(with_flags(spec, "--async-scheduling"), "async_cpu", folder)


def with_plugin(spec: ServerSpec, name: str, folder: Path) -> ServerSpec:
    """``spec`` with one more general plugin, found before those of the environment."""
    path = os.pathsep.join(filter(None, (str(folder), spec.env.get("PYTHONPATH"))))
    plugins = f"{name},{spec.env['VLLM_PLUGINS']}"
    return with_env(spec, {"PYTHONPATH": path, "VLLM_PLUGINS": plugins})


def with_env(spec: ServerSpec, env: Mapping[str, str]) -> ServerSpec:
    return dataclasses.replace(spec, env={**spec.env, **env})


def with_flags(spec: ServerSpec, *flags: str) -> ServerSpec:
    return dataclasses.replace(spec, command=(*spec.command, *flags))


def without_worker_extension(spec: ServerSpec) -> ServerSpec:
    left = [part for part in spec.command if part not in specs.WORKER_EXTENSION]
    return dataclasses.replace(spec, command=tuple(left))
