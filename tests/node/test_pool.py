"""Who gets the next request, and who is told of a change."""

from __future__ import annotations

import asyncio

import pytest

from assay.node.backend import Backend, BackendState
from assay.node.failures import NoBackendError
from assay.node.pool import Change, Pool


def pool_of(*ports: int) -> tuple[Pool, list[Backend]]:
    pool = Pool(clock=lambda: 0.0)
    backends = [Backend(port) for port in ports]
    pool.replace(backends)
    for backend in backends:
        pool.move(backend, BackendState.STARTING)
        pool.move(backend, BackendState.READY)
    return pool, sorted(backends, key=lambda backend: backend.port)


async def test_the_least_busy_healthy_one_is_leased() -> None:
    pool, (one, two, three) = pool_of(5003, 5001, 5002)
    assert [b.port for b in pool.healthy()] == [5001, 5002, 5003]
    pool.move(three, BackendState.UNHEALTHY, "ill")
    with pool.lease() as first, pool.lease() as second:
        assert {first, second} == {one, two}
        with pool.lease(one):
            assert pool.least_busy() is two
    assert [b.in_flight for b in (one, two, three)] == [0, 0, 0]


async def test_equally_busy_ones_take_turns() -> None:
    pool, backends = pool_of(5001, 5002, 5003)
    turns = []
    for _ in range(6):
        with pool.lease() as leased:
            turns.append(leased)
    assert turns == backends * 2


async def test_a_lease_ends_with_an_error_too() -> None:
    pool, (one,) = pool_of(5001)
    with pytest.raises(ValueError, match="gone"), pool.lease():
        raise ValueError("gone")
    assert one.in_flight == 0


async def test_no_healthy_backend_is_503_with_the_words_clients_look_for() -> None:
    pool, (one,) = pool_of(5001)
    pool.move(one, BackendState.HUNG)
    with pytest.raises(NoBackendError) as caught, pool.lease():
        pass
    assert (caught.value.status, caught.value.detail) == (503, "No vLLM backend available")


async def test_listeners_hear_every_change_with_its_generation() -> None:
    pool, (one,) = pool_of(5001)
    heard: list[Change] = []
    stop = pool.listen(heard.append)
    pool.move(one, BackendState.RESTARTING, "crashed")
    pool.move(one, BackendState.STARTING)
    stop()
    pool.move(one, BackendState.READY)
    assert [(c.old, c.new, c.generation) for c in heard] == [
        (BackendState.READY, BackendState.RESTARTING, 1),
        (BackendState.RESTARTING, BackendState.STARTING, 2),
    ]
    assert one.reason == ""


async def test_changed_returns_at_the_next_change_and_not_before() -> None:
    pool, (one,) = pool_of(5001)
    waiting = asyncio.create_task(pool.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.move(one, BackendState.UNHEALTHY)
    await waiting
