"""Settings of the proof-of-compute routes. The only module here that reads the environment.

Names and defaults up to ``POC_CALLBACK_QUEUE_SIZE`` are those operators set today; the rest is ours.
None of them changes a vector or a verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from assay.delivery.settings import DeliverySettings
from assay.errors import SettingsError


class PocSettings(BaseSettings):
    """Each field is an environment variable ``POC_<NAME>``."""

    model_config = SettingsConfigDict(
        env_prefix="POC_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    batch_size_default: PositiveInt | Literal["auto"] = 32
    """Nonces a forward where the client names no ``batch_size``; lowered to what the engine's token
    budget holds. ``auto``: as many as the budget holds (F56)."""
    rpc_timeout_ms: PositiveInt = 60_000
    """A batch on the device for longer makes the server "busy": chat is told so with 503 until it
    ends, whatever the policy. It is never sent again: a worker step cannot be called off."""
    generate_chunk_timeout_sec: float = Field(default=60, gt=0)
    """A chunk of ``/generate`` that takes longer fails its job."""
    generate_result_ttl_sec: float = Field(default=300, gt=0)
    max_queued_nonces: PositiveInt = 100_000
    callback_interval_sec: float = Field(default=5, gt=0)
    """Seconds mined vectors are collected before they are sent."""
    callback_max_artifacts: PositiveInt = 1_000_000
    """Vectors that may wait for one receiver; mining stops with an error then, none is dropped."""
    callback_max_retries: PositiveInt = 10
    """Failures in a row after which a receiver counts as down. It is still tried, every 30 s."""
    callback_max_concurrent: PositiveInt = 10
    """Callback requests in flight over all receivers."""
    callback_queue_size: PositiveInt = 10_000
    """Validation results that may wait for their receivers; ``/generate`` answers 429 then."""

    policy: Literal["exclusive", "share"] = "exclusive"
    """``exclusive``: mining aborts chat and refuses it. ``share``: both run."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Part of the device's time PoC takes while chat is running (``share``, and ``/generate`` always)."""
    callback_allow: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts, addresses and networks callbacks may go to, besides the caller and the loopback; ``*``
    is every host."""
    store: str | None = None
    """SQLite file or database URL that keeps what waits for a receiver."""
    store_folder: Path = Path("~/.local/state/vllm-assay")
    """Where that file lies when ``store`` is not set: ``poc-<port>.sqlite3``."""
    pinned_seq_len: PositiveInt | None = None
    """The deployment's seq_len; requests with another one are refused with 409."""
    pinned_k_dim: PositiveInt | None = None
    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    """100,000 artifacts are 7 MB."""

    @field_validator("callback_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def overdue_after(self) -> float:
        """Seconds after which a batch makes the server busy."""
        return self.rpc_timeout_ms / 1000

    @property
    def delivery(self) -> DeliverySettings:
        return DeliverySettings(
            interval_s=self.callback_interval_sec,
            max_concurrent=self.callback_max_concurrent,
            max_artifacts=self.callback_max_artifacts,
            max_failures=self.callback_max_retries,
        )

    def store_at(self, port: int) -> str:
        """Where this server's outbox lies. One server, one outbox."""
        if self.store is not None:
            return self.store
        return str(self.store_folder.expanduser() / f"poc-{port}.sqlite3")


def poc_settings() -> PocSettings:
    """The settings of this process; raises SettingsError naming the variable that is wrong (F48)."""
    try:
        return PocSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "POC_" + str(first["loc"][0]).upper()
        raise SettingsError(f"{name}: {first['msg']}, got {first['input']!r}") from error
