"""``assay serve``: stock ``vllm serve`` with the plugin switched on and presets for the model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import stderr
from assay.cli.machine import hardware, plugin_names, server_command
from assay.cli.presets import (
    Chosen,
    Hardware,
    choose,
    environment_for,
    family_of,
    flag_value,
    given_flags,
)
from assay.errors import SettingsError
from assay.settings import process_environment

WORKER_EXTENSION = "assay.plugin.worker.AssayWorker"
PASS_THROUGH: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": True,
}


@dataclass(frozen=True)
class Launch:
    """What will be started: flags of ``vllm serve MODEL``, the changed ``environment``, and why."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    family: str
    hardware: Hardware
    chosen: Chosen
    warnings: tuple[str, ...]


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or hub id.")],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the command and its environment, start nothing."),
    ] = False,
    presets: Annotated[
        bool, typer.Option("--presets/--no-presets", help="Use the presets of the model's family.")
    ] = True,
) -> None:
    """Start stock vLLM with the assay plugin. Every flag of `vllm serve` may follow MODEL.

    Presets are printed before the start and each gives way to your own flag. VLLM_PLUGINS keeps
    the names it has. VLLM_MQ_MAX_CHUNKS sets the number of chunks of vLLM's shared-memory rings
    (unset: vLLM's own sizes; 64 for large MoE models under load, with a larger /dev/shm).
    """
    environment = process_environment()
    launch = plan(model, list(context.args), environment, hardware(), use_presets=presets)
    _explain(launch)
    if dry_run:
        changed = [f"{name}={shlex.quote(value)}" for name, value in launch.environment.items()]
        shown = server_command(model) or ["vllm", "serve", model]
        typer.echo(" ".join([*changed, shlex.join([*shown, *launch.arguments])]))
        return
    command = server_command(model)
    if command is None:
        raise SettingsError(
            "no vLLM is installed for this Python; install vllm-assay[gpu] or vllm-assay[cpu]"
        )
    command += launch.arguments
    # The process is replaced, so signals of a supervisor reach vLLM itself.
    os.execvpe(command[0], command, {**environment, **launch.environment})


def plan(
    model: str,
    arguments: list[str],
    environment: Mapping[str, str],
    machine: Hardware,
    *,
    use_presets: bool = True,
) -> Launch:
    """The command line and the environment, from what the caller wrote. Starts nothing."""
    if model.startswith("-"):
        raise SettingsError(f"MODEL must come first, before {model}: assay serve MODEL [flags]")
    given = given_flags(arguments) | _config_file_flags(flag_value(arguments, "config"))
    extension = flag_value(arguments, "worker-extension-cls")
    if extension not in (None, WORKER_EXTENSION):
        raise SettingsError(
            f"--worker-extension-cls {extension}: vLLM takes one worker extension and assay needs"
            f" it for {WORKER_EXTENSION}; make yours a subclass of it, or start `vllm serve`"
            " without assay"
        )
    if "worker-extension-cls" in given and extension is None:
        raise SettingsError(
            "the file given with --config sets worker-extension-cls; assay needs it for"
            f" {WORKER_EXTENSION}, take it out of the file"
        )
    family = family_of(model)
    chosen = choose(family, machine, given) if use_presets else Chosen((), ())
    flags = [part for preset in chosen.applied for part in preset.arguments]
    if extension is None:
        flags += ["--worker-extension-cls", WORKER_EXTENSION]
    return Launch(
        # Presets stand before the caller's flags: where argparse sees a flag twice in a spelling
        # we do not know, such as an abbreviation, the last one wins.
        arguments=(*flags, *arguments),
        environment={
            "VLLM_PLUGINS": plugin_names(environment.get("VLLM_PLUGINS")),
            **(environment_for(machine, environment) if use_presets else {}),
        },
        family=family.name,
        hardware=machine,
        chosen=chosen,
        warnings=_warnings(given),
    )


def _config_file_flags(path: str | None) -> set[str]:
    """Flags set in a ``--config`` YAML file. vLLM, which reads it, brings the YAML reader."""
    if path is None:
        return set()
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]

        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except ImportError as error:
        raise SettingsError("--config needs PyYAML, which vLLM installs") from error
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"--config {path}: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"--config {path}: expected a mapping of flags to values")
    return given_flags([f"--{name}" for name in content])


def _warnings(given: set[str]) -> tuple[str, ...]:
    if "speculative-config" in given:
        return (
            "speculative decoding is on: this server answers users, but refuses replays, because"
            " log probabilities could be the draft model's",
        )
    return ()


def _explain(launch: Launch) -> None:
    console = stderr()
    console.print(
        f"presets for {launch.family} models on {launch.hardware}"
        " (each gives way to your own flag):",
        markup=False,
    )
    for preset in launch.chosen.applied:
        console.print(f"  --{preset.flag} {preset.value}   {preset.why}", markup=False)
    for preset in launch.chosen.overridden:
        console.print(f"  --{preset.flag}: yours is used, not {preset.value}", markup=False)
    for name, value in launch.environment.items():
        console.print(f"  {name}={value}", markup=False)
    for warning in launch.warnings:
        console.print(f"warning: {warning}", markup=False)
