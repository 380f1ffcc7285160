"""Every number that decides a verdict, with where it comes from and what changing it changes.

Distances are per position, without unit, between 0 and 0.5 (spec replay, section 4).
"""

from __future__ import annotations

from typing import Final

# --- The published score (spec replay, section 4). Changing one breaks agreement with the networks
# --- that compute it and with data/inference/labels.csv.

IMPOSSIBLE_WIRE: Final = -9999.0
"""Log probability that stands for "impossible" in every published formula: vLLM's own clamp."""
RELATIVE_GUARD: Final = 1e-6
"""Added to |v| + |o| so that two zeros divide to 0."""
NON_FINITE_TERM: Final = 0.5
"""A term that cannot be computed counts as the largest one."""
SINGLE_ENTRY_GAP: Final = 100.0
"""With one claimed entry the second smallest is taken as ``m1 - 100``, hence next = m1 + 100.
The sign looks like a mistake; it is kept in the compatible score only."""
MIN_POSITIONS: Final = 100
"""Both generations divide by at least this many positions, so a short claim borrows similarity
it did not earn: ten positions at distance 0.036 score 0.996. Our verdict does not use it."""
SHORT_CORRECTION: Final = 0.10
"""Second generation: ``sum(d)/N - 0.10/sqrt(N)``, an allowance for short claims."""
DEFAULT_THRESHOLD: Final = 0.99
"""Similarity to exceed where no threshold is given (published default)."""
PUBLISHED_THRESHOLDS: Final = {
    "MiniMax-M2.7": 0.922,
    "DeepSeek-V4": 0.900,
    "Kimi-K2.6": 0.900,
    "GLM-5.3": 0.951,
}
"""Thresholds seen in use, for processed log probabilities, by a part of the model's name."""
CEILING_DISTANCE: Final = 0.30
"""A position farther than this is "above the ceiling"."""
CEILING_SHARE: Final = 0.02
"""More than floor(0.02 N) such positions are rejected."""
SUPPORT_SHARE: Final = 0.03
"""Processed mode: more than max(1, ceil(0.03 N)) positions whose forced token the validator's own
sampler could not draw are rejected."""

# --- Our verdict. Measured by bench/distances.py on SmolLM2-135M-Instruct, raw mode, top 5, 8
# --- prompts x 48 tokens at temperature 0.7, against the model in float32. Mean distance: computed in
# --- bfloat16 0.0064, int8 weights by rows 0.0115, fp8 0.025, int4 in groups of 32 0.087 (claims
# --- 0.071 to 0.108); two unrelated answers 0.18. Standard deviation / mean within a claim was 0.4 to
# --- 1.0, and neighbours were uncorrelated (-0.03 to 0.10).

