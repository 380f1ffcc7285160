"""Which ids end an answer on this server."""

from __future__ import annotations

from typing import Any


def end_token_ids(config: Any, tokenizer: Any, defaults: Any) -> list[int] | None:
    """The tokenizer's own end id first, then those of the generation config and those that every
    request gets (``defaults``: the chat handler's default sampling parameters).

    The order matters to a validator: every server ends at the first one, while another server
    may have another generation config. ``None`` where the tokenizer has no end id.
    """
    first = getattr(tokenizer, "eos_token_id", None)
    if not _is_id(first):
        return None
    generation = config.model_config.try_get_generation_config().get("eos_token_id")
    stops = defaults.get("stop_token_ids") if isinstance(defaults, dict) else None
    found = [first, *_ids(generation), *_ids(stops)]
    return list(dict.fromkeys(found))


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return sorted(token for token in values if _is_id(token))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
