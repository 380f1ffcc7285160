"""From an ``up`` request to the backends to start: how many, on which GPUs, with which command."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from assay.node.backend import Backend, Launch
from assay.node.config import Backends, Models
from assay.node.failures import NodeRefusal
from assay.node.finish import to_the_end
from assay.node.flags import last_value
from assay.node.gpus import visible_gpus
from assay.node.logs import environment_secrets
from assay.node.model_source import commit_to_pin, source_of
from assay.settings import process_environment

ASSAY_SERVE = (sys.executable, "-m", "assay.cli.main", "serve")
DRY_RUN_WITHIN = 120.0
OURS = ("host", "port", "uds", "fd", "headless")
"""Flags the node sets or depends on, so a request cannot."""
PARALLEL = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
}
QUIET = (
    "--disable-access-log-for-endpoints",
    "/health,/metrics,/v1/models,/api/v1/pow/status,/api/v1/pow/versions",
)
"""The node's own questions would fill a backend's log. Before the caller's flags: theirs win."""
NODE_VARIABLES = "ASSAY_NODE_"


class UpRequest(BaseModel):
    """Body of ``/inference/up``. Keys that are not known are ignored, as clients send some."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model: str = Field(min_length=1, max_length=4096)
    """Hub id or local folder."""
    dtype: str = Field("auto", max_length=64)
    additional_args: tuple[str, ...] = ()
    """Flags of ``vllm serve``."""


@dataclass(frozen=True)
class Planned:
    backend: Backend
    launch: Launch


async def plan(
    request: UpRequest,
    settings: Backends,
    variables: Mapping[str, str] | None = None,
) -> list[Planned]:
    """What to start, sorted by port. NodeRefusal 400 for a request that cannot work.

    ``variables`` go to every backend, over all others. A model of the hub that is in the cache is
    served as the commit that was downloaded, unless the flags name a revision.
    """
    _check(request)
    environment = backend_environment(settings, process_environment()) | dict(variables or {})
    serve = settings.command or ASSAY_SERVE
    flags = await effective_flags(serve, request, environment)
    gpus = await asyncio.to_thread(visible_gpus, settings.gpus, environment)
    slices = gpu_slices(gpus, gpus_each(flags), settings.count)
    key = last_value(flags, "--api-key") or environment.get("VLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    secrets = (*environment_secrets(settings), *([key] if key else []))
    source = source_of(request.model, flags, environment, Models())
    commit = await asyncio.to_thread(commit_to_pin, source, flags)
    pinned = ("--revision", commit) if commit is not None else ()
    if commit is not None:
        source = replace(source, revision=commit)
    planned = []
    for port, part in enumerate(slices, start=settings.first_port):
        backend = Backend(port, settings.host, part, headers, source=source)
        own = {"CUDA_VISIBLE_DEVICES": ",".join(part)} if part else {}
        address = ("--host", settings.host, "--port", str(port))
        command = (*serve, request.model, *QUIET, *pinned, *_flags(request), *address)
        launch = Launch(port, command, {**environment, **own}, secrets)
        planned.append(Planned(backend, launch))
    return planned


def _flags(request: UpRequest) -> tuple[str, ...]:
    return ("--dtype", request.dtype, *request.additional_args)


def _check(request: UpRequest) -> None:
    if request.model.startswith("-") or request.dtype.startswith("-"):
        raise NodeRefusal(400, "model and dtype are values, not flags")
    for index, argument in enumerate(request.additional_args):
        if "\0" in argument:
            raise NodeRefusal(400, f"additional_args[{index}]: holds a NUL character")
        name = argument.split("=", 1)[0].lstrip("-").replace("_", "-")
        if argument.startswith("--") and name in OURS:
            raise NodeRefusal(
                400,
                f"additional_args[{index}]: {argument}: the node decides --{name}; leave it out",
            )


def backend_environment(settings: Backends, environment: Mapping[str, str]) -> dict[str, str]:
    """The node's own environment without its keys, and the configured variables on top."""
    kept = {k: v for k, v in environment.items() if not k.startswith(NODE_VARIABLES)}
    return kept | {k: v.get_secret_value() for k, v in settings.environment.items()}


def model_variables(settings: Models) -> dict[str, str]:
    """Variables that make backends load from the node's cache, and ask no hub where it does not."""
    variables = {}
    if settings.cache_dir is not None:
        variables["HF_HUB_CACHE"] = str(settings.cache_dir.expanduser().absolute())
    if settings.offline:
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


async def effective_flags(
    serve: Sequence[str], request: UpRequest, environment: Mapping[str, str]
) -> list[str]:
    """The flags ``assay serve`` would use, presets included: they may set the parallel sizes.

    Asked of the command itself, so that node and command cannot disagree.
    """
    code, shown, errors = await _output(
        (*serve, "--dry-run", request.model, *_flags(request)), environment
    )
    if code != 0:
        lines = errors.decode("utf-8", errors="replace").strip().splitlines()
        raise NodeRefusal(400, lines[-1] if lines else "assay serve refused these flags")
    return shlex.split(shown.decode("utf-8", errors="replace"))


async def _output(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int | None, bytes, bytes]:
    """Exit code, standard output and standard error of a command."""
    process, cancelled = await to_the_end(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    )
    try:
        if cancelled:
            raise asyncio.CancelledError
        async with asyncio.timeout(DRY_RUN_WITHIN):
            shown, errors = await process.communicate()
    except TimeoutError as error:
        raise NodeRefusal(500, "assay serve --dry-run did not end") from error
    finally:
        if process.returncode is None:
            process.kill()
            await to_the_end(process.wait())
    return process.returncode, shown, errors


def gpus_each(flags: Sequence[str]) -> int:
    """GPUs one backend needs: TP x PP, and its data-parallel copies when it has several."""
    size = 1
    for flag, short in PARALLEL.items():
        text = last_value(flags, f"--{flag}", f"-{short}")
        if text is None:
            continue
        if not text.isdecimal() or int(text) < 1:
            raise NodeRefusal(400, f"additional_args: --{flag} {text}: expected a number from 1")
        size *= int(text)
    return size


def gpu_slices(gpus: Sequence[str], each: int, count: int | None) -> list[tuple[str, ...]]:
    """One tuple a backend: max(1, GPUs // each) of them unless ``count`` says otherwise.

    A machine without GPUs is one slice, an empty one; ``count`` makes several there as well.
    """
    instances = count if count is not None else max(1, len(gpus) // each)
    if not gpus:
        return [()] * instances
    if instances == 1:
        return [tuple(gpus[:each])]
    if instances * each > len(gpus):
        raise NodeRefusal(
            400,
            f"{instances} backends of {each} GPUs need {instances * each} and there are"
            f" {len(gpus)}; lower backends.count or the parallel sizes",
        )
    return [tuple(gpus[index * each : (index + 1) * each]) for index in range(instances)]
