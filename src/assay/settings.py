"""The only place of the validator side that reads the environment.

Nothing here decides a verdict: thresholds and tolerances are constants of ``assay.scoring``. An
environment variable may say where things are and how long to wait, not what is true.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from assay.errors import SettingsError


class ClientSettings(BaseSettings):
    """How the validator reaches an engine. Each is an environment variable ``ASSAY_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_", frozen=True, extra="ignore")

    api_key: SecretStr | None = None
    """Sent as ``Authorization: Bearer``; the same key ``vllm serve --api-key`` was given."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds one replay or recording may take, queueing in the engine included."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    retries: int = Field(default=3, ge=0, le=10)
    """How often a request that failed for want of a server is sent again."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Requests in flight at once."""


def client_settings() -> ClientSettings:
    """The settings of this process; raises SettingsError naming the variable that is wrong."""
    try:
        return ClientSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "ASSAY_" + ".".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name}: {first['msg']}") from error


def process_environment() -> Mapping[str, str]:
    """The environment as it is, for commands that start an engine or look at what it would get."""
    return dict(os.environ)
