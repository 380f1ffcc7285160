"""``assay node receive``: a receiver of proof-of-compute callbacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from assay.errors import SettingsError

NEEDED = ("fastapi", "uvicorn")


def receive(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8090,
    store: Annotated[
        str,
        typer.Option(
            help="SQLite file, or a database URL such as postgresql+psycopg://host/name (with"
            " its password in PGPASSFILE)."
        ),
    ] = "received.sqlite3",
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key senders must know. Default: ASSAY_RECEIVE_KEY."),
    ] = None,
    refuse_porous: Annotated[
        bool,
        typer.Option(
            "--refuse-porous",
            help="Refuse vectors that leave max|nonce| / count at 100 or more, not just report it.",
        ),
    ] = False,
) -> None:
    """Receive proof-of-compute callbacks, check them and keep them: for tests and small networks.

    Give senders http://HOST:PORT (any path under it works) as the callback address. GET /summary
    says what came. An address that other machines can reach needs a key, which senders give as a
    bearer token or in their address: http://HOST:PORT/key/KEY. SIGINT or SIGTERM ends it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"assay node receive needs {' and '.join(missing)}; they come with vLLM, or with"
            " pip install vllm-assay[node]"
        )
    from assay.node.receive_run import receiver_config, run_receiver

    run_receiver(
        receiver_config(
            host=host, port=port, store=store, key_file=key_file, refuse_porous=refuse_porous
        )
    )
