"""The words of docs/poc-detection.md."""

from __future__ import annotations

from collections.abc import Mapping

from assay.poc.constants import MIN_NONCES, PRIOR_DOF, PROFILE_ALPHA, WEIGHTS
from assay.poc.evaluation import CHEATING_SHARE, COUNT_RULE

BASES = {
    "configuration": "other pairs, same configuration",
    "model": "same model, other configurations",
    "architecture": "other models of the architecture",
    "published thresholds": "nothing: published thresholds 0.4 / 0.1 / 0.05",
}


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in numbers.items())


HEAD = f"""# What a profile for vectors detects

This page is made by `python -m assay.poc.detection FOLDER > docs/poc-detection.md`, FOLDER being the
labelled sets (78 recordings of four models of three families, not part of this repository).

- Profile: convicts when the combined p-value is below {PROFILE_ALPHA}; {MIN_NONCES} nonces at least.
  Weights of the statistics: {_listed(WEIGHTS)}. Degrees of freedom that the
  pooled spread counts for: {_listed(PRIOR_DOF)}.
- Count rule, on the same draws: distance {COUNT_RULE.dist_threshold}, rate {COUNT_RULE.p_mismatch},
  alpha {COUNT_RULE.alpha}, which networks set for MiniMax.
- A figure is the mean over pairs of the share of their drawn subsets of n nonces. Intervals are Wilson,
  95 %, with a pair as one trial: subsets of one pair share its error. Pairs that share a recording are
  not independent either, so the intervals are still too narrow. *Judged*: subsets in all.
- A cheating claim names the validator's own configuration. A quarter means {CHEATING_SHARE:.0%} of the
  nonces. Honest pairs include those that are equal bit by bit.

## Targets
"""

UNSEEN = """For every kind of GPU a profile is made of honest pairs that do not touch it (nor hold vectors
equal bit by bit to one of its recordings), and all pairs that touch it are judged by that profile.

- *Withheld*: the claim is from another engine version than the recomputation, and would be convicted if it
  were not. It is reported as a difference of configuration, not as fraud.
- The forger knows the real vectors of all other nonces of the block and runs no model.
- A quarter of cheating on hardware the profile has not seen is mostly missed: a few far nonces are also what
  honest hardware shows (MiniMax 2026-04 on H200 has a third of them). Record the pair."""

SEEN = """The profile has half of the pair's nonces and is asked about the other half; or it has other
challenges of the pair. Where a quarter of cheating is missed, the honest recordings themselves are
mixtures: up to a third of the nonces of MiniMax 2026-04 on H200, and a tenth to a fifth on A100 and
H100, are as far from other engines as cheating ones are. A newer image of the model (2026-05) does not
do this, and nothing is missed there. What would close it: an image without the fault, or more nonces."""

WEIGHT = """Of all choices this one matters most. The spreads of the eight configurations that have one do not
differ by more than chance, which speaks for a heavy weight; eight cannot prove that the next one is
like them, which speaks against it. More recorded pairs in a configuration make the weight matter less."""

NOTES = """## What this does not show

- Four cheats only: GPTQ int4, W8A16, AWQ int4, NVFP4. All differ at least twice as far as honest hardware.
  A cheat nearer than that (bfloat16 against fp8 weights, say) has not been measured.
- So few pairs bound the rate of honest ones convicted by the upper end of the interval, not by 0.5 %.
- Levels and spreads come from the other hardware alone. The choice of statistics, their weights and the
  degrees of freedom above were made with all sets in view.
"""
