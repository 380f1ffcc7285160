"""Running a receiver: its settings from the command line, its port, its end."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from assay.errors import SettingsError
from assay.node.logs import JsonLines
from assay.node.receive import ReceiverConfig, create_receiver
from assay.node.run import BACKLOG, KEEP_ALIVE_S, listen
from assay.settings import process_environment
from assay.store.received import ReceivedStore

KEY_VARIABLE = "ASSAY_RECEIVE_KEY"


def receiver_config(
    *, host: str, port: int, store: str, key_file: Path | None, refuse_porous: bool
) -> ReceiverConfig:
    """The settings; SettingsError that names the field and never shows a key."""
    key = process_environment().get(KEY_VARIABLE) or None
    if key_file is not None:
        try:
            lines = key_file.expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--key-file {key_file}: {error}") from error
        key = lines[0].strip() if lines else ""
    try:
        return ReceiverConfig.model_validate(
            {
                "host": host,
                "port": port,
                "store": store if "://" in store else str(Path(store).expanduser()),
                "key": key,
                "refuse_porous": refuse_porous,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = "".join(f"{part}: " for part in first["loc"])
        raise SettingsError(f"{field}{first['msg'].removeprefix('Value error, ')}") from error


def run_receiver(config: ReceiverConfig) -> None:
    """Run until SIGINT or SIGTERM. Raises SettingsError or StoreError when it cannot start."""
    secrets = [config.store.get_secret_value()] if "@" in config.store.get_secret_value() else []
    if config.key is not None:
        secrets.append(config.key.get_secret_value())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    where = config.store.get_secret_value()
    if "://" not in where:
        try:
            Path(where).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--store {where}: {error}") from error
    ReceivedStore(where).close()  # here its error ends the command with one line
    server = uvicorn.Server(
        uvicorn.Config(
            create_receiver(config),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
    with contextlib.closing(listen(config.host, config.port)) as listener:
        logging.getLogger("assay.receive").info(
            "receiver listens on %s port %d", config.host, config.port
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after its end
            server.run(sockets=[listener])
