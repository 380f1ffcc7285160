"""Which nonces belong to which node and group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Integral

from assay.errors import SettingsError
from assay.poc.constants import UINT32_RANGE


def partition(
    node_id: int, node_count: int, group_id: int = 0, n_groups: int = 1, start: int = 0
) -> Iterator[int]:
    """Nonces of one group of one node: node_id + group_id*node_count + x*n_groups*node_count.

    x runs from ``start`` on; the iterator ends when the next nonce would not fit 32 bits.
    Every nonce belongs to exactly one (node, group). Raises SettingsError at once (not at the
    first ``next``) on an id outside its count.
    """
    if start < 0:
        raise SettingsError(f"start: {start} given; give 0 or more")
    return iter(residue_class(node_id, node_count, group_id, n_groups)[start:])


def residue_class(node_id: int, node_count: int, group_id: int, n_groups: int) -> range:
    """All nonces of one group of one node that fit 32 bits, by position: its length is how many.

    Raises SettingsError on an id outside its count.
    """
    for name, value, count in (("node", node_id, node_count), ("group", group_id, n_groups)):
        if count < 1 or not 0 <= value < count:
            raise SettingsError(f"{name}_id: {value} of {count} given; ids run from 0 to count - 1")
    return range(node_id + group_id * node_count, UINT32_RANGE, n_groups * node_count)


def place(nonce: int, node_id: int, node_count: int, n_groups: int) -> tuple[int, int] | None:
    """(group, position) of a nonce: nonce = node_id + (group + position*n_groups)*node_count.

    The inverse of :func:`partition`. None for a nonce of another node.
    """
    turn, node = divmod(nonce, node_count)
    if node != node_id or turn < 0:
        return None
    position, group_id = divmod(turn, n_groups)
    return group_id, position


def check_nonces(nonces: Iterable[int]) -> None:
    """Raise SettingsError unless every nonce is an integer of 32 bits."""
    for index, nonce in enumerate(nonces):
        whole = isinstance(nonce, Integral) and not isinstance(nonce, bool)
        if not whole or not 0 <= nonce < UINT32_RANGE:
            raise SettingsError(f"nonces[{index}]: {nonce!r} is not an integer of 0..2^32-1")
