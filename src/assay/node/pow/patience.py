"""How long the node waits for backends, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """None of these decides what is mined, only when somebody else is asked."""

    begin: float = 90.0
    """To begin mining: a backend that has just started probes its engine first."""
    rejoin: float = 30.0
    """To begin in a round under way: its classes are mined by nobody meanwhile."""
    stop: float = 40.0
    """To stop: a backend waits up to 30 for what is on its device."""
    change: float = 15.0
    """To change the shares of a run, and to queue a job."""
    tell: float = 5.0
    """To say what it does."""
    silent: float = 30.0
    """Without saying what it does, after which others mine its classes."""
    look: float = 2.0
    """Between two looks at what the backends do."""
    rest: float = 30.0
    """Before a backend that refused or failed to mine is asked again; doubles each time."""
    rest_most: float = 600.0
