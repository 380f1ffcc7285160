"""Which ids the status route calls ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assay.plugin.ends import end_token_ids


def ends(eos: Any, generation: Any, defaults: Any = None) -> list[int] | None:
    model = SimpleNamespace(try_get_generation_config=lambda: generation)
    config = SimpleNamespace(model_config=model)
    return end_token_ids(config, SimpleNamespace(eos_token_id=eos), defaults)


@pytest.mark.parametrize(
    ("eos", "generation", "defaults", "found"),
    [
        (2, {}, None, [2]),
        (2, {"eos_token_id": 2}, {}, [2]),
        (9, {"eos_token_id": [1, 9, 8]}, {"stop_token_ids": [30, 8]}, [9, 1, 8, 30]),
        (0, {"eos_token_id": 5}, {"temperature": 0.6}, [0, 5]),
        (None, {"eos_token_id": 5}, None, None),
        (True, {}, None, None),
        (2, {"eos_token_id": [None, -1, "3", True]}, {"stop_token_ids": None}, [2]),
    ],
)
def test_the_tokenizers_own_end_comes_first(
    eos: Any, generation: Any, defaults: Any, found: list[int] | None
) -> None:
    assert ends(eos, generation, defaults) == found
