"""Memory, open files and processes of a node while it works: sampled, and judged for growth."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.node.load.ledger import Ledger

from assay.node.guard import descendants

SAMPLE_EVERY = 2.0
WARM_UP = 0.25
"""Part of the run before growth counts: caches, pools and the allocator's arenas fill up first."""
JUDGED_FROM_S = 240.0
"""Seconds of samples after the warm-up below which a slope says nothing."""
MEMORY_GROWTH = 0.10
"""Of the mean, by the fitted line from the end of the warm-up to the end of the run."""
FILES_GROWTH = 8.0
"""Open files, by the same line: about the clients' own number, so that one more or less connected
at the ends is no growth, while one file lost in a hundred requests is."""
FILES_AT_REST = 16
"""Open files more than before the load that may be there once it is over (idle connections)."""
SHARED = re.compile(r"/dev/shm/[^\s]+(?! \(deleted\))$", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """``at``: monotonic seconds; ``memory``: resident bytes of the node's process."""

    at: float
    memory: float
    files: float


@dataclass
class Watch:
    """``node``: pid. ``ever``: start time by pid of everything seen below it. ``shared``: files of
    /dev/shm, with the pids that had them."""

    node: int
    ledger: Ledger
    samples: list[Sample] = field(default_factory=list)
    ever: dict[int, str] = field(default_factory=dict)
    shared: dict[str, set[int]] = field(default_factory=dict)
    at_rest: int = 0

    def begin(self) -> None:
        self.at_rest = open_files(self.node)
        self.look()

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self.sample()
            await asyncio.to_thread(self.look)
            await asyncio.sleep(SAMPLE_EVERY)

    def sample(self) -> None:
        self.samples.append(Sample(self.ledger.clock(), resident(self.node), open_files(self.node)))

    def look(self) -> None:
        """Note the processes below the node and the shared memory they have."""
        for pid in descendants(self.node):
            began = start_time(pid)
            if began is not None:
                self.ever[pid] = began
            for name in shared_memory(pid):
                self.shared.setdefault(name, set()).add(pid)

    def judge_growth(self) -> str:
        """Violations for a slope; what was measured, in words."""
        if not self.samples:
            return "no samples"
        first, last = self.samples[0].at, self.samples[-1].at
        warm = [s for s in self.samples if s.at >= first + WARM_UP * (last - first)]
        span = last - warm[0].at
        memory = growth([s.at for s in warm], [s.memory for s in warm])
        files = growth([s.at for s in warm], [s.files for s in warm])
        mean = float(np.mean([s.memory for s in warm]))
        words = (
            f"over the last {span:.0f} s: memory {mean / 2**20:.1f} MiB {memory / 2**20:+.2f} MiB,"
            f" open files {np.mean([s.files for s in warm]):.1f} {files:+.1f}"
        )
        if span < JUDGED_FROM_S:
            return f"{words} (too short to judge a slope)"
        if memory > MEMORY_GROWTH * mean:
            self.ledger.violation(f"the node's memory grows: {words}")
        if files > FILES_GROWTH:
            self.ledger.violation(f"the node's open files grow: {words}")
        return words

    def files_now(self) -> tuple[int, bool]:
        """Open files, and whether they are near what they were before the load."""
        now = open_files(self.node)
        return now, now <= self.at_rest + FILES_AT_REST

    def judge_processes(self) -> None:
        """No process of the node's outlived its parent, none is a zombie, no shared memory is left."""
        tree = {self.node, *descendants(self.node)}
        for pid, began in self.ever.items():
            if pid not in tree and start_time(pid) == began:
                self.ledger.violation(
                    f"process {pid} runs on, but not under the node: {name_of(pid)}"
                )
        for pid in zombies(tree):
            self.ledger.violation(f"process {pid} below the node is a zombie: {name_of(pid)}")
        for name, owners in self.shared.items():
            gone = not any(start_time(pid) == self.ever.get(pid, "") for pid in owners)
            if gone and Path(name).exists():
                self.ledger.violation(f"{name} is left of processes that are gone")


def growth(at: Sequence[float], values: Sequence[float]) -> float:
    """Rise of the least-squares line from the first to the last of ``at``."""
    if len(at) < 3:
        return 0.0
    slope = float(np.polyfit(np.asarray(at) - at[0], np.asarray(values), 1)[0])
    return slope * (at[-1] - at[0])


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names alone, without a stat each


def shared_memory(pid: int) -> set[str]:
    """Named files of /dev/shm that a process has mapped."""
    try:
        return set(SHARED.findall(Path(f"/proc/{pid}/maps").read_text()))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()


def start_time(pid: int) -> str | None:
    """Of a process that runs; None for one that does not. Tells a pid from its next owner."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def zombies(parents: set[int]) -> list[int]:
    """Processes that ended and that none of ``parents`` has waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdecimal() else None
        if fields is not None and fields[0] == "Z" and int(fields[1]) in parents:
            found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields after the name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