DISTANCE_SHAPE: Final = 1.0
"""Shape of the gamma law that distances of one claim are taken to follow: 1 is the exponential
law (deviation = mean), wider than what was measured. A larger shape decides sooner."""
ERROR_RATE: Final = 0.01
"""A claim exactly at the limit passes, and fails, with this probability (one-sided each). Claims
better (worse) than the limit fail (pass) far less often. Smaller = more inconclusive."""
MIN_INFORMATIVE: Final = 12
"""Informative positions a pass needs. The mildest cheat measured (int8 weights) shows a position
within the default limit of 0.01 with probability 0.54 to 0.55; so many in a row are luck once in a
thousand: ceil(ln 0.001 / ln 0.55) = 12."""
MIN_INFORMATIVE_FAIL: Final = 5
"""Informative positions a fail by distance needs. Single honest positions reach 0.33
(kaitakuai-experiments, minimax-m27_en, validation-7), so one or two prove nothing."""
RAW_FAIL_LIMIT: Final = 1 - 0.951
"""Mean distance that is wrong in raw mode whatever the model: the tightest margin that a network
has published after calibration (GLM-5.3). Another dtype moves a claim by 0.006, int4 weights by
0.087; between the default pass limit 0.01 and this, an uncalibrated claim is inconclusive."""
PROCESSED_FAIL_LIMIT: Final = 0.10
"""The same for processed mode (or a cut distribution), per informative position: the loosest
published margin.
Honest MiniMax-M2.7 pairs across GPU kinds reach 0.084 (at 13 informative positions)."""
FLAT_FAIL_LIMIT: Final = 1 - 0.8616
"""The same for flat claims: the worst honest similarity on record, word-salad prompts on a live
fleet (case 51). Unrelated answers lie at 0.18."""
FLAT_ALTERNATIVES: Final = 2.5
"""Mean number of alternatives within 1 nat of the best, itself included, from which the
validator's own distributions make a claim flat. Plain answers of SmolLM2 at
temperature 0.7 have 1.4 to 2.2; five equally likely alternatives have 5."""
NEAR_BEST_NATS: Final = 1.0
"""What "within 1 nat" means: at least 1/e of the best alternative's probability."""
CEILING_MIN_POSITIONS: Final = 50
"""From here floor(0.02 N) allows one honest outlier; below, the ceiling only blocks a pass."""
MASS_TOLERANCE: Final = 1e-3
"""How far the listed probabilities may sum above 1 (float32 rounding gives 1e-5)."""
PADDING_SHARE: Final = 0.10
"""Share of impossible entries on one side, none on the other, that shows two different modes."""
SCALE_MIN_POSITIONS: Final = 8
SCALE_SPREAD: Final = 0.02
SCALE_OFFSET: Final = 0.05
"""Raw and processed log probabilities at a temperature T differ by the factor 1/T between
alternatives: named when the median factor is 5 % off 1 and the median deviation from it is below
2 % on at least 8 positions. Other weights scatter the factor by far more."""

# --- The choice channel (spec replay, sections 5 and 6). Fixed rules for claims without a profile;
# --- each may only convict beyond doubt.

GREEDY_BELOW: Final = 1e-5
"""vLLM takes a temperature below this for greedy (its sampling parameters, 0.32)."""
LEAST_TEMPERATURE: Final = 1e-2
"""vLLM raises a smaller positive temperature to this (same place)."""
LARGEST_VOCABULARY: Final = 300_000
"""More ids than any model served today has; only bounds what unlisted ids may weigh at T > 1."""
CUT_SLACK: Final = 1e-3
"""An id this close to the edge of top-p (probability) or min-p (nats) counts as neither kept nor
cut: float32 sums over a vocabulary differ by less."""
MARGIN_CLIP: Final = 2.0
"""Margins (nats) are clipped here before they are averaged, so that one position cannot make a
mean. The 99.9th percentile of what honest engines of different GPU kinds differ by between
two alternatives (recorded MiniMax-M2.7 pairs, processed mode at temperature 0.7) is 2.08."""
HONEST_MISMATCH: Final = 0.10
"""Share of tokens that differ from the validator's draw which an honest executor is allowed
without a profile. Measured: 2.05 % in bfloat16 against float32 (SmolLM2-135M, spec replay, section
5); 2.7 % a token across GPU kinds (30 partings over 1114 tokens of recorded seeded MiniMax-M2.7
pairs). int4 38 %, wrong seed 56 %."""
FOREIGN_MISMATCH: Final = 0.35
"""The same at contested positions (``CONTESTED_NATS``) for an executor that drew otherwise: below
what int4 weights and another seed show there. A pass needs fewer."""
CONTESTED_NATS: Final = 0.2
"""Entropy from which a position counts as contested: below it different draws agree for free."""
CHOICE_ERROR: Final = 1e-6
"""Chance at which a fixed rule of the choice channel convicts an executor at the honest limit."""
CONTRADICTION_SLACK: Final = 0.002
"""Nats by which another id must win on the claim's *own* numbers before that is a contradiction:
float32 noise and digits printed to 4 places move a score by a tenth of this."""
SHAPED_SLACK: Final = 0.02
"""The same where penalties or biases, which raw log probabilities do not show, were taken from the
validator's side: a repetition penalty of 1.2 carries 20 % of the two sides' difference along.
Divided by a temperature below 1."""
HONEST_CONTRADICTIONS: Final = 0.002
"""Share of contradictions an honest executor is allowed. The claim's own numbers and the seed
decide its own draw whatever the hardware, so honest claims have none (none in 11,447 positions of
SmolLM2-135M, float32 and bfloat16, decode and prefill); the allowance is for what nobody thought of.
"""
TAMPER_NATS: Final = 1.0
"""A single token that loses by this much on the claim's own numbers was not drawn by them: 50
times the larger slack above."""
TAMPER_SLACKS: Final = 50
"""And by this many times what such a lead may be off by, where that is more."""
TAMPER_NATS_REPLAYED: Final = 8.0
"""The same on the validator's numbers alone, where hardware counts: honest pairs of alternatives
differ by up to 2.1 nats on record (see ``MARGIN_CLIP``). Below temperature 1 logits, and what engines
differ by, are divided by it: so is this."""

