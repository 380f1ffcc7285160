"""Settings of the node, field by field. :mod:`assay.node.config_file` reads and prints them.

Nothing here decides a verdict or a vector.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

MIB = 1024 * 1024
Port = Annotated[int, Field(ge=1, le=65_535)]


class Section(BaseModel):
    """A table of the file. A name that is not known is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Keys(Section):
    """Secrets. Give them by ASSAY_NODE_CONTROL_KEY and ASSAY_NODE_INFERENCE_KEY, or by files."""

    control: SecretStr | None = Field(
        None, description="Bearer token of everything under /api/v1, /metrics and the page."
    )
    control_file: Path | None = Field(None, description="File that holds it, on its first line.")
    inference: SecretStr | None = Field(
        None, description="Bearer token of everything under /v1. The control key opens it too."
    )
    inference_file: Path | None = Field(None, description="File that holds it.")

    @field_validator("control", "inference")
    @classmethod
    def _usable(cls, key: SecretStr | None) -> SecretStr | None:
        text = "x" if key is None else key.get_secret_value()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be printable ASCII without spaces, and not empty")
        return key


class Backends(Section):
    """The vLLM servers the node starts, one a GPU slice."""

    host: str = Field("127.0.0.1", description="Address they listen on; keep it on the loopback.")
    first_port: Port = Field(5001, description="Port of the first; the others follow.")
    count: PositiveInt | None = Field(
        None, description="How many. Default: max(1, GPUs // (TP * PP)) of the model's flags."
    )
    gpus: tuple[str, ...] | None = Field(
        None, description="GPU indices or UUIDs to use. Default: CUDA_VISIBLE_DEVICES, else all."
    )
    command: tuple[str, ...] | None = Field(
        None,
        description="What starts one; the model and its flags follow. Default: assay serve. Another"
        " one must know --dry-run as assay serve does.",
    )
    environment: dict[str, SecretStr] = Field(
        {}, description="Variables for every backend, such as POC_POLICY or HF_TOKEN."
    )
    log_folder: Path = Field(
        Path("~/.local/state/vllm-assay/logs"), description="One file a port: backend-<port>.log."
    )
    log_bytes: PositiveInt = Field(
        64 * MIB, description="A log longer than this is kept as .1 and begun anew at a start."
    )
    stagger_s: NonNegativeFloat = Field(5.0, description="Seconds between two first starts.")
    cold_start_s: PositiveFloat = Field(
        2700.0, description="Seconds until ready; large models have taken over 22 minutes."
    )
    start_attempts: PositiveInt = Field(
        2, description="Starts of a new deployment before a backend counts as failed."
    )
    check_every_s: PositiveFloat = Field(2.0, description="Seconds between two health checks.")
    check_timeout_s: PositiveFloat = Field(5.0, description="Seconds a health check may take.")
    failures: PositiveInt = Field(3, description="Failed checks in a row that make it unhealthy.")
    unhealthy_restart_s: PositiveFloat = Field(
        120.0, description="Seconds unhealthy after which it is restarted."
    )
    hung_s: PositiveFloat = Field(
        120.0, description="Seconds without a token, with requests waiting, that make it hung."
    )
    stop_grace_s: NonNegativeFloat = Field(
        20.0, description="Seconds between SIGINT and SIGKILL when a backend is stopped."
    )
    restart_backoff_s: PositiveFloat = Field(2.0, description="Wait before the first restart.")
    restart_backoff_max_s: PositiveFloat = Field(120.0, description="The wait doubles up to this.")
    restart_limit: NonNegativeInt = Field(
        5, description="Restarts within the window below; one more and the backend has failed."
    )
    restart_window_s: PositiveFloat = Field(1800.0, description="Older restarts are forgotten.")


