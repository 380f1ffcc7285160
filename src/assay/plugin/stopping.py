"""End of sequence, stop ids and repetition rules do not cut a replay before its trace ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.request import Request, RequestStatus

from assay.plugin.constants import TRACE_ARG

CheckStop = Callable[[Any, int], bool]


def trace_length(request: Request) -> int:
    """Positions to force for this request; 0 for an ordinary one."""
    params = request.sampling_params
    if params is None or not params.extra_args:
        return 0
    return len(params.extra_args.get(TRACE_ARG, ()))


def tolerant(stock: CheckStop) -> CheckStop:
    """Wrap vLLM's stop check: inside the trace only the context length ends a request.

    At the trace's last position, and after it, stock rules apply again, so that a replay that ends
    with EOS reports ``stop`` like its origin. Sampling parameters stay as the origin sent them,
    because EOS and stop ids also shape the min_tokens mask and the grammar.
    """

    def check_stop(request: Request, max_model_len: int) -> bool:
        if request.num_output_tokens >= trace_length(request):
            return stock(request, max_model_len)
        if request.num_tokens >= max_model_len:
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            return True
        return False

    check_stop.assay_stock = stock  # type: ignore[attr-defined]
    return check_stop
