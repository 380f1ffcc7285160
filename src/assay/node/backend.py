"""One vLLM server as the rest of the node sees it, and the process behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from assay.node.model_source import ModelSource


class BackendState(StrEnum):
    """``ready`` alone takes requests."""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    """Its process runs, its health check fails; it may come back by itself."""
    HUNG = "hung"
    """It answers health checks and makes no progress with requests waiting; it is restarted."""
    RESTARTING = "restarting"
    """Its process ended or was ended; a new one follows after a pause."""
    FAILED = "failed"
    """Restarted too often, or never became ready; nobody tries again until the next ``up``."""
    STOPPED = "stopped"


@dataclass(eq=False)
class Backend:
    """A port and what runs there now. The supervisor writes; everybody else reads.

    ``generation`` grows by one with every process started on the port: state that a backend holds
    in memory (mining, queued jobs, a round's position) is gone when it differs. ``in_flight``
    counts leases, see :meth:`assay.node.pool.Pool.lease`. ``headers`` carry its own API key, when
    its flags set one; send them with every request to it.
    """

    port: int
    host: str = "127.0.0.1"
    gpus: tuple[str, ...] = ()
    """Its CUDA_VISIBLE_DEVICES; empty on a CPU box."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: BackendState = BackendState.STOPPED
    reason: str = ""
    """Why it is in this state, for people; empty when all is well."""
    generation: int = 0
    in_flight: int = 0
    restarts: int = 0
    model: str | None = None
    """Name it serves the model under, known once it is ready."""
    pid: int | None = None
    source: ModelSource | None = field(default=None, repr=False)
    """The model files it is started with; None where the node did not start it."""
    since: float = 0.0
    """Monotonic seconds at which ``state`` was entered."""
    leases: int = field(default=0, repr=False)
    """Leases ever given; breaks ties between equally busy backends."""

    @property
    def base_url(self) -> str:
        """``http://host:port`` without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def healthy(self) -> bool:
        return self.state is BackendState.READY


@dataclass(frozen=True)
class Launch:
    """What to start on one port. ``environment`` is whole: nothing else is inherited.

    ``secrets`` are texts its output may hold and nobody is to be shown.
    """

    port: int
    command: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


class BackendProcess(Protocol):
    """A running server with everything it started."""

    @property
    def pid(self) -> int | None:
        """Process id of the server, while it runs."""
        ...

    async def server_ended(self) -> None:
        """Return when the server is gone; children of it may still be ending."""
        ...

    async def wait(self) -> str:
        """Return when the server and all its children are gone, with how it ended, in words."""
        ...

    async def stop(self) -> None:
        """SIGINT, then SIGKILL after the grace; returns when all are gone. Idempotent."""
        ...

    async def kill(self) -> None:
        """SIGKILL now: a hung server does not answer to SIGINT."""
        ...

    def log_tail(self, lines: int = 20) -> str:
        """The end of what it printed."""
        ...


class Launcher(Protocol):
    """Starts processes. The real one is :class:`assay.node.process.GuardedLauncher`."""

    async def start(self, launch: Launch) -> BackendProcess:
        """Raises BackendFailureError when not even a process could be made. Is not cancelled."""
        ...
