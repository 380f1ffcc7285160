"""The only place of the engine tests that reads the environment."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineTestSettings(BaseSettings):
    """Each is an environment variable ``ASSAY_TEST_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_TEST_", frozen=True)

    fuzz_bodies: int = Field(default=600, ge=1)
    """Bodies the fuzz sends to the V1 server; a third of it to V2, which is slower. 5000 before a release."""
    fuzz_seed: int = 2
