"""Scores and verdicts over claims and replays; numpy only, no engine."""
