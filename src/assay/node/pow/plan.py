"""Who mines which shares: decided here, without a backend or a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.poc.constants import UINT32_RANGE
from assay.store.rounds_tables import Share


@dataclass(frozen=True)
class Move:
    """A class changes hands, from where it has been mined so far."""

    donor: int
    taker: int
    share: Share


def split(
    shares: Sequence[Share], ports: Sequence[int], homes: Mapping[int, int]
) -> dict[int, list[Share]]:
    """A part a port: shares go home where home is one of ``ports``, the rest evenly."""
    parts: dict[int, list[Share]] = {port: [] for port in ports}
    for share in shares:
        if (home := homes.get(share.group_id)) in parts:
            parts[home].append(share)
    strangers = [share for share in shares if homes.get(share.group_id) not in parts]
    for share in strangers:
        port = min(parts, key=lambda port: (len(parts[port]), port))
        parts[port].append(share)
    return parts


def spread(shares: Sequence[Share], counts: Mapping[int, int]) -> dict[int, list[Share]]:
    """Shares for backends that mine already, ``counts`` shares each: to those with the fewest.

    Only ports that get one are in the answer.
    """
    total = dict(counts)
    parts: dict[int, list[Share]] = {}
    for share in shares if total else ():
        port = min(total, key=lambda port: (total[port], port))
        parts.setdefault(port, []).append(share)
        total[port] += 1
    return parts


def moves(
    held: Mapping[int, Sequence[Share]], idle: Sequence[int], homes: Mapping[int, int]
) -> list[Move]:
    """Classes that ``idle`` backends take from busy ones, until none has two more than another.

    ``held``: shares by port. Only endless ones move: of a range not much is left. A class goes to
    where it began, when that is one of the idle.
    """
    have = {port: [s for s in shares if s.stop is None] for port, shares in held.items()}
    get: dict[int, int] = dict.fromkeys(idle, 0)
    found: list[Move] = []
    while get:
        taker = min(get, key=lambda port: (get[port], port))
        donors = [port for port in have if len(have[port]) - get[taker] >= 2]
        if not donors:
            break
        at_home = [
            (port, share)
            for port in donors
            for share in have[port]
            if homes.get(share.group_id) == taker
        ]
        most = max(donors, key=lambda port: (len(have[port]), -port))
        donor, share = at_home[0] if at_home else (most, have[most][-1])
        have[donor].remove(share)
        get[taker] += 1
        found.append(Move(donor, taker, share))
    return found


def is_over(share: Share, node_id: int, node_count: int, n_groups: int) -> bool:
    """Whether a class has no nonce of 32 bits left from where it has been reached."""
    return node_id + (share.group_id + share.reached * n_groups) * node_count >= UINT32_RANGE


def shortage(n_groups: int, mining: int, waiting: Sequence[Share]) -> str | None:
    """Why not every class has a backend of its own, in words; None while each has."""
    groups = sorted({share.group_id for share in waiting})
    if groups:
        return f"no backend mines the classes {groups}"
    if mining < n_groups:
        return f"{n_groups} classes, and backends that mine: {mining}"
    return None


def as_range(share: Share) -> dict[str, Any]:
    """What is left of a share, as backends are told."""
    return {"group_id": share.group_id, "start": share.reached, "stop": share.stop}
