"""What this deployment computes: checks of a request against the engine, before any work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from assay.plugin.poc.failures import RefusedError
from assay.plugin.poc.settings import PocSettings
from assay.poc.bodies import Identity


def check_params(request: Identity, models: Collection[str], settings: PocSettings) -> None:
    """RefusedError 409 ``params mismatch`` for another model, or another shape than the pinned one."""
    params = request.params
    fields = []
    if params.model not in models:
        fields.append("model")
    pinned = {"seq_len": settings.pinned_seq_len, "k_dim": settings.pinned_k_dim}
    fields += [
        name
        for name, value in pinned.items()
        if value is not None and getattr(params, name) != value
    ]
    if fields:
        deployed = {"model": next(iter(models)), **pinned}
        raise RefusedError(
            409,
            {
                "error": "params mismatch",
                "requested": params.model_dump(),
                "deployed": {name: value for name, value in deployed.items() if value is not None},
                "fields": fields,
            },
        )


def check_shape(request: Identity, profile: Mapping[str, Any]) -> None:
    """RefusedError 400 for a shape the engine cannot hold, with the numbers."""
    params, budget = request.params, int(profile["token_budget"])
    limits = (
        ("seq_len", params.seq_len, "max_model_len", "the engine's context"),
        ("k_dim", params.k_dim, "hidden_size", "the model's hidden size"),
    )
    for name, value, key, what in limits:
        most = profile.get(key)
        if most is not None and value > int(most):
            raise RefusedError(400, f"params.{name}: {value} is more than {what}, {most}")
    if params.seq_len > budget:
        raise RefusedError(400, _over_budget(1, params.seq_len, budget))
    if request.batch_size is not None and request.batch_size * params.seq_len > budget:
        raise RefusedError(400, _over_budget(request.batch_size, params.seq_len, budget))


def batch_size(request: Identity, profile: Mapping[str, Any], settings: PocSettings) -> int:
    """Nonces a forward: what the client names, else the default as far as the budget holds it."""
    if request.batch_size is not None:
        return request.batch_size
    most = max(1, int(profile["token_budget"]) // request.params.seq_len)
    default = settings.batch_size_default
    return most if default == "auto" else min(default, most)


def check_nodes(request: Identity) -> None:
    """RefusedError 400 for an id outside its count: its nonces would be another node's."""
    for name, value, counted, count in (
        ("node_id", request.node_id, "node_count", request.node_count),
        ("group_id", request.group_id, "n_groups", request.n_groups),
    ):
        if value >= count:
            raise RefusedError(400, f"{name}: {value} given for {counted} {count}; ids start at 0")


def _over_budget(size: int, seq_len: int, budget: int) -> str:
    tokens = size * seq_len
    return (
        f"batch_size x seq_len: {size} x {seq_len} = {tokens} tokens exceed the engine's budget "
        f"of {budget}; lower batch_size, or start the server with --max-num-batched-tokens {tokens}"
    )
