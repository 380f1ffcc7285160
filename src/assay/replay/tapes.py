"""The tape of a server that does not say it: from what its operator knows."""

from __future__ import annotations

from typing import Final

from assay.claims.claim import Tape
from assay.errors import SettingsError

NAMES: Final = ("v2", "v1", "v1-cpu")

_EXPONENTIAL, _SPLITMIX = 1, 2
_LAST_EXPONENTIAL_ON_CPU: Final = "0.31."


def named_tape(name: str, vllm_version: str | None) -> Tape:
    """The tape called ``name`` in vLLM ``vllm_version`` (``None`` = one of the later).

    ``v2``: runner V2, any device. ``v1``: runner V1 on an accelerator. ``v1-cpu``: runner V1 on a
    CPU, whose noise changed with vLLM 0.32. All without double precision noise. Raises
    SettingsError for another name.
    """
    if name == "v2":
        return Tape(runner="v2")
    if name == "v1":
        return Tape(runner="v1", generation=_EXPONENTIAL, device="cuda")
    if name == "v1-cpu":
        early = vllm_version is not None and vllm_version.startswith(_LAST_EXPONENTIAL_ON_CPU)
        return Tape(runner="v1", generation=_EXPONENTIAL if early else _SPLITMIX, device="cpu")
    raise SettingsError(f"--tape {name}: expected one of {', '.join(NAMES)}")
