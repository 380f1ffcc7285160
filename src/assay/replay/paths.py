"""One claim replayed on the path that the operator chose, or on the one that fits."""

from __future__ import annotations

import dataclasses

from assay.claims.claim import Claim
from assay.errors import ReplayError
from assay.replay.client import EngineClient
from assay.replay.decode import ReplayRun, replay_by_decode
from assay.replay.identity import ServerIdentity
from assay.replay.prefill import replay_by_prefill
from assay.replay.prefill_fits import NOT_AVAILABLE
from assay.replay.request import DEFAULT_OPTIONS, Note, ReplayOptions


async def replay_claim(
    client: EngineClient,
    server: ServerIdentity,
    claim: Claim,
    options: ReplayOptions = DEFAULT_OPTIONS,
    *,
    retries: int = 0,
) -> ReplayRun:
    """Replay ``claim`` by ``options.path``.

    ``auto`` prefills what can be prefilled; where it decodes instead, a note of the run says why.
    Raises what the path raises: without the plugin there is no decode path to fall back on, and
    the reason why the prefill does not do is the error.
    """
    if options.path == "decode":
        return await replay_by_decode(client, server, claim, options, retries=retries)
    try:
        return await replay_by_prefill(client, server, claim, options, retries=retries)
    except ReplayError as error:
        if options.path == "prefill" or error.code != NOT_AVAILABLE or not server.has_plugin:
            raise
        note = Note("path_decode", f"decoded, not prefilled: {error}")
    run = await replay_by_decode(client, server, claim, options, retries=retries)
    return dataclasses.replace(run, notes=(note, *run.notes))
