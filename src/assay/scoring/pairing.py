"""A claim and its replay laid side by side, and what stands between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assay.claims.claim import Claim, Replay
from assay.scoring import findings as find
from assay.scoring.arrays import ScoreArrays, build_arrays
from assay.scoring.findings import Finding, finding
from assay.scoring.result import Kind
from assay.scoring.signals import first_disagreement

KindChoice = Literal["auto", "enforced", "natural"]


@dataclass(frozen=True)
class Pairing:
    """``arrays`` hold the positions both sides have before their tokens part at ``parted``.

    ``findings`` are what was noticed so far. Without ``usable`` no number may be computed from the
    arrays; with a finding whose effect is ``block`` the numbers mean nothing.
    """

    kind: Kind
    parted: int | None
    arrays: ScoreArrays
    findings: tuple[Finding, ...]
    usable: bool

    @property
    def blocked(self) -> Finding | None:
        """The first finding that makes the distances meaningless."""
        return next((f for f in self.findings if f.effect == "block"), None)


def pair_up(claim: Claim, replay: Replay, kind: KindChoice = "auto") -> Pairing:
    """Lay ``claim`` and ``replay`` side by side; ``kind`` as ``verdict.judge`` explains it."""
    settled = settle_kind(claim, replay, kind)
    found = find.unreadable_numbers(claim, replay)
    found += find.evidence_present(claim, replay)
    found += find.same_prompt(claim, replay)
    ours, theirs = claim.positions or (), replay.positions or ()
    parted = first_disagreement(ours, theirs)
    found += find.same_spelling(ours, theirs)
    found += _same_tokens(claim, replay, settled, parted)
    shared = min(len(ours), len(theirs)) if parted is None else parted
    raw = "raw_logprobs" in (claim.logprobs_mode, replay.logprobs_mode)
    found += find.same_k(ours[:shared], theirs[:shared], raw=raw)
    arrays = build_arrays(ours[:shared], theirs[:shared])
    broken = any(f.reason.code in ("not_finite", "spelling_mismatch") for f in found)
    usable = not broken and bool(arrays.comparable.any())
    if usable:
        found += find.partial_evidence(arrays)
        found += find.is_distribution(claim, replay, arrays)
        found += find.same_mode(claim, replay, arrays)
    return Pairing(settled, parted, arrays, tuple(found), usable)


def settle_kind(claim: Claim, replay: Replay, kind: KindChoice) -> Kind:
    """What the replay is, where ``kind`` leaves it open."""
    if kind != "auto":
        return kind
    if replay.evidence is not None or replay.path != "file":
        return "enforced"
    ours, theirs = claim.positions or (), replay.positions or ()
    whole = len(theirs) >= len(ours) and first_disagreement(ours, theirs) is None
    return "enforced" if whole else "natural"


def replayed_tokens(replay: Replay) -> int:
    """Positions of the replay; its usage too, for an end token it could not name (case 9)."""
    return max(len(replay.positions or ()), replay.usage.completion_tokens or 0)


def _same_tokens(claim: Claim, replay: Replay, kind: Kind, parted: int | None) -> list[Finding]:
    ours, theirs = claim.positions or (), replay.positions or ()
    if not ours or not theirs:
        return []
    found = []
    enforced = kind == "enforced"
    if parted is not None:
        found.append(
            finding(
                "fail" if enforced else "hold",
                "different_tokens",
                f"different tokens at position {parted}: the claim has {ours[parted].token}, the"
                f" replay {theirs[parted].token}"
                + (
                    ""
                    if enforced
                    else "; two free generations part on honest hardware too, so"
                    f" only the {parted} positions before are compared"
                ),
                parted,
            )
        )
    if len(ours) > replayed_tokens(replay):
        incomplete = replay.evidence is not None and not replay.evidence.complete
        found.append(
            finding(
                "block" if incomplete else "fail" if enforced else "hold",
                "replay_incomplete" if incomplete else "different_length",
                f"the claim has {len(ours)} tokens and the replay {len(theirs)}",
                len(theirs),
            )
        )
    return found
