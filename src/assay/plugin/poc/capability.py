"""What this engine can do for PoC, found out by doing it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import PocEngine
from assay.plugin.poc.failures import AsleepError, EngineFaultError
from assay.poc.artifact_file import Challenge
from assay.poc.constants import K_DIM

logger = logging.getLogger("vllm.assay")

PROBE_SEQ_LEN = 16
"""Tokens of the probe's one sequence: a full block or more of most caches, and no time at all."""


@dataclass(frozen=True)
class Able:
    """``profile`` is what every result carries."""

    profile: Mapping[str, Any]


class Capability:
    """Whether PoC works here, and the engine's profile.

    The probe runs a real forward of one nonce beside whatever the engine is serving. One that
    worked is remembered; one that failed is tried again at the next question, since an engine
    that was asleep, or a device that was full, may be well by then.
    """

    def __init__(self, engine: PocEngine, device: Device) -> None:
        self._engine = engine
        self._device = device
        self._able: Able | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> Able:
        """Raises EngineFaultError or AsleepError with the reason when PoC does not work here."""
        async with self._lock:
            if self._able is None:
                self._able = await self._probe()
                logger.info("poc: ready, profile %s", dict(self._able.profile))
            return self._able

    async def serves_while_validating(self, patience: float) -> bool:
        """The probe's answer; False when it is not there within ``patience`` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self.get()
        except (EngineFaultError, AsleepError, TimeoutError) as error:
            logger.warning("poc: not available: %s", error or "the engine did not answer in time")
            return False
        return True

    async def _probe(self) -> Able:
        if self._engine.errored:
            raise EngineFaultError("the engine is not running")
        profile = await self._engine.profile()
        challenge = Challenge(
            block_hash="assay-probe",
            public_key="assay-probe",
            k=min(K_DIM, int(profile.get("hidden_size", K_DIM))),
            seq_len=min(
                PROBE_SEQ_LEN,
                int(profile["token_budget"]),
                int(profile.get("max_model_len", PROBE_SEQ_LEN)),
            ),
        )
        vectors = await self._device.forward(challenge, [0])
        if not all(vectors.finite):
            raise EngineFaultError("a PoC forward gave NaN; look at the model's dtype")
        return Able(profile)
