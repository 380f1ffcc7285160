"""Exit codes, the same for every command that concludes something."""

from __future__ import annotations

from collections.abc import Iterable

PASS = 0
ERROR = 1
FAIL = 2
INCONCLUSIVE = 3


def exit_code(verdicts: Iterable[str]) -> int:
    """2 when any verdict is ``fail``, else 3 when any is not ``pass`` or there is none, else 0."""
    seen = set(verdicts)
    if "fail" in seen:
        return FAIL
    return PASS if seen == {"pass"} else INCONCLUSIVE
