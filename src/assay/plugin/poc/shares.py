"""Which nonces a run mines next: ranges of residue classes, the one furthest behind first.

A coordinator above several servers moves ranges between them. So a position is told exactly: it
is moved when a nonce is taken for the device, and never back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from assay.plugin.poc.failures import RefusedError
from assay.poc.bodies import MAX_SHARES, Identity, ShareRange
from assay.poc.nonces import residue_class


@dataclass
class _Held:
    """``position``: the first of the share not yet taken. ``nonces``: those of its whole class."""

    group_id: int
    start: int
    stop: int | None
    nonces: range
    position: int

    @property
    def end(self) -> int:
        """The first position not to be taken: the class ends where nonces have 32 bits."""
        size = len(self.nonces)
        return size if self.stop is None else min(self.stop, size)

    @property
    def order(self) -> tuple[int, int, int]:
        """Ranges of one class do not overlap, so no two are equal."""
        return self.position, self.group_id, self.start


@dataclass(frozen=True)
class Released:
    """``position``: the first of an endless share that was not taken, and never will be."""

    group_id: int
    position: int


class Shares:
    """``identity``: whose nonces. ``field``: what ``shares`` are called in a refusal.

    Raises RefusedError 400 for ranges that are not of the node's classes, or that overlap. Not for
    several threads: every method is one step of the event loop.
    """

    def __init__(
        self, identity: Identity, shares: Iterable[ShareRange], field: str = "shares"
    ) -> None:
        self._identity = identity
        self._held = self._joined([], shares, field)
        self._first = self._held[0]
        self._forget_finished()

    @property
    def exhausted(self) -> bool:
        """Whether :meth:`take` has nothing to give."""
        return all(held.position >= held.end for held in self._held)

    @property
    def first_position(self) -> int:
        """Where the share given first stands, or stood when it was released."""
        return self._first.position

    def take(self, count: int) -> list[int]:
        """The next ``count`` nonces, fewer when there are no more.

        Each is that of the smallest position; of equal ones that of the smallest class, then of the
        share that begins first.
        """
        heap = [(held.order, held) for held in self._held if held.position < held.end]
        heapq.heapify(heap)
        nonces: list[int] = []
        while heap and len(nonces) < count:
            _, held = heap[0]
            nonces.append(held.nonces[held.position])
            held.position += 1
            if held.position < held.end:
                heapq.heapreplace(heap, (held.order, held))
            else:
                heapq.heappop(heap)
        self._forget_finished()
        return nonces

    def change(self, release: Sequence[int], add: Iterable[ShareRange]) -> list[Released]:
        """Let go of endless shares, then take on others: all of it or, when it raises, nothing.

        RefusedError 409 for a class that is not held without an end, 400 for what is wrong by itself.
        """
        kept, released = list(self._held), []
        for index, group_id in enumerate(release):
            if group_id in release[:index]:
                raise RefusedError(400, f"release[{index}]: class {group_id} is named twice")
            endless = [held for held in kept if held.group_id == group_id and held.stop is None]
            if not endless:
                raise RefusedError(
                    409, f"release[{index}]: class {group_id} is not mined here without an end"
                )
            kept.remove(endless[0])
            released.append(Released(group_id, endless[0].position))
        self._held = self._joined(kept, add, "add")
        self._forget_finished()
        return released

    def shown(self) -> list[dict[str, Any]]:
        """What is held, by class and position, as ``{group_id, position, stop}``."""
        return [
            {"group_id": held.group_id, "position": held.position, "stop": held.stop}
            for held in sorted(self._held, key=lambda held: (held.group_id, held.start))
        ]

    def _joined(
        self, held: Sequence[_Held], added: Iterable[ShareRange], field: str
    ) -> list[_Held]:
        """``held`` and ``added``, after every check; neither is changed."""
        names = dict.fromkeys(range(len(held)), "one that is held")
        joined = list(held)
        for index, share in enumerate(added):
            names[len(joined)] = f"{field}[{index}]"
            joined.append(self._new(share, f"{field}[{index}]"))
        if len(joined) > MAX_SHARES:
            raise RefusedError(400, f"{field}: a run may hold {MAX_SHARES} shares at most")
        order = sorted(range(len(joined)), key=lambda i: (joined[i].group_id, joined[i].start))
        for before, after in pairwise(order):
            earlier, later = joined[before], joined[after]
            if earlier.group_id != later.group_id:
                continue
            if earlier.stop is None or later.start < earlier.stop:
                blamed, other = max(before, after), min(before, after)
                raise RefusedError(
                    400,
                    f"{names[blamed]}: overlaps {names[other]} in class {later.group_id} at "
                    f"position {later.start}",
                )
        return joined

    def _new(self, share: ShareRange, name: str) -> _Held:
        identity = self._identity
        if share.group_id >= identity.n_groups:
            raise RefusedError(
                400,
                f"{name}.group_id: {share.group_id} given for n_groups {identity.n_groups}; ids "
                "start at 0",
            )
        nonces = residue_class(
            identity.node_id, identity.node_count, share.group_id, identity.n_groups
        )
        return _Held(share.group_id, share.start, share.stop, nonces, share.start)

    def _forget_finished(self) -> None:
        """An endless share stays to its release, also when the class has no more nonces."""
        self._held = [held for held in self._held if held.stop is None or held.position < held.end]