# --- Likely causes: words for a reader. Nothing here changes a verdict. Distances as measured above
# --- (raw mode): other dtype 0.0064, int8 0.0115, fp8 0.025, int4 0.087, unrelated answers 0.18.

CLEAN_DISTANCE: Final = 0.01
"""Mean distance up to which numbers count as the validator's own: the published default margin."""
COARSE_WEIGHTS_DISTANCE: Final = 0.05
"""From here "such as int4": between fp8 and int4."""
STRANGER_DISTANCE: Final = 0.14
"""From here "another model": between int4 and unrelated answers."""
UNRELATED_DRAWS: Final = 0.8
"""Mismatches as a share of what draws with unrelated noise would show, from which the seed is named.
SmolLM2-135M, 32 claims of 64 tokens: another seed 0.76 to 1.05, int4 weights 0.40 to 0.78."""
UNRELATED_LISTED: Final = 0.74
"""The same over lists of 20 alternatives, which hide some mismatches: int4 weights 0.24 to 0.67."""
CUT_SHARE: Final = 0.5
"""Share of the mismatches that lie outside the request's own cuts from which the sampler is named."""
CUT_MARGIN: Final = 0.1
"""Nats by which such a token may lose before the cut: more, and it was not the cut that it lost by."""
TEMPERATURES: Final = tuple(number / 20 for number in range(2, 41))
"""Temperatures tried, 0.1 to 2, for one that explains tokens which the request's own does not."""
FIT_LEAST: Final = 3
"""Contradictions at the request's temperature before another one is looked for."""
FIT_CONTRAST: Final = 3
"""How many times fewer there must be at the other one."""
FEW_CONTRADICTIONS: Final = 2
"""Up to this many, an outlying token is a token replaced, and no pattern of the whole answer."""
SPAN_CONTRAST: Final = 4.0
"""A stretch is set apart when its mean distance is this many times that of the rest: int4 against
another dtype is 14, single claims of one source differ by up to 1.5."""
SPAN_EVIDENCE: Final = 10.0
"""And when the log likelihood ratio is this: about 1e-4 by luck over all stretches of 64 positions."""
SPAN_FLOOR: Final = 1e-4
"""Smaller distances count as this, so that equal numbers do not make an infinite contrast."""
SPAN_POSITIONS: Final = 256
"""Cells into which longer answers are cut for the search."""

# --- Calibration: profiles of honest runs, and what is concluded from them. The numbers of the tail
# --- were chosen on simulated honest claims whose own level varies (normal, gamma of shape 1 and 8,
# --- lognormal of sigma 0.3, 0.7 and 1, Student of 5 degrees), 50 to 500 claims a profile.

