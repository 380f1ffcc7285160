"""Claims in, verdicts out: the loop around one replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from assay.claims.claim import Claim
from assay.errors import AssayError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.decode import ReplayRun
from assay.replay.identity import ServerIdentity
from assay.replay.known import fetch_known
from assay.replay.paths import replay_claim
from assay.replay.request import DEFAULT_OPTIONS, PathChoice, ReplayOptions
from assay.scoring.channels import ChannelName
from assay.scoring.constants import DEFAULT_FPR
from assay.scoring.profile import Profile
from assay.scoring.result import Verdict
from assay.scoring.verdict import Known, judge, verdict_without_replay
from assay.store.result import ResultNote, VerifyResult, claim_digest, options_digest

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class VerifyOptions:
    """How to verify. ``threshold`` ``None`` is the default of ``assay.scoring``; ``profiles``,
    ``fpr`` and ``allow_unknown`` are those of ``scoring.verdict.judge``."""

    replay: ReplayOptions = DEFAULT_OPTIONS
    threshold: float | None = None
    profiles: tuple[Profile, ...] = ()
    fpr: float = DEFAULT_FPR
    allow_unknown: bool = False
    beacon: str | None = None
    """Public value that every seed must follow from (``claims.seeds``)."""
    require: tuple[ChannelName, ...] = ()
    """Channels without whose pass no claim passes; with a beacon the choice channel is one: a
    request that lost its seed on the way would otherwise pass unlooked at."""
    label: str = ""
    concurrency: int = 8
    retries: int = 3

    def digest(self) -> str:
        """Digest of what can change a verdict; concurrency and retries cannot."""
        calibrated = {
            "profiles": [profile.id for profile in self.profiles],
            "fpr": self.fpr,
            "allow_unknown": self.allow_unknown,
        }
        return options_digest(
            (calibrated if self.profiles else {})
            | ({} if self.beacon is None else {"beacon": self.beacon})
            | ({"require": sorted(self.require)} if self.require else {})
            | {
                "strict": self.replay.strict,
                "allow_text": self.replay.allow_text,
                "logprobs_mode": self.replay.logprobs_mode,
                "as_model": self.replay.as_model,
                "path": self.replay.path,
                "prefill_top": self.replay.prefill_top,
                "threshold": self.threshold,
            }
        )


def require_validator(server: ServerIdentity, address: str, *, path: PathChoice = "decode") -> None:
    """Refuse a server that cannot judge anything, before any claim is looked at.

    The decode path needs the plugin; a prefill runs on any vLLM server.
    """
    if path == "decode" and not server.has_plugin:
        raise ReplayError(
            f"{address} is a vLLM server without the assay plugin (no /v1/assay/status), so it"
            " cannot force tokens; start it with `assay serve MODEL`, set"
            " VLLM_PLUGINS=assay,assay_endpoints, or verify with --path prefill",
            blame="validator",
            code="validator_unusable",
        )
    if server.speculative:
        raise ReplayError(
            f"{address} runs speculative decoding, whose log probabilities can be the draft"
            " model's; start the validator without --speculative-config",
            blame="validator",
            code="validator_unusable",
        )


def result_key(claim: Claim, server: ServerIdentity, options: VerifyOptions) -> Key:
    """The key of the result that verifying ``claim`` would make."""
    return (claim.id, claim_digest(claim), server.digest(), options.digest())


async def verify_one(
    client: EngineClient, server: ServerIdentity, claim: Claim, options: VerifyOptions
) -> VerifyResult:
    """Replay one claim and judge it. Every failure of a replay becomes a verdict with a reason."""
    started = time.monotonic()
    run: ReplayRun | None = None
    failure: ReplayError | None = None
    try:
        run = await replay_claim(client, server, claim, options.replay, retries=options.retries)
        known = replace(await fetch_known(client, server, claim), beacon=options.beacon)
        verdict = _judge(claim, run, known, options)
    except ReplayError as error:
        failure, verdict = error, verdict_without_replay(error)
    blame = None if failure is None else "claim" if failure.blame == "claim" else "validator"
    return VerifyResult(
        label=options.label,
        claim_digest=claim_digest(claim),
        server_digest=server.digest(),
        options_digest=options.digest(),
        claim=claim,
        verdict=verdict,
        replay=None if run is None else run.replay,
        blame=blame,
        failure=None if failure is None else failure.code,
        notes=()
        if run is None
        else tuple(ResultNote(code=note.code, message=note.message) for note in run.notes),
        token_texts=() if run is None else run.token_texts,
        decided_at=datetime.now(UTC),
        seconds=time.monotonic() - started,
    )


def _judge(claim: Claim, run: ReplayRun, known: Known, options: VerifyOptions) -> Verdict:
    return judge(
        claim,
        run.replay,
        threshold=options.threshold,
        kind="enforced",
        known=known,
        profile=options.profiles,
        fpr=options.fpr,
        allow_unknown=options.allow_unknown,
        require=options.require if options.beacon is None else (*options.require, "choice"),
    )


async def verify_all(
    client: EngineClient,
    server: ServerIdentity,
    claims: Sequence[Claim],
    options: VerifyOptions,
    on_result: Callable[[VerifyResult], None],
    *,
    done: Collection[Key] = frozenset(),
) -> None:
    """Verify every claim whose key is not in ``done``; ``on_result`` is called as each is decided.

    Order is that of completion, up to ``options.concurrency`` replays in flight. When the server
    stops answering altogether, the results so far have been handed over and ReplayError is raised:
    going on would only turn an outage into a list of verdicts.
    """
    remaining = iter([claim for claim in claims if result_key(claim, server, options) not in done])
    stop = asyncio.Event()

    async def worker() -> None:
        for claim in remaining:
            if stop.is_set():
                return
            result = await verify_one(client, server, claim, options)
            on_result(result)
            if _is_outage(result) and not await _answers(client):
                stop.set()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(options.concurrency):
                group.create_task(worker())
    except ExceptionGroup as failures:
        # A full disk or a refused row in on_result: one clear error instead of a group.
        known = failures.subgroup(AssayError)
        if known is None:
            raise
        raise known.exceptions[0] from failures
    if stop.is_set():
        raise ReplayError(
            "the validator's server stopped answering; results so far are kept, run the same"
            " command again to go on",
            blame="validator",
            code="validator_unreachable",
        )


def _is_outage(result: VerifyResult) -> bool:
    return result.blame == "validator" and (result.failure or "").startswith("validator_")


async def _answers(client: EngineClient) -> bool:
    try:
        return (await client.send("GET", "/health")).status == 200
    except ReplayError:
        return False
