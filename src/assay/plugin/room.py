"""A replay whose prompt and trace do not fit the context is refused, not cut.

The prompt's length is known only after rendering. vLLM then clamps ``max_tokens`` to what is left of
the context, without a word, and calls ``to_sampling_params`` with the result: the one place where a
trace that does not fit can be noticed before the engine sees the request.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.exceptions import VLLMValidationError

from assay.plugin.constants import TRACE_ARG


@functools.cache
def room_checking(stock: type[Any]) -> type[Any]:
    """A subclass of a stock request model that checks its trace against the clamped ``max_tokens``."""

    def to_sampling_params(self: Any, max_tokens: int, *args: Any, **kwargs: Any) -> Any:
        positions = len(self.vllm_xargs[TRACE_ARG])
        if max_tokens < positions:
            field = "enforced_str" if (self.model_extra or {}).get("enforced_str") else None
            raise VLLMValidationError(
                f"the trace has {positions} positions, but after the prompt this server's context "
                f"holds only {max_tokens} more tokens",
                parameter=field or "enforced_tokens",
            )
        return stock.to_sampling_params(self, max_tokens, *args, **kwargs)

    return type(stock.__name__, (stock,), {"to_sampling_params": to_sampling_params})
