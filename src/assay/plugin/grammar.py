"""Grammar degradation: a forced id the grammar rejects switches the grammar off for that replay.

The grammar stays active until then, because its mask shaped the origin's distribution too. Only
replays are wrapped; ordinary users keep the strict grammar of every backend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

logger = logging.getLogger("vllm.assay")

ALL_ALLOWED = -1
"""A bitmask word with every bit set (int32): all 32 tokens allowed."""


class DegradingGrammar(StructuredOutputGrammar):
    """Follows the wrapped grammar of any backend until it rejects a token.

    From there on: tokens are accepted, bitmask rows allow everything, ``validate_tokens`` returns
    its input, and ``conflict`` holds the index of the first rejected output token.
    """

    def __init__(self, inner: StructuredOutputGrammar) -> None:
        self.inner = inner
        self.accepted = 0
        self.conflict: int | None = None
        self._mask: torch.Tensor | None = None
        """The bitmask row [words] int32 the sampler saw for the coming token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            # A terminated grammar has nothing to say: stock code stops asking it, and so do we.
            asked = self.conflict is None and not self.inner.is_terminated()
            if asked and not self._takes(request_id, token):
                self.conflict = self.accepted
                logger.info(
                    "assay: request %s: the grammar rejects forced token %d at its position %d; "
                    "grammar off for the rest of this replay",
                    request_id,
                    token,
                    self.accepted,
                )
            self._mask = None
            self.accepted += 1
        return True

    def _takes(self, request_id: str, token: int) -> bool:
        # The mask decides first: some backends log an error, or assert, when a token they masked
        # is accepted (F16), and some accept anything once they have stopped.
        if self._mask is not None and not _allows(self._mask, token):
            return False
        return self.inner.accept_tokens(request_id, [token])

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens if self.conflict is not None else self.inner.validate_tokens(tokens)

    def rollback(self, num_tokens: int) -> None:
        self.accepted -= num_tokens
        self._mask = None
        if self.conflict is None:
            self.inner.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        if self.conflict is None:
            self.inner.fill_bitmask(bitmask, batch_index)
            self._mask = bitmask[batch_index].clone()
        else:
            bitmask[batch_index].fill_(ALL_ALLOWED)

    def is_terminated(self) -> bool:
        # Terminated means "everything allowed" to vLLM's mask, and a trace may go on after it.
        return self.conflict is not None or self.inner.is_terminated()

    def reset(self) -> None:
        self.accepted, self.conflict, self._mask = 0, None, None
        self.inner.reset()


def _allows(mask: torch.Tensor, token: int) -> bool:
    """Bit ``token`` of a bitmask row; host tensor, 32 tokens an int32 word."""
    word, bit = divmod(token, 32)
    return word < mask.numel() and bool((int(mask[word]) >> bit) & 1)


def degrading(
    stock: Callable[[Any, Any], StructuredOutputGrammar], is_replay: Callable[[Any], bool]
) -> Callable[[Any, Any], StructuredOutputGrammar]:
    """Wrap ``StructuredOutputManager._create_grammar`` so that replays get a degrading grammar."""

    def create_grammar(manager: Any, request: Any) -> StructuredOutputGrammar:
        grammar = stock(manager, request)
        return DegradingGrammar(grammar) if is_replay(request) else grammar

    create_grammar.assay_stock = stock  # type: ignore[attr-defined]
    return create_grammar
