"""Reading the flags of a ``vllm serve`` command line."""

from __future__ import annotations

from collections.abc import Sequence


def last_value(flags: Sequence[str], *names: str) -> str | None:
    """The value of a flag that counts: its last. ``--a-b``, ``--a_b`` and ``--a-b=`` are one."""
    value = None
    for index, flag in enumerate(flags):
        name, equals, inline = flag.partition("=")
        spelled = name.replace("_", "-") if name.startswith("--") else name
        if spelled not in names:
            continue
        if equals:
            value = inline
        elif index + 1 < len(flags):
            value = flags[index + 1]
    return value
