"""Checks of ``assay doctor`` on a running server: what would make an honest node fail."""

from __future__ import annotations

from assay.cli.checks import Check
from assay.replay.identity import ServerIdentity

USUAL_K = 5
"""Alternatives a position that networks of this protocol ask for."""


def server_checks(server: ServerIdentity) -> list[Check]:
    """Findings from the status route; a plain vLLM server gives just the first."""
    if not server.has_plugin:
        return [
            Check(
                "server plugin",
                "fail",
                f"vLLM {server.vllm_version or 'of unknown version'} without the assay plugin: it"
                " can be recorded, but it cannot verify",
                "start it with `assay serve MODEL`",
            )
        ]
    return [
        Check(
            "server plugin",
            "pass",
            f"assay {server.plugin_version} in vLLM {server.vllm_version}, serving {server.model}",
        ),
        Check("server runner", "pass", f"model runner {(server.runner or 'unknown').upper()}"),
        _mode(server),
        _speculative(server),
        _top_k(server),
        _kv_cache(server),
        _prefix_caching(server),
        _chunked_prefill(server),
        Check(
            "server dtype",
            "pass",
            f"weights in {server.dtype}, attention backend"
            f" {server.attention_backend or 'chosen by vLLM'}: an executor with others rounds"
            " otherwise; allow for it in the threshold",
        ),
    ]


def _mode(server: ServerIdentity) -> Check:
    mode = server.logprobs_mode
    name = "server logprobs mode"
    if mode == "raw_logprobs":
        return Check(name, "pass", "raw_logprobs, which separates models best")
    if mode == "processed_logprobs":
        return Check(
            name,
            "pass",
            "processed_logprobs: shows sampling parameters, separates models less well; claims"
            " that name no mode are judged in it",
        )
    return Check(
        name,
        "fail",
        f"{mode} are no log probabilities: every answer of this server would be refused as a claim",
        "start it with --logprobs-mode raw_logprobs",
    )


def _speculative(server: ServerIdentity) -> Check:
    if server.speculative:
        return Check(
            "server speculative decoding",
            "fail",
            "is on: replays are refused, and log probabilities of answers may be the draft model's",
            "start it without --speculative-config",
        )
    return Check("server speculative decoding", "pass", "is off")


def _top_k(server: ServerIdentity) -> Check:
    limit = server.max_logprobs
    name = "server top-k limit"
    if limit is not None and 0 <= limit < USUAL_K:
        return Check(
            name,
            "fail",
            f"at most {limit} alternatives a position: claims with {USUAL_K} cannot be replayed",
            "start it with --max-logprobs 20",
        )
    return Check(name, "pass", f"up to {'any number of' if limit == -1 else limit} alternatives")


def _kv_cache(server: ServerIdentity) -> Check:
    kind = server.kv_cache_dtype
    name = "server KV cache"
    if kind is not None and kind not in ("auto", server.dtype):
        return Check(
            name,
            "warn",
            f"{kind}: an honest executor with another KV cache dtype differs more (case 50)",
            "use the dtype of the network's executors",
        )
    return Check(name, "pass", f"{kind}, the same as the weights")


def _prefix_caching(server: ServerIdentity) -> Check:
    if server.prefix_caching:
        return Check(
            "server prefix caching",
            "pass",
            "is on: replays of one prompt share it; their numbers are those of a first run up to"
            " rounding",
        )
    return Check("server prefix caching", "pass", "is off")


def _chunked_prefill(server: ServerIdentity) -> Check:
    if server.chunked_prefill:
        return Check(
            "server chunked prefill",
            "pass",
            "is on: long prompts are cut into pieces, which forcing follows",
        )
    return Check("server chunked prefill", "pass", "is off")
