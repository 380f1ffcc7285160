"""Backends come, go, fall ill, and are brought back. Real processes; the engine is a stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.node.helpers import HOST, Driver, driven, runs, stand_in_config, until

from assay.node.backend import Backend, BackendState
from assay.node.failures import NoBackendError
from assay.node.guard import descendants


def server_pid(backend: Backend) -> int:
    assert backend.pid is not None
    return backend.pid


async def ready_again(driver: Driver, backend: Backend, generation: int) -> None:
    await until(
        lambda: backend.state is BackendState.READY and backend.generation == generation,
        f"ready with generation {generation}: {backend}",
    )


async def test_up_returns_when_both_are_ready_and_down_leaves_no_process(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        answer = await driver.up("a-model")
        assert (answer.status_code, answer.json()) == (200, {"status": "OK"})
        first = driver.node.config.backends.first_port
        assert [b.port for b in driver.node.pool.healthy()] == [first, first + 1]
        assert {b.model for b in driver.backends} == {"a-model"}
        status = await driver.status()
        assert (status["is_running"], status["is_starting"], status["status"]) == (
            True,
            False,
            "running",
        )
        assert status["error"] is None
        assert status["elapsed_seconds"] > 0
        state = await driver.get("/api/v1/state")
        assert state["state"] == "INFERENCE"
        assert state["inference_healthy"] is True
        assert state["loaded_model"] == "a-model"
        assert state["poc_status"] == "IDLE"
        assert state["poc_validation_inference"] is True
        pids = [server_pid(b) for b in driver.backends]
        assert all(runs(pid) for pid in pids)

        assert (await driver.http.post("/api/v1/inference/down")).json() == {"status": "OK"}
        assert not any(runs(pid) for pid in pids)
        assert driver.backends == ()
        assert (await driver.get("/api/v1/state"))["state"] == "STOPPED"
        again = await driver.http.post("/api/v1/stop")
        assert (again.status_code, again.json()) == (200, {"status": "OK"})


async def test_json_is_read_without_a_content_type(tmp_path: Path) -> None:
    """As network clients send it; an unknown key at the top level is ignored."""
    async with driven(stand_in_config(tmp_path, backends__count=1)) as driver:
        answer = await driver.http.post(
            "/api/v1/inference/up",
            content=b'{"model": "m", "dtype": "float16", "additional_args": [], "extra": 1}',
            headers={"content-type": ""},
        )
        assert answer.status_code == 200
        text = await driver.http.post(
            "/api/v1/inference/up", content=b"{", headers={"content-type": "text/plain"}
        )
        assert text.status_code == 400


async def test_up_replaces_what_runs(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        await driver.up("old")
        before = [server_pid(b) for b in driver.backends]
        await driver.up("new")
        assert not any(runs(pid) for pid in before)
        assert {b.model for b in driver.backends} == {"new"}


async def test_a_request_that_cannot_work_stops_nothing(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, backends__count=1)) as driver:
        await driver.up("good")
        pid = server_pid(driver.backends[0])
        for flags, says in (
            (("--port", "1"), "the node decides --port"),
            (("--refuse",), "--refuse: not a flag"),
            (("-tp", "two"), "--tensor-parallel-size two: expected a number"),
        ):
            answer = await driver.up("bad", *flags)
            assert answer.status_code == 400
            assert says in answer.json()["detail"]
        assert runs(pid)
        assert (await driver.status())["status"] == "running"


async def test_async_up_says_409_while_something_runs_or_starts(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, backends__count=1)) as driver:
        body = {"model": "model?health=503", "dtype": "auto", "additional_args": []}
        begun = await driver.http.post("/api/v1/inference/up/async", json=body)
        assert (begun.status_code, begun.json()) == (200, {"status": "OK"})
        twice = await driver.http.post("/api/v1/inference/up/async", json=body)
        assert twice.status_code == 409
        await until(lambda: driver.backends)
        status = await driver.status()
        assert (status["is_running"], status["is_starting"]) == (False, True)
        assert (await driver.http.get("/readyz")).status_code == 503
        # A plain up takes over, and whoever waited for the first one is told.
        await driver.up("other")
        assert (await driver.status())["is_running"] is True
        again = await driver.http.post("/api/v1/inference/up/async", json=body)
        assert again.status_code == 409


async def test_whoever_waits_for_an_up_that_is_taken_down_is_told(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        waiting = asyncio.create_task(driver.up("model?health=503"))
        await until(lambda: driver.backends)
        await driver.http.post("/api/v1/inference/down")
        answer = await waiting
        assert answer.status_code == 409
        assert "stopped" in answer.json()["detail"]


async def test_a_model_that_does_not_start_gives_its_log_as_the_error(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        answer = await driver.up("model?exit=3")
        assert answer.status_code == 500
        detail = answer.json()["detail"]
        assert "exit code 3" in detail
        assert "stand-in: giving up" in detail
        status = await driver.status()
        assert (status["status"], status["is_running"]) == ("failed", False)
        assert "giving up" in status["error"]
        assert (await driver.http.get("/health")).status_code == 503
        assert (await driver.http.get("/livez")).status_code == 200
        assert (await driver.up("a-better-one")).status_code == 200
        assert (await driver.http.get("/health")).status_code == 200


async def test_what_a_backend_prints_is_shown_without_its_secrets(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, backends__environment={"HF_TOKEN": "hf_of_the_test"})
    async with driven(config) as driver:
        answer = await driver.up("model?exit=3", "--api-key", "backend-secret")
        assert answer.status_code == 500
        assert "giving up" in answer.text
        for text in (answer.text, str(await driver.status())):
            assert "***" in text
            assert "backend-secret" not in text
            assert "hf_of_the_test" not in text


async def test_a_start_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    """GPU memory that is not yet free again, for instance."""
    mark = tmp_path / "second-time"
    async with driven(stand_in_config(tmp_path, backends__count=1)) as driver:
        answer = await driver.up(f'model?exit=1&exit_unless="{mark}"')
        assert answer.status_code == 200
        assert driver.backends[0].generation == 2


async def test_the_cold_start_limit_ends_a_start_with_the_reason(tmp_path: Path) -> None:
    config = stand_in_config(
        tmp_path, backends__count=1, backends__cold_start_s=1.5, backends__start_attempts=1
    )
    async with driven(config) as driver:
        answer = await driver.up("model?health=503")
        assert answer.status_code == 500
        assert "not ready after 1.5 s" in answer.json()["detail"]


async def test_ready_means_that_a_token_was_generated(tmp_path: Path) -> None:
    """A server whose /health is well but whose engine never answers is not ready."""
    config = stand_in_config(
        tmp_path, backends__count=1, backends__cold_start_s=1.5, backends__start_attempts=1
    )
    async with driven(config) as driver:
        answer = await driver.up("model?hang=true")
        assert answer.status_code == 500
        assert (BackendState.READY) not in [state for _, state, _ in driver.changes]


async def test_a_killed_backend_comes_back_and_the_other_is_left_alone(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        await driver.up()
        one, other = driver.backends
        pid, others = server_pid(one), server_pid(other)
        driver.changes.clear()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: one.state is not BackendState.READY)
        assert driver.node.pool.healthy() == [other]
        await ready_again(driver, one, 2)
        assert server_pid(one) != pid
        assert (server_pid(other), other.generation) == (others, 1)
        assert [change[1:] for change in driver.changes if change[0] == one.port] == [
            (BackendState.RESTARTING, 1),
            (BackendState.STARTING, 2),
            (BackendState.READY, 2),
        ]
        metrics = (await driver.http.get("/metrics")).text
        expected = f'restarts_total{{cause="crashed",port="{one.port}"}} 1.0'
        assert expected in metrics


async def test_a_crash_loop_ends_and_is_reported(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, backends__restart_limit=2)
    async with driven(config) as driver:
        await driver.up()
        one, other = driver.backends
        for generation in (1, 2, 3):
            await ready_again(driver, one, generation)
            os.kill(server_pid(one), signal.SIGKILL)
            await until(lambda: one.state is not BackendState.READY)
        await until(lambda: one.state is BackendState.FAILED)
        status = await driver.status()
        assert status["status"] == "running"  # the other one still serves
        assert f"port {one.port}: 2 restarts" in status["error"]
        assert "SIGKILL" in status["error"]
        assert driver.node.pool.healthy() == [other]
        assert (await driver.http.get("/health")).status_code == 200


async def test_unhealthy_after_three_failures_and_healthy_on_the_first_success(
    tmp_path: Path,
) -> None:
    config = stand_in_config(tmp_path, backends__count=1)
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, health=500)
        await until(lambda: one.state is BackendState.UNHEALTHY)
        assert "3 failed checks in a row: /health answered 500" in one.reason
        with pytest.raises(NoBackendError), driver.node.pool.lease():
            pass
        assert (await driver.get("/api/v1/state"))["inference_healthy"] is False
        assert (await driver.http.get("/health")).status_code == 503
        await driver.tell(one, health=200)
        await until(lambda: one.state is BackendState.READY)
        assert one.generation == 1


async def test_one_that_stays_unhealthy_is_restarted(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, backends__count=1, backends__unhealthy_restart_s=0.5)
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, health=500)
        await ready_again(driver, one, 2)


async def test_case_30_a_hang_with_requests_waiting_is_found_and_ended(tmp_path: Path) -> None:
    """Case 30, and the most reported complaint: ``/health`` says 200 during a hang of 20 minutes."""
    config = stand_in_config(tmp_path, backends__count=1, backends__hung_s=2.0)
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        pid = await driver.tell(one, hang=True, deaf=True)
        url = f"{one.base_url}/v1/completions"
        waiting = asyncio.create_task(driver.node.http.post(url, json={}, timeout=None))
        await until(lambda: one.state is BackendState.HUNG)
        assert "with requests waiting" in one.reason
        assert driver.node.pool.healthy() == []
        await ready_again(driver, one, 2)
        assert not runs(pid)
        with pytest.raises(Exception, match=r".*"):
            await waiting
        causes = [state for _, state, _ in driver.changes]
        assert causes.index(BackendState.HUNG) < causes.index(BackendState.RESTARTING)


async def test_a_hang_that_the_gauges_do_not_show_is_found_by_the_leases(tmp_path: Path) -> None:
    """vLLM writes its gauges when a step ends; a hang in the first step leaves them at 0."""
    config = stand_in_config(tmp_path, backends__count=1, backends__hung_s=2.0)
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, hang=True, statistics=False)
        with driver.node.pool.lease() as leased:
            assert leased is one
            await until(lambda: one.state is BackendState.HUNG)


async def test_case_30_a_proof_of_compute_batch_that_never_ends_is_a_hang(tmp_path: Path) -> None:
    """No request waits then, the gate refuses them; a batch that is merely long is left alone."""
    config = stand_in_config(tmp_path, backends__count=1, backends__hung_s=120)
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, gate=True, busy_seconds=119)
        await driver.asked_again(one, 3)
        assert (one.state, one.generation) == (BackendState.READY, 1)
        await driver.tell(one, busy_seconds=121)
        await ready_again(driver, one, 2)
        assert (one.port, BackendState.HUNG, 1) in driver.changes


@pytest.mark.parametrize("mood", [{"stale_gauge": 1}, {"stale_gauge": 1, "gate": True}])
async def test_case_30_silence_alone_is_no_hang(tmp_path: Path, mood: dict[str, object]) -> None:
    """Case 30: a busy device is no dead one. A gauge that an abort left behind, and a device that
    mining has: both backends work, and stay up.

    The node's clock runs fast, so that its doubts come soon, and its patience with the answer does
    not depend on this machine: 30 real seconds.
    """
    config = stand_in_config(tmp_path, backends__count=1, backends__hung_s=120)
    async with driven(config, clock=lambda: 60 * time.monotonic()) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, **mood)
        # The start's probe, and two of doubt: the first one was answered, and settled it.
        await driver.seen_so_many(one, 3)
        assert (one.state, one.generation) == (BackendState.READY, 1)


async def test_a_port_that_a_stranger_has_is_named(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, backends__count=1, backends__start_attempts=1)
    with socket.socket() as stranger:
        stranger.bind((HOST, config.backends.first_port))
        stranger.listen()
        async with driven(config) as driver:
            answer = await driver.up()
            assert answer.status_code == 500
            assert f"port {config.backends.first_port}" in answer.json()["detail"]
            assert "backends.first_port" in answer.json()["detail"]


async def test_one_that_ignores_sigint_is_killed_after_the_grace(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, backends__count=1, backends__stop_grace_s=0.3)
    async with driven(config) as driver:
        await driver.up("model?deaf=true")
        pid = server_pid(driver.backends[0])
        await driver.http.post("/api/v1/inference/down")
        assert not runs(pid)


async def test_nothing_of_the_tree_is_left_by_down(tmp_path: Path) -> None:
    """Workers that ignore every signal, each in a session of its own."""
    config = stand_in_config(tmp_path, backends__count=1, backends__stop_grace_s=1)
    async with driven(config) as driver:
        await driver.up("model?children=2")
        (one,) = driver.backends
        tree = descendants(server_pid(one))
        assert len(tree) == 2
        await driver.http.post("/api/v1/inference/down")
        assert not any(runs(pid) for pid in tree)


async def test_workers_do_not_outlive_a_server_that_was_killed(tmp_path: Path) -> None:
    """Two engines on one device is what a restart over a living worker would make."""
    config = stand_in_config(tmp_path, backends__count=1, backends__stop_grace_s=1)
    async with driven(config) as driver:
        await driver.up("model?children=2")
        (one,) = driver.backends
        tree = descendants(server_pid(one))
        os.kill(server_pid(one), signal.SIGKILL)
        await ready_again(driver, one, 2)
        assert not any(runs(pid) for pid in tree)


async def test_shared_memory_of_a_killed_backend_is_given_back(tmp_path: Path) -> None:
    """A crash must not fill /dev/shm: the tracker that unlinks it outlives the worker that holds
    it open, and is not killed together with it."""
    config = stand_in_config(tmp_path, backends__count=1, backends__stop_grace_s=1)
    name = f"assay-test-{os.getpid()}-{config.port}"
    async with driven(config) as driver:
        await driver.up()
        (one,) = driver.backends
        await driver.tell(one, shared=name, children=1)
        assert (Path("/dev/shm") / name).exists()
        assert len(descendants(server_pid(one))) == 2  # the worker and the tracker
        os.kill(server_pid(one), signal.SIGKILL)
        await ready_again(driver, one, 2)
        assert not (Path("/dev/shm") / name).exists()


async def test_each_backend_has_its_own_gpus_and_starts_are_staggered(tmp_path: Path) -> None:
    config = stand_in_config(
        tmp_path,
        backends__gpus=["0", "1", "2", "3"],
        backends__count=None,
        backends__stagger_s=0.4,
    )
    async with driven(config) as driver:
        await driver.up("model", "--tensor-parallel-size", "2")
        assert [b.gpus for b in driver.backends] == [("0", "1"), ("2", "3")]
        logs = [(tmp_path / "logs" / f"backend-{b.port}.log").read_text() for b in driver.backends]
        assert "model with 0,1" in logs[0]
        assert "model with 2,3" in logs[1]
        starts = [port for port, state, _ in driver.changes if state is BackendState.STARTING]
        assert starts == sorted(starts)


async def test_a_backend_with_a_key_is_probed_with_it(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, backends__count=1)) as driver:
        await driver.up("model", "--api-key", "backend-secret")
        (one,) = driver.backends
        assert one.headers == {"Authorization": "Bearer backend-secret"}
        assert (await driver.seen(one))[0]["authorization"] == "Bearer backend-secret"
        assert "backend-secret" not in str(await driver.status())
        assert "backend-secret" not in repr(one)
