"""``assay node``: the process an operator leaves running beside the GPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.errors import SettingsError

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NEEDED = ("fastapi", "uvicorn")


@app.callback()
def node(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file; --print-config shows every name.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    proxy_port: Annotated[
        int | None, typer.Option(help="Second port for /v1 alone (5000); 0 for none.")
    ] = None,
    control_key_file: Annotated[
        Path | None, typer.Option(help="File with the key of /api/v1, /metrics and the page.")
    ] = None,
    inference_key_file: Annotated[
        Path | None, typer.Option(help="File with the key of /v1.")
    ] = None,
    backends: Annotated[
        int | None, typer.Option(help="vLLM servers to start. Default: GPUs // (TP * PP).")
    ] = None,
    backend_port: Annotated[
        int | None, typer.Option(help="Port of the first of them (5001).")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPU indices or UUIDs, such as 0,1. Default: all.")
    ] = None,
    cold_start: Annotated[
        float | None, typer.Option(help="Seconds a start may take until ready (2700).")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Database URL without a password; one with it belongs in the file."),
    ] = None,
    bare_token_ids: Annotated[
        bool | None,
        typer.Option(
            "--bare-token-ids/--no-bare-token-ids",
            help="Token strings of logprobs as bare decimals, for one network's client.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting as TOML, start nothing.")
    ] = False,
) -> None:
    """Run a GPU box: start vLLM servers, watch them, pass inference on, drive proof of compute.

    Keys come from ASSAY_NODE_CONTROL_KEY and ASSAY_NODE_INFERENCE_KEY or from files, never from
    the command line, where everybody on the machine could read them. An address that other
    machines can reach needs a control key. SIGINT or SIGTERM ends it with all it started.
    """
    if context.invoked_subcommand is not None:
        return
    from assay.node.config_file import as_toml, node_config

    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "proxy.port": proxy_port,
        "keys.control_file": control_key_file,
        "keys.inference_file": inference_key_file,
        "backends.count": backends,
        "backends.first_port": backend_port,
        "backends.gpus": None if gpus is None else [part for part in gpus.split(",") if part],
        "backends.cold_start_s": cold_start,
        "store.url": store,
        "proxy.bare_token_ids": bare_token_ids,
    }
    settings = node_config(config, flags)
    if print_config:
        typer.echo(as_toml(settings), nl=False)
        return
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"assay node needs {' and '.join(missing)}; they come with vLLM, or with"
            " pip install vllm-assay[node]"
        )
    from assay.node.run import run_node

    run_node(settings)
