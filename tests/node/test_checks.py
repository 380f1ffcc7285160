"""What follows from health checks and metrics over time. Times are given, none pass."""

from __future__ import annotations

import pytest

from assay.node.checks import Progress, Strikes, Work, read_work
from assay.node.config import Backends
from assay.node.keeper import Restarts

PAGE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_running{{engine="1",model_name="m"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",sleep_state="weights_offloaded"}} 0.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf"}} 3.0
vllm:iteration_tokens_total_count{{engine="0"}} 3.0
vllm:iteration_tokens_total_sum{{engine="0"}} 40.0
vllm:iteration_tokens_total_sum{{engine="1"}} 2.0
"""


def page(running: float = 0.0, waiting: float = 0.0, awake: float = 1.0) -> str:
    return PAGE.format(running=running, waiting=waiting, awake=awake)


def test_work_adds_up_the_engines_of_a_server() -> None:
    assert read_work(page()) == Work(42.0, False)
    assert read_work(page(running=1)) == Work(42.0, True)
    assert read_work(page(waiting=2)) == Work(42.0, True)


def test_case_44_a_sleeping_engine_owes_no_tokens() -> None:
    """Requests that arrive meanwhile wait, and that is no hang."""
    assert read_work(page(waiting=2, awake=0)) == Work(42.0, False)


@pytest.mark.parametrize("text", ["", "<html>", "# TYPE other gauge\nother 1\n", "a{ 1 2 3\n"])
def test_a_page_without_engine_numbers_says_nothing(text: str) -> None:
    assert read_work(text) is None


def test_strikes() -> None:
    strikes = Strikes(3)
    assert [strikes.note("x", now) for now in (1, 2)] == [True, True]
    assert strikes.note(None, 3) is True
    assert [strikes.note("x", now) for now in (4, 5, 6, 7)] == [True, True, False, False]
    assert strikes.lasted(16) == 10
    assert strikes.note(None, 17) is True
    assert strikes.lasted(18) == 0


def test_hung_is_no_movement_with_requests_there() -> None:
    progress = Progress(120)
    progress.note(Work(5, True), 0, 0)
    for now in range(2, 90, 2):
        progress.note(Work(5, True), 0, now)
        assert not progress.suspicious(now)
    progress.note(Work(5, True), 0, 90)
    assert progress.suspicious(90)
    assert not progress.hung(119)
    assert progress.hung(120)


def test_one_token_is_movement() -> None:
    progress = Progress(120)
    progress.note(Work(5, True), 1, 0)
    progress.note(Work(6, True), 1, 119)
    assert progress.silent_for(130) == 11


def test_silence_without_requests_is_rest() -> None:
    progress = Progress(120)
    progress.note(Work(5, False), 0, 0)
    progress.note(Work(5, False), 0, 1000)
    progress.note(Work(5, True), 0, 1001)
    assert progress.silent_for(1002) == 1


def test_requests_the_metrics_do_not_know_of_count_as_well() -> None:
    progress = Progress(120)
    progress.note(None, 1, 0)
    progress.note(None, 1, 60)
    assert progress.silent_for(60) == 60
    progress.proven(60)
    assert progress.silent_for(61) == 1
    progress.note(None, 0, 62)
    assert progress.silent_for(63) == 0


def test_the_pause_doubles_up_to_its_limit_and_old_restarts_are_forgotten() -> None:
    settings = Backends(
        restart_backoff_s=2, restart_backoff_max_s=10, restart_limit=4, restart_window_s=100
    )
    restarts = Restarts(settings)
    restarts.was_ready = True
    assert [restarts.pause(now) for now in (0, 1, 2, 3)] == [2, 4, 8, 10]
    assert restarts.pause(4) is None
    assert restarts.pause(101.5) == 8  # those of 0 and 1 are older than 100 s


def test_a_deployment_that_never_was_ready_has_few_attempts() -> None:
    restarts = Restarts(Backends(start_attempts=2, restart_backoff_s=3))
    assert restarts.pause(0) == 3
    assert restarts.pause(1) is None
