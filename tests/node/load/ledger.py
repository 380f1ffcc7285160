"""What a load saw: counts, what must never happen, and which failures a kill or the gate excuses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf


@dataclass
class Window:
    """Monotonic seconds; open until ``end`` is known."""

    begin: float
    end: float = inf

    def meets(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end


@dataclass
class Ledger:
    """One for a run; every client writes into it.

    ``hits``: from a kill until the node was seen to know of it. A request that overlaps one may have
    been on the killed process, whose end breaks it. ``outages``: by port, from a kill until the
    backend is ready again; while every backend has one, the node has nobody to ask. ``gates``:
    rounds of proof of compute under the exclusive policy, from before the call that begins one to
    after the call that ended it.
    """

    clock: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    hits: list[Window] = field(default_factory=list)
    outages: dict[int, list[Window]] = field(default_factory=dict)
    gates: list[Window] = field(default_factory=list)
    longest: float = 0.0
    """Seconds of the longest request."""
    noise: float = 0.0
    """Largest difference of a log probability from its known value, in nats."""

    def note(self, what: str, count: int = 1) -> None:
        self.counts[what] += count

    def violation(self, words: str) -> None:
        self.counts["violations"] += 1
        self.violations.append(words)

    def took(self, begin: float) -> None:
        self.longest = max(self.longest, self.clock() - begin)

    def killed(self, begin: float) -> bool:
        """Whether a request since ``begin`` may have been on a process that was killed."""
        return any(hit.meets(begin, self.clock()) for hit in self.hits)

    def outage(self, begin: float) -> bool:
        """Whether some backend was down at some time since ``begin``."""
        now = self.clock()
        return any(w.meets(begin, now) for windows in self.outages.values() for w in windows)

    def gated(self, begin: float) -> bool:
        return any(gate.meets(begin, self.clock()) for gate in self.gates)

    def nobody(self, begin: float) -> bool:
        """Whether there was a moment since ``begin`` without any backend."""
        now = self.clock()
        moments = [begin, *(w.begin for ws in self.outages.values() for w in ws if w.begin > begin)]
        return bool(self.outages) and any(
            all(any(w.meets(at, at) for w in windows) for windows in self.outages.values())
            for at in moments
            if at <= now
        )

    def refused(self, what: str, begin: float, status: int, text: str) -> None:
        """Judge an answer that is no success: excused by a kill, an outage or the gate, or wrong."""
        if status == 502 and self.killed(begin):
            self.note(f"{what}: 502 by a kill")
        elif status == 503 and self.nobody(begin):
            self.note(f"{what}: 503 without a backend")
        elif status == 503 and self.gated(begin):
            self.note(f"{what}: 503 by the gate")
        else:
            self.violation(
                f"{what}: answer {status} that nothing excuses, {self._when(begin)}: {text[:300]}"
            )

    def broken(self, what: str, begin: float, error: str) -> None:
        """Judge a connection that ended before its answer did."""
        if self.killed(begin):
            self.note(f"{what}: broken by a kill")
        else:
            self.violation(
                f"{what}: broken although no backend was killed, {self._when(begin)}: {error}"
            )

    def _when(self, begin: float) -> str:
        now = self.clock()
        words = [f"begun {now - begin:.2f} s ago"]
        if self.hits:
            hit = self.hits[-1]
            words.append(f"last kill {now - hit.begin:.2f} s ago, seen {now - hit.end:.2f} s ago")
        words += [
            f"backend {port} ready since {now - windows[-1].end:.2f} s"
            for port, windows in self.outages.items()
            if windows
        ]
        return ", ".join(words)

    def stuck(self, what: str, begin: float) -> None:
        self.violation(f"{what}: no end after {self.clock() - begin:.0f} s")
