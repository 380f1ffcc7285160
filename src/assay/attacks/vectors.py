"""Proof-of-compute attacks: which vectors a cheating node sends, and how they are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from assay.attacks.catalogue import REAL, Executor
from assay.attacks.forge import forged, learn, search
from assay.attacks.servers import SERVED_NAME
from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, read_artifact_file
from assay.poc.artifacts import encode_vector
from assay.replay.client import EngineClient
from assay.replay.pow import job_body, run_job

BLOCK, OLD_BLOCK, KEY = "attack-block", "attack-block-before", "attack-key"
SEQ_LEN = 64
NONCES = 100
HIDDEN_SIZE = 576
"""Of SmolLM2-135M."""
FORGED_FROM = 1_000
"""First nonce of the mean forgery: none of the published ones."""
SEARCHED = 50_000
"""Nonces a search looks at."""
BATCHES = (8, 16)
"""Nonces a forward: the node's and the validator's."""

Trick = Literal["none", "old-block", "mean", "search"]


@dataclass(frozen=True)
class VectorAttack:
    """``trick``: what is sent in place of the executor's own vectors of the challenge."""

    name: str
    what: str
    executor: Executor = REAL
    trick: Trick = "none"
    honest: bool = False


VECTOR_ATTACKS: tuple[VectorAttack, ...] = (
    VectorAttack("poc-honest", "the same weights in other batches", honest=True),
    VectorAttack(
        "poc-honest-bfloat16",
        "the same weights computed in bfloat16",
        Executor(dtype="bfloat16"),
        honest=True,
    ),
    VectorAttack("poc-int8", "weights rounded to int8", Executor("int8")),
    VectorAttack("poc-int4", "weights rounded to int4", Executor("int4")),
    VectorAttack("poc-skipped-layers", "two layers left out", Executor("fewer-layers")),
    VectorAttack("poc-cached", "vectors of the block before, sent again", trick="old-block"),
    VectorAttack("poc-mean", f"no model: the mean of {NONCES} published vectors", trick="mean"),
    VectorAttack(
        "poc-sparse",
        f"no model: the mean, for the {NONCES} of {SEARCHED} nonces that suit it best",
        trick="search",
    ),
)


def vector_attack(name: str) -> VectorAttack:
    """The attack of that name; SettingsError with the known ones."""
    found = {one.name: one for one in VECTOR_ATTACKS}.get(name)
    if found is None:
        raise SettingsError(
            f"no attack is called {name!r}; one of {', '.join(a.name for a in VECTOR_ATTACKS)}"
        )
    return found


async def computed(
    client: EngineClient, block: str, nonces: Sequence[int], batch: int
) -> dict[str, Any]:
    """What the server behind ``client`` computes for ``nonces``: a file of vectors as JSON."""
    identity = {"block_hash": block, "public_key": KEY}
    params = {"model": SERVED_NAME, "seq_len": SEQ_LEN}
    body = {**job_body(identity, params, nonces), "batch_size": batch}
    answer = await run_job(client, body)
    return {**identity, "seq_len": SEQ_LEN, "artifacts": answer["artifacts"]}


class VectorFiles:
    """Vectors on disk, one file a set; see ``Traces`` for the claims."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return self._file(name).is_file()

    def read(self, name: str) -> ArtifactSet:
        """The set of that name. Raises ClaimError when it was not made yet."""
        return replace(read_artifact_file(self._file(name)), name=name, hidden_size=HIDDEN_SIZE)

    def write(self, name: str, body: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self._file(name).with_suffix(".part")
        part.write_text(json.dumps(body), encoding="utf-8")
        part.replace(self._file(name))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def as_body(vectors: ArtifactSet) -> dict[str, Any]:
    """A set as the JSON of a file of vectors, float16 as on the wire."""
    return {
        "block_hash": vectors.challenge.block_hash,
        "public_key": vectors.challenge.public_key,
        "seq_len": vectors.challenge.seq_len,
        "artifacts": [
            {"nonce": nonce, "vector_b64": encode_vector(vector)}
            for nonce, vector in vectors.vectors.items()
        ],
    }


async def send(
    attack: VectorAttack, client: EngineClient | None, published: ArtifactSet | None
) -> dict[str, Any]:
    """The vectors that ``attack`` sends.

    ``client`` is its executor's server, which forgeries do without; ``published`` the vectors of
    the same block that a forgery learns from. Raises SettingsError for the missing one.
    """
    nonces = list(range(NONCES))
    if attack.trick in ("mean", "search"):
        if published is None:
            raise SettingsError(f"{attack.name} needs vectors of the block to learn from")
        known = learn(published, HIDDEN_SIZE)
        if attack.trick == "search":
            chosen = search(known, NONCES, range(FORGED_FROM, FORGED_FROM + SEARCHED))
        else:
            chosen = list(range(FORGED_FROM, FORGED_FROM + NONCES))
        return as_body(forged(known, chosen))
    if client is None:
        raise SettingsError(f"{attack.name} needs a server")
    block = OLD_BLOCK if attack.trick == "old-block" else BLOCK
    return {**await computed(client, block, nonces, BATCHES[0]), "block_hash": BLOCK}