LADDER: Final = (
    *(8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096, 6144, 8192),
)
"""Lengths (positions) at which a profile keeps the honest claims' statistics. A claim is held
against honest claims cut to the largest of them it reaches: a shorter cut spreads wider, so the
p-value errs towards innocence. Below the first there is no p-value."""
MIN_CALIBRATION_CLAIMS: Final = 20
"""Honest claims a group of a profile needs. The smallest p-value by rank alone is then 1/21."""
TAIL_MIN_CLAIMS: Final = 20
"""Honest claims before anything is said beyond the largest of them; below, ranks only."""
TAIL_SHARE: Final = 0.10
TAIL_MIN_EXCESSES: Final = 8
TAIL_MAX_EXCESSES: Final = 25
"""This share of the honest claims, and within these bounds, gives the scale of the tail by its
excess over the rest. Few of few claims would not reach into the tail: 8 of 20 is wide, and errs
towards innocence (0 to 0.5 times the stated 1e-3 in all laws but the last, 1.8 there)."""
TAIL_SHAPE: Final = 0.25
"""Smallest shape of the generalised Pareto tail: heavier than any honest statistic simulated but a
lognormal with sigma 1, for which it is about right. With shape 0 (exponential) that one exceeded
its stated 1e-4 ten to thirty times as often. A larger shape convicts later."""
ROUNDING: Final = {
    "float32": {
        "value_distance": 1e-5,
        "value_peak": 1e-4,
        "choice_margin": 1e-5,
        "choice_peak": 1e-4,
    },
    "float16": {
        "value_distance": 2e-3,
        "value_peak": 1e-2,
        "choice_margin": 2e-3,
        "choice_peak": 5e-2,
    },
    "bfloat16": {
        "value_distance": 1e-2,
        "value_peak": 5e-2,
        "choice_margin": 1e-2,
        "choice_peak": 2e-1,
    },
}
"""Least scale of the tail where the honest claims are too equal to show one (fewer than
TAIL_MIN_EXCESSES stand out, as between engines that compute the same bits): what rounding in the
coarser dtype of the two sides may do. Measured on SmolLM2-135M, 32 claims of 64 tokens: float32,
other batches, largest claim 8e-7, largest position 4e-6; bfloat16 against float32, claims 0.005 to
0.010, positions up to 0.05, margins up to 0.003 (claim) and 0.15 nats (position). float16 keeps 3
bits more than bfloat16: taken as a quarter to a fifth of it. Other dtypes count as bfloat16."""
NEGLIGIBLE: Final = ROUNDING["float32"]
"""Values below these count as these, in both tails: rounding in float32, a thousandth of the mildest
cheat measured. Ranks alone would tell an executor that answers one request at a time (distance
1e-6) from one that answers eight (distance 0)."""
LOWER_TAIL_FLOOR: Final = 0.05
"""The lower tail speaks only when no honest claim came nearer than this share of the median one:
engines that are bit-equal have distance 0 honestly."""
LENGTH_KEPT: Final = 0.5
"""For a statistic that is a maximum only honest claims at least as long may be compared; so large
a share of them must be, else the claim is split into shorter pieces (union bound)."""
POWER_WANTED: Final = 0.95
"""Share of an attack's claims to be caught, where `assay power` says how much evidence is enough."""
SHARE_LEVEL: Final = 0.10
"""Claims with a p-value below it are counted for the estimated share of cheating; the honest ones
among them are one in ten, which is subtracted."""
CALIBRATOR_POWERS: Final = (0.2, 0.5, 0.8)
"""Exponents a of the p-to-e calibrators ``a p^(a-1)`` (Shafer 2021): small ones reward rare strong
evidence, large ones frequent weak evidence."""
BET_SHARES: Final = (0.1, 0.3, 1.0)
"""Shares of the stake that are bet on each claim: small ones lose little to honest claims, which
is what a mixture of honest and cheating ones needs."""
DEFAULT_FPR: Final = 1e-3
"""False-positive rate stated where none is given: one honest claim in a thousand, and, for the
evidence accumulated over an executor's claims, one honest executor in a thousand."""
