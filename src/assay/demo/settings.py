"""Where the demo keeps what it builds. The only module of this room that reads the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class CacheSettings(BaseSettings):
    """``ASSAY_CACHE_DIR`` wins, then ``XDG_CACHE_HOME/vllm-assay``, then ``~/.cache/vllm-assay``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    assay_cache_dir: Path | None = None
    xdg_cache_home: Path = Field(default_factory=lambda: Path.home() / ".cache")

    @property
    def root(self) -> Path:
        """The folder itself; it may not exist yet."""
        if self.assay_cache_dir is not None:
            return self.assay_cache_dir.expanduser()
        return self.xdg_cache_home.expanduser() / "vllm-assay"
