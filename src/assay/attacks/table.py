"""Attack by channel: what stored claims and replays say, computed afresh every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from assay.attacks.catalogue import Attack
from assay.attacks.figures import Rate, auc, claims_needed
from assay.attacks.pairs import Pair, column
from assay.attacks.targets import Target
from assay.claims.account import Known
from assay.scoring.constants import DEFAULT_FPR
from assay.scoring.profile import Profile
from assay.scoring.result import Verdict
from assay.scoring.verdict import judge

COLUMNS = ("value_distance", "value_peak", "choice_mismatch", "choice_margin")
"""Statistics whose AUC the table shows."""


NOTHING_KNOWN = Known()


@dataclass(frozen=True)
class Judging:
    """What verdicts are reached with."""

    profile: Profile | None
    fpr: float = DEFAULT_FPR
    known: Known = NOTHING_KNOWN

    def verdict(self, pair: Pair) -> Verdict:
        """The verdict on a pair, as ``assay verify`` would give it."""
        return judge(
            pair.claim,
            pair.replay,
            kind="enforced",
            known=self.known,
            profile=self.profile,
            fpr=self.fpr,
        )


@dataclass(frozen=True)
class Row:
    """One attack by one path.

    ``auc`` by statistic against the honest claims of the same mode, ``None`` where one side could
    not be measured; ``against`` the same against honest claims of bfloat16 executors.
    ``failed`` by channel counts the claims that channel fails; ``convicted`` the verdicts
    ``fail``; ``causes`` what the verdicts name, by how often. ``placed`` counts the claims in which
    the edited position is named, ``placed_near`` those in which it or the next one is: with a
    token of near equal chance put in its place, the first thing that looks wrong is what follows.
    """

    attack: str
    path: str
    claims: int
    auc: Mapping[str, float | None]
    against: Mapping[str, float | None]
    failed: Mapping[str, Rate]
    convicted: Rate
    inconclusive: int
    causes: Mapping[str, int] = field(default_factory=dict)
    placed: Rate | None = None
    placed_near: Rate | None = None


def row(
    attack: Attack,
    path: str,
    *,
    cheating: Sequence[Pair],
    honest: Sequence[Pair],
    other_honest: Sequence[Pair],
    judging: Judging,
) -> Row:
    """The figures of one attack. ``honest`` are in the same mode, with the same kind of end."""
    verdicts = [judging.verdict(pair) for pair in cheating]
    causes: Counter[str] = Counter()
    for verdict in verdicts:
        causes.update(cause.name for cause in verdict.causes)
    placed = placed_near = None
    if attack.edit == "replace-token":
        both = list(zip(verdicts, map(edited_position, cheating), strict=True))
        placed = Rate(sum(names_position(v, at) for v, at in both), len(both))
        near = sum(names_position(v, at) or names_position(v, at + 1) for v, at in both)
        placed_near = Rate(near, len(both))
    return Row(
        attack=attack.name,
        path=path,
        claims=len(cheating),
        auc=_aucs(honest, cheating),
        against=_aucs(other_honest, cheating),
        failed={
            name: Rate(sum(_fails(verdict, name) for verdict in verdicts), len(verdicts))
            for name in ("value", "choice", "account")
        },
        convicted=Rate(sum(v.verdict == "fail" for v in verdicts), len(verdicts)),
        inconclusive=sum(v.verdict == "inconclusive" for v in verdicts),
        causes=dict(causes.most_common()),
        placed=placed,
        placed_near=placed_near,
    )


def _aucs(honest: Sequence[Pair], cheating: Sequence[Pair]) -> dict[str, float | None]:
    return {name: auc(column(honest, name), column(cheating, name)) for name in COLUMNS}


def _fails(verdict: Verdict, channel: str) -> bool:
    return any(c.name == channel and c.outcome == "fail" for c in verdict.channels)


def edited_position(pair: Pair) -> int:
    """Where ``edit.replace_token`` put its token when it was not told."""
    return len(pair.claim.output_ids or ()) // 2


def names_position(verdict: Verdict, position: int) -> bool:
    """Whether the verdict's reasons, channels or causes name ``position``."""
    named = [reason.position for reason in verdict.reasons]
    named += [channel.position for channel in verdict.channels if channel.outcome == "fail"]
    named += [cause.position for cause in verdict.causes]
    return position in named


@dataclass(frozen=True)
class Condition:
    """Honest claims under one condition by one path, judged with a profile made from others."""

    name: str
    path: str
    outcomes: Mapping[str, int]

    @property
    def convicted(self) -> Rate:
        return Rate(self.outcomes.get("fail", 0), sum(self.outcomes.values()))


def condition(name: str, path: str, honest: Sequence[Pair], judging: Judging) -> Condition:
    """How honest claims fare."""
    return Condition(name, path, Counter(judging.verdict(pair).verdict for pair in honest))


@dataclass(frozen=True)
class Outcome:
    """A target, what was reached, and where it is missed how many claims judged together would
    do (with the AUC they reach)."""

    target: Target
    reached: float | None
    needed: tuple[int, float] | None = None

    @property
    def met(self) -> bool:
        return self.reached is not None and self.reached >= self.target.least


def outcome(
    target: Target, found: Row, cheating: Sequence[Pair], honest: Sequence[Pair]
) -> Outcome:
    """Hold ``found`` against ``target``."""
    if target.statistic == "account":
        return Outcome(target, found.failed["account"].share)
    if target.statistic in ("position", "position or next"):
        rate = found.placed if target.statistic == "position" else found.placed_near
        return Outcome(target, None if rate is None else rate.share)
    ours = column(honest, target.statistic, target.first)
    theirs = column(cheating, target.statistic, target.first)
    reached = auc(ours, theirs)
    if reached is None or reached >= target.least:
        return Outcome(target, reached)
    return Outcome(target, reached, claims_needed(ours, theirs, target.least))
