"""Judging labelled pairs by profiles that have not seen them.

Two questions. *Unseen*: for every kind of GPU a profile is made of the honest pairs that do not
touch it, and every pair that does is judged by it; nothing of the hardware judged is in the
profile, not even in its spreads. *Seen*: a profile holds half of a pair's nonces, and the other
half is judged; or it holds other challenges of the pair, and one more is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from assay.poc.calibrate import pair_record
from assay.poc.constants import PRIOR_DOF, PROFILE_ALPHA
from assay.poc.draws import NonceTerms, count_rule, own_values, p_values, subsets, terms
from assay.poc.labelled_keys import deployment, hardware_kind, labelled_key, model_name
from assay.poc.nulls import Nulls, nulls_for
from assay.poc.profile import PairRecord, VectorKey, from_records, set_digest
from assay.poc.settings import NETWORK, StatTest
from assay.poc.statistics import predicted_vectors
from assay.poc.table import LabelledSet, comparable, hidden_size_of

Kind = Literal[
    "honest",
    "honest, other version",
    "cheat",
    "forged",
    "mixed",
    "honest, same pair",
    "mixed, same pair",
    "honest, same pair, other challenge",
    "mixed, same pair, other challenge",
]
SIZES = (50, 200)
DRAWS = 200
CHEATING_SHARE = 0.25
COUNT_RULE = StatTest(0.75, 0.1, 0.05)
"""What networks set for MiniMax: the rule the project compares with."""

Pair = tuple[LabelledSet, LabelledSet]


@dataclass(frozen=True)
class Unit:
    """One pair judged by one profile over ``draws`` subsets of ``n`` nonces. ``withheld``: would
    be convicted, were the configurations equal."""

    kind: Kind
    model: str
    held_out: str
    name: str
    n: int
    basis: str
    draws: int
    convicted: int
    by_count: int
    withheld: int = 0


class _Judge:
    """A profile, with the nulls it gave already."""

    def __init__(
        self,
        held_out: str,
        records: Iterable[PairRecord],
        prior_dof: Mapping[str, float] = PRIOR_DOF,
    ) -> None:
        self.held_out = held_out
        self._prior_dof = prior_dof
        self._profile = from_records(records)
        self._nulls: dict[tuple[VectorKey, str | None, str | None], Nulls | None] = {}

    def nulls(self, claimed: LabelledSet, computed: LabelledSet) -> Nulls | None:
        pair = (deployment(claimed), deployment(computed))
        key = labelled_key(computed)
        if (key, *pair) not in self._nulls:
            self._nulls[key, *pair] = nulls_for(self._profile, key, pair, self._prior_dof)
        return self._nulls[key, *pair]


class Evaluation:
    """The labelled sets whose hardware is known, and what of a pair is worth making once."""

    def __init__(self, sets: Iterable[LabelledSet], draws: int = DRAWS) -> None:
        self.sets = [one for one in sets if hardware_kind(one) is not None]
        self.draws = draws
        self.honest = [one for one in self.sets if not one.is_cheat]
        self.pairs: list[tuple[Pair, PairRecord]] = []
        for pair in combinations(self.honest, 2):
            if comparable(*pair) and labelled_key(pair[0]) == labelled_key(pair[1]):
                record = _record(pair)
                if record is not None:
                    self.pairs.append((pair, record))
        self._terms: dict[tuple[str, str], NonceTerms] = {}

    # --- one kind of hardware left out ---------------------------------------------------------

    def unseen(self) -> Iterator[Unit]:
        for kind in sorted({hardware_kind(one) or "" for one in self.sets}):
            judge = _Judge(kind, self.records_without(kind))
            for claimed, computed in self._pairs_with(kind):
                yield from self._judge(judge, claimed, computed)
            for computed in self.honest:
                if hardware_kind(computed) == kind and computed.predicted:
                    yield from self._draw(judge, "forged", (computed, computed), _forged(computed))

    def unseen_with(self, dof: float) -> Iterator[Unit]:
        """Honest and cheating pairs alone, the pooled spread of bulk and own counting for ``dof``."""
        prior = {**PRIOR_DOF, "bulk": dof, "own": dof}
        for kind in sorted({hardware_kind(one) or "" for one in self.sets}):
            judge = _Judge(kind, self.records_without(kind), prior)
            for claimed, computed in self._pairs_with(kind):
                label: Kind = "cheat" if claimed.is_cheat else "honest"
                if claimed.is_cheat or labelled_key(claimed) == labelled_key(computed):
                    found = self.terms(claimed, computed)
                    yield from self._draw(judge, label, (claimed, computed), found)

    def records_without(self, kind: str) -> list[PairRecord]:
        """Records with nothing of ``kind`` in them, not even vectors that equal its own bit by
        bit: some sets of two kinds do, and one labelled B300 holds the vectors of an H100 one."""
        its_own = {set_digest(one.vectors) for one in self.honest if hardware_kind(one) == kind}
        return [
            record
            for _, record in self.pairs
            if kind not in [name.split(" ")[0] for name in record.hardware]
            and not its_own.intersection(record.sets)
        ]

    def _pairs_with(self, kind: str) -> Iterator[Pair]:
        for a, b in combinations(self.sets, 2):
            if kind not in (hardware_kind(a), hardware_kind(b)) or not comparable(a, b):
                continue
            if not b.is_cheat:
                yield a, b
            elif not a.is_cheat:
                yield b, a

    def _judge(self, judge: _Judge, claimed: LabelledSet, computed: LabelledSet) -> Iterator[Unit]:
        found = self.terms(claimed, computed)
        if claimed.is_cheat:
            # A cheat names the validator's own configuration.
            yield from self._draw(judge, "cheat", (claimed, computed), found)
            return
        same = labelled_key(claimed) == labelled_key(computed)
        label: Kind = "honest" if same else "honest, other version"
        yield from self._draw(judge, label, (claimed, computed), found)
        if same and not _identical(found):
            for cheat in self._cheats_of(computed):
                mixed = self._mixed(claimed, cheat, computed)
                yield from self._draw(judge, "mixed", (claimed, computed), mixed, cheat)

    # --- a profile of the same pair ------------------------------------------------------------

    def seen(self) -> Iterator[Unit]:
        for pair, record in self.pairs:
            if not record.informative:
                continue
            found = self.terms(*pair)
            others = [other for _, other in self.pairs if not _same_pair(other, record)]
            order = np.random.default_rng(7).permutation(len(found))
            first = frozenset(found.nonces[place] for place in order[: len(order) // 2])
            half = _record(pair, first)
            if half is not None:
                judge = _Judge("", [*others, half])
                yield from self._seen(judge, "same pair", pair, first)
            elsewhere = [
                other
                for (left, _), other in self.pairs
                if _same_pair(other, record)
                and other.informative
                and left.vectors.challenge != pair[0].vectors.challenge
            ]
            if elsewhere:
                judge = _Judge("", [*others, *elsewhere])
                yield from self._seen(judge, "same pair, other challenge", pair, frozenset())

    def _seen(
        self,
        judge: _Judge,
        how: Literal["same pair", "same pair, other challenge"],
        pair: Pair,
        known: frozenset[int],
    ) -> Iterator[Unit]:
        honest: Kind = "honest, same pair"
        mixed: Kind = "mixed, same pair"
        if how == "same pair, other challenge":
            honest = "honest, same pair, other challenge"
            mixed = "mixed, same pair, other challenge"
        yield from self._draw(judge, honest, pair, self.terms(*pair).without(known))
        for cheat in self._cheats_of(pair[1]):
            both = self._mixed(pair[0], cheat, pair[1]).without(known)
            yield from self._draw(judge, mixed, pair, both, cheat)

    # --- parts ---------------------------------------------------------------------------------

    def terms(self, claimed: LabelledSet, computed: LabelledSet) -> NonceTerms:
        place = (claimed.labels["path"], computed.labels["path"])
        if place not in self._terms:
            self._terms[place] = terms(claimed, computed, claimed.predicted)
        return self._terms[place]

    def _cheats_of(self, computed: LabelledSet) -> list[LabelledSet]:
        return [one for one in self.sets if one.is_cheat and comparable(one, computed)]

    def _mixed(self, claimed: LabelledSet, cheat: LabelledSet, computed: LabelledSet) -> NonceTerms:
        """CHEATING_SHARE of the nonces answered by ``cheat``, the rest by ``claimed``.

        Its own part is left out: the shared mean would have to be made anew for every mixture.
        """
        honest, other = self.terms(claimed, computed), self.terms(cheat, computed)
        far = dict(zip(other.nonces, other.distances, strict=True))
        both = replace(honest.only(frozenset(far)), own=None)
        chosen = np.random.default_rng(11).random(len(both)) < CHEATING_SHARE
        cheating = np.array([far[nonce] for nonce in both.nonces])
        return replace(both, distances=np.where(chosen, cheating, both.distances))

    def _draw(
        self,
        judge: _Judge,
        kind: Kind,
        pair: Pair,
        found: NonceTerms,
        cheat: LabelledSet | None = None,
    ) -> Iterator[Unit]:
        claimed, computed = pair
        nulls = judge.nulls(claimed, computed)
        name = f"{claimed.labels['path']} by {computed.labels['path']}"
        for n in SIZES:
            if len(found) < n:
                continue
            index = subsets(len(found), n, self.draws)
            distances = found.distances[index]
            if nulls is None:
                convicted = count_rule(distances, NETWORK)
            else:
                convicted = p_values(nulls, distances, own_values(found, index)) < PROFILE_ALPHA
            total = int(convicted.sum())
            differs = kind == "honest, other version"
            yield Unit(
                kind=kind,
                model=model_name(computed),
                held_out=judge.held_out,
                name=name if cheat is None else f"{name} with {cheat.labels['path']}",
                n=n,
                basis="published thresholds" if nulls is None else nulls.basis,
                draws=self.draws,
                convicted=0 if differs else total,
                by_count=int(count_rule(distances, COUNT_RULE).sum()),
                withheld=total if differs else 0,
            )


def _record(pair: Sequence[LabelledSet], only: frozenset[int] | None = None) -> PairRecord | None:
    a, b = pair
    return pair_record(
        (a.vectors, b.vectors),
        labelled_key(a),
        (deployment(a) or "", deployment(b) or ""),
        predicted=(a.predicted, b.predicted),
        hidden_size=hidden_size_of(a.labels["model"]),
        only=only,
    )


def _forged(computed: LabelledSet) -> NonceTerms:
    """A node that sends, for each nonce, what all other nonces of the block predict of it."""
    hidden = hidden_size_of(computed.labels["model"])
    made = replace(computed.vectors, vectors=computed.predicted)
    guess = {} if hidden is None else predicted_vectors(made, hidden)
    return terms(replace(computed, vectors=made), computed, guess)


def _same_pair(a: PairRecord, b: PairRecord) -> bool:
    return a.key == b.key and a.hardware == b.hardware


def _identical(found: NonceTerms) -> bool:
    return bool(np.mean(found.distances < 1e-3) >= 0.5)
