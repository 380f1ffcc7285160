"""The statistics of one claim."""

from __future__ import annotations

import pytest
from tests.scoring.sides import claim_of, position, positions, replay_of

from assay.scoring.measure import STATISTICS, measure


def test_the_value_series_are_the_distances_the_verdict_uses() -> None:
    claim, replay = claim_of(positions(48, noise=0.5)), replay_of(positions(48))
    measured = measure(claim, replay)
    assert (measured.claim_id, measured.path, measured.mode) == ("c", "decode", "raw_logprobs")
    assert measured.positions == len(measured.series["value_distance"]) == 48
    values = measured.series["value_distance"]
    assert measured.statistics["value_distance"] == pytest.approx(sum(values) / 48)
    assert measured.statistics["value_peak"] == max(values)


def test_every_statistic_is_measured_or_missing_with_a_reason() -> None:
    pairs = [
        (claim_of(positions(20)), replay_of(positions(20))),
        (claim_of(positions(20)), replay_of(positions(20), logprobs_mode="processed_logprobs")),
        (claim_of(None), replay_of(None)),
        (claim_of(()), replay_of(positions(3))),
        (claim_of((position([(7, 0.0)]),)), replay_of((position([(7, 0.0)]),))),
    ]
    for claim, replay in pairs:
        measured = measure(claim, replay)
        assert set(measured.statistics) == set(measured.series)
        assert set(measured.series) | set(measured.missing) == set(STATISTICS)
        assert not set(measured.series) & set(measured.missing)
        assert all(measured.missing.values())
        assert all(measured.series.values())


def test_numbers_of_two_modes_are_not_measured() -> None:
    measured = measure(
        claim_of(positions(20)), replay_of(positions(20), logprobs_mode="processed_logprobs")
    )
    assert "value_distance" not in measured.series
    assert "processed_logprobs" in measured.missing["value_distance"]
