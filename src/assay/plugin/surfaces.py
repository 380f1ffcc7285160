"""Every private name of vLLM this plugin relies on: what, why, and the versions it was checked on.

A surface is described by its structure (module, name, parameters, methods), so that the same table
is checked twice: live, before anything is installed, and on unpacked wheels of other versions by
``tests/plugin/test_surfaces.py``. An unknown version or shape raises :class:`SurfaceError`, which
keeps the server from starting: it must never answer unforced.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any, Final

from assay.errors import SurfaceError
from assay.plugin.constants import SUPPORTED_ENGINES

_CHECKED: Final = ("0.31.0", "0.32.0", "0.33.0")


@dataclass(frozen=True)
class Surface:
    """One private name.

    ``params`` must be among the callable's parameters (of ``__init__`` for a class). ``methods``
    maps a method to parameters it must have; ``fields`` are attributes its instances hold, checked
    live where the class declares them and on unpacked sources where ``__init__`` assigns them.
    ``why`` says why no public point serves.
    """

    module: str
    name: str
    why: str
    params: tuple[str, ...] = ()
    methods: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fields: tuple[str, ...] = ()
    checked: tuple[str, ...] = _CHECKED

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


SURFACES: Final[tuple[Surface, ...]] = (
    Surface(
        "vllm.v1.worker.gpu_model_runner",
        "Sampler",
        "V1 builds its sampler from this module-level name; logits processors see logits before "
        "sampling and cannot choose the id while keeping its true log probability.",
        params=("logprobs_mode", "use_fp64_gumbel"),
        methods=(
            (
                "forward",
                (
                    "logits",
                    "sampling_metadata",
                    "predict_bonus_token",
                    "logprobs_mode_override",
                ),
            ),
            ("sample", ("logits", "sampling_metadata", "logprobs_mode_override")),
            ("gather_logprobs", ("logprobs", "num_logprobs", "token_ids")),
        ),
        fields=("topk_topp_sampler", "use_fp64_gumbel"),
    ),
    Surface(
        "vllm.v1.worker.gpu_model_runner",
        "build_logitsprocs",
        "V1's row bookkeeping reaches logits processors only. The public entry-point group loads "
        "one class for both runners and V2 refuses V1 classes; the flag switches on host copies "
        "of every output id.",
        params=("vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs"),
    ),
    Surface(
        "vllm.v1.sample.ops.topk_topp_sampler",
        "TopKTopPSampler",
        "The native top-k/top-p path, which returns processed logits where fused kernels cannot, and "
        "whose noise is found by drawing with it.",
        params=("logprobs_mode", "use_fp64_gumbel"),
        methods=(("forward_native", ("logits", "generators", "k", "p")),),
    ),
    Surface(
        "vllm.v1.sample.metadata",
        "SamplingMetadata",
        "V1's generators by row: a copy made before the step draws the noise of the two ids again.",
        fields=("generators", "logitsprocs", "max_num_logprobs", "logprob_token_ids"),
    ),
    Surface(
        "vllm.v1.worker.gpu.model_runner",
        "Sampler",
        "V2 builds its sampler from this module-level name; native trace replay refuses structured "
        "output and does not tell what would have been drawn.",
        params=("max_num_reqs", "vocab_size", "req_states", "logprobs_mode"),
        methods=(
            ("__call__", ("logits", "input_batch")),
            (
                "sample",
                (
                    "logits",
                    "expanded_idx_mapping",
                    "idx_mapping",
                    "idx_mapping_np",
                    "pos",
                    "return_logprobs",
                ),
            ),
            ("add_request", ("req_idx", "sampling_params")),
        ),
        fields=("sampling_states", "req_states", "use_fp64_gumbel"),
    ),
    Surface(
        "vllm.v1.worker.gpu.sample.states",
        "SamplingStates",
        "V2's seeds by request slot on the device, from which the noise of the two ids follows.",
        fields=("seeds",),
    ),
    Surface(
        "vllm.v1.worker.gpu.input_batch",
        "InputBatch",
        "V2's rows of a step: which request slot each row belongs to and how long it is, on the "
        "host, so that a forced id is looked up without a device read.",
        fields=("idx_mapping_np", "seq_lens_cpu_upper_bound"),
    ),
    Surface(
        "vllm.v1.worker.gpu.states",
        "RequestState",
        "V2's prompt and prefill lengths by request slot, from which a row's output position follows.",
        fields=("prompt_len", "prefill_len", "max_num_reqs", "vocab_size"),
    ),
    Surface(
        "vllm.v1.sample.logits_processor",
        "LogitsProcessors",
        "Where V1 hands a batch's processors to its sampler; ours only follows rows.",
        fields=("argmax_invariant",),
    ),
    Surface(
        "vllm.v1.core.sched.scheduler",
        "check_stop",
        "EOS and stop ids must not cut a replay; clearing them from the request would change the "
        "min_tokens mask and the grammar.",
        params=("request", "max_model_len"),
    ),
    Surface(
        "vllm.v1.structured_output",
        "StructuredOutputManager",
        "The one place where every backend's grammar is made; a forced id outside the grammar "
        "would end the request.",
        methods=(("_create_grammar", ("request",)),),
    ),
    Surface(
        "vllm.v1.structured_output.backend_types",
        "StructuredOutputGrammar",
        "The interface every backend's grammar has, which the degrading grammar wraps.",
        methods=(
            ("accept_tokens", ("request_id", "tokens")),
            ("validate_tokens", ("tokens",)),
            ("rollback", ("num_tokens",)),
            ("fill_bitmask", ("bitmask", "batch_index")),
            ("is_terminated", ()),
            ("reset", ()),
        ),
    ),
    Surface(
        "vllm.v1.engine.core_client",
        "AsyncMPClient",
        "Under data parallelism collective_rpc returns the first engine's answers only; evidence may "
        "lie in any.",
        methods=(("_call_utility_async", ("method", "engine")),),
        fields=("core_engines",),
    ),
    Surface(
        "vllm.entrypoints.serve.exception_handling.error_response",
        "create_error_response",
        "Builds the engine's own error body, so that our refusals look like its refusals.",
        params=("message", "param"),
    ),
    Surface(
        "vllm.distributed.device_communicators.shm_broadcast",
        "ShmRingBuffer",
        "Ring sizes are constants at every call site; only this constructor sees them all.",
        params=("n_reader", "max_chunk_bytes", "max_chunks", "name"),
    ),
)


def check_version(version: str) -> None:
    """Refuse engines outside the supported range (case 41, F47)."""
    match = re.match(r"(\d+\.\d+)\.", version + ".")
    if match is None or match.group(1) not in SUPPORTED_ENGINES:
        raise SurfaceError(
            f"vllm-assay supports vLLM {', '.join(f'{v}.x' for v in SUPPORTED_ENGINES)}, "
            f"but {version} is installed. Install a supported version, or start the server "
            "without the plugin (take assay out of VLLM_PLUGINS)."
        )


def resolve(surface: Surface) -> Any:
    """Import a surface and check its structure; :class:`SurfaceError` names what is missing."""
    try:
        value = getattr(importlib.import_module(surface.module), surface.name)
    except (ImportError, AttributeError) as error:
        raise SurfaceError(_missing(surface, f"cannot be imported ({error})")) from error
    _check_params(surface, value, surface.params, surface.name)
    for method, params in surface.methods:
        function = getattr(value, method, None)
        if not callable(function):
            raise SurfaceError(_missing(surface, f"has no method {method}"))
        _check_params(surface, function, params, f"{surface.name}.{method}")
    declared = getattr(value, "__dataclass_fields__", None)
    for name in surface.fields:
        if declared is not None and name not in declared:
            raise SurfaceError(_missing(surface, f"has no field {name}"))
    return value


def _check_params(surface: Surface, value: Any, params: tuple[str, ...], where: str) -> None:
    present = inspect.signature(value).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in present.values())
    for name in params:
        if name not in present and not takes_any:
            raise SurfaceError(_missing(surface, f"{where} has no parameter {name}"))


def _missing(surface: Surface, what: str) -> str:
    return (
        f"vllm-assay cannot work with this vLLM: {surface.path} {what}. It was checked on "
        f"{', '.join(surface.checked)}. Start the server without the plugin, or install one of these."
    )