class Limits(Section):
    """What a request may ask for, and how long the end may take."""

    control_body_bytes: PositiveInt = Field(MIB, description="Body of a control request.")
    inference_body_bytes: PositiveInt = Field(
        64 * MIB, description="Body of a request under /v1; images are sent as base64."
    )
    pow_body_bytes: PositiveInt = Field(
        16 * MIB, description="Body of a proof-of-compute request; 100,000 artifacts are 7 MB."
    )
    verify_body_bytes: PositiveInt = Field(64 * MIB, description="Body of a verify request.")
    inference_concurrency: PositiveInt = Field(
        2048, description="Requests under /v1 in flight at once; one more is answered 429."
    )
    verify_concurrency: PositiveInt = Field(8, description="Replays in flight at once.")
    verify_claims: PositiveInt = Field(1024, description="Claims in one verify request.")
    connect_timeout_s: PositiveFloat = Field(5.0, description="Seconds to connect to a backend.")
    graceful_s: NonNegativeFloat = Field(
        30.0, description="Seconds running streams may take to finish when the node stops."
    )


class Proxy(Section):
    """How inference is passed on."""

    port: int = Field(
        5000,
        ge=0,
        le=65_535,
        description="Second port for /v1 alone, open while a backend is healthy. 0: none.",
    )
    bare_token_ids: bool = Field(
        False,
        description="Token strings of logprobs as bare decimals ('123', not 'token_id:123'), as"
        " one network's client expects them.",
    )


class StoreSection(Section):
    """Where claims, verdicts and artifacts awaiting delivery are kept."""

    url: SecretStr | None = Field(
        None, description="Database URL, such as postgresql+psycopg://user:password@host/name."
    )
    folder: Path = Field(
        Path("~/.local/state/vllm-assay"),
        description="Without a URL: folder of the SQLite file node-<port>.sqlite3.",
    )


class Callbacks(Section):
    """How proof-of-compute results leave the node."""

    interval_s: PositiveFloat = Field(5.0, description="Seconds artifacts are collected.")
    timeout_s: PositiveFloat = Field(10.0, description="Seconds one request may take.")
    max_concurrent: PositiveInt = Field(10, description="Requests in flight at once.")
    max_artifacts: PositiveInt = Field(
        1_000_000, description="Artifacts that may wait for one receiver; mining stops then."
    )
    allow: tuple[str, ...] = Field(
        (),
        description="Hosts, addresses and networks callbacks may go to, besides the caller and"
        " the loopback; '*' is every host.",
    )


class Models(Section):
    """Model files."""

    cache_dir: Path | None = Field(
        None, description="Hub cache. Default: HF_HUB_CACHE, else huggingface_hub's own."
    )
    offline: bool = Field(False, description="Never ask the hub; model status is IGNORED then.")


class Logs(Section):
    """What the node writes to standard error: one JSON object a line."""

    level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = Field(
        "info", description="debug, info, warning or error."
    )


class NodeConfig(Section):
    """Everything ``assay node`` can be told."""

    host: str = Field("127.0.0.1", description="Address the node listens on.")
    port: Port = Field(8080, description="Its port.")
    report_version: str | None = Field(
        None, description="What /api/v1/state gives as version. Default: the version of assay."
    )
    keys: Keys = Keys()
    backends: Backends = Backends()
    limits: Limits = Limits()
    proxy: Proxy = Proxy()
    store: StoreSection = StoreSection()
    callbacks: Callbacks = Callbacks()
    models: Models = Models()
    logs: Logs = Logs()

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.keys.control is None and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from other machines and there is no control"
                " key; set ASSAY_NODE_CONTROL_KEY or keys.control_file, or listen on 127.0.0.1"
            )
        if self.proxy.port == self.port:
            raise ValueError("proxy.port: the same as port; choose another, or 0 for none")
        return self

    @property
    def store_url(self) -> str:
        """The store's URL, or the path of its SQLite file."""
        if self.store.url is not None:
            return self.store.url.get_secret_value()
        return str(self.store.folder.expanduser() / f"node-{self.port}.sqlite3")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``. A name other than localhost counts as public."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
