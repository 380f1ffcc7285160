"""What the validator knows of a claim beyond its replay, fetched before the claim is judged."""

from __future__ import annotations

from assay.claims.account import Known
from assay.claims.account.text import decodable_ids, needs_text
from assay.claims.claim import Claim
from assay.errors import ReplayError
from assay.replay.client import EngineClient
from assay.replay.identity import ServerIdentity
from assay.replay.tokens import decode_ids


async def fetch_known(client: EngineClient, server: ServerIdentity, claim: Claim) -> Known:
    """Ask the server what its tokenizer makes of the claimed ids: at most one small request.

    A server that does not answer is a reason in ``Known.missing`` and counts against nobody. The
    rendering of the prompt comes with the replay (``claims.account.with_replay``). The
    validator's own context length is not part of it: an executor may have another one.
    """
    missing = {}
    if server.eos_token_ids is None:
        missing["eos_ids"] = "the validator's server does not tell its end ids"
    decoded = None
    if needs_text(claim):
        try:
            decoded = await _decoded(client, server, claim)
        except ReplayError as error:
            missing["decoded_output"] = f"the ids could not be decoded: {error}"
    return Known(
        vocab_size=server.vocab_size,
        eos_ids=server.eos_token_ids,
        decoded_output=decoded,
        missing=missing,
    )


async def _decoded(client: EngineClient, server: ServerIdentity, claim: Claim) -> str:
    ids = decodable_ids(claim, server.eos_token_ids)
    if not ids:
        return ""
    if min(ids) < 0 or (server.vocab_size is not None and max(ids) >= server.vocab_size):
        raise ReplayError("an id is outside the vocabulary", blame="claim", code="malformed")
    return await decode_ids(client, ids)
