"""What a receiver keeps, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.errors import StoreError
from assay.store import received
from assay.store.received import ConflictError, PorousError, ReceivedStore
from assay.store.received_tables import META, Arrival, Result, Sender, Vectors

SENDER = Sender("block", "key", 3, 100)
NO_KEY = Arrival(None, "0")


@pytest.fixture
def store(database: str) -> Iterator[ReceivedStore]:
    opened = ReceivedStore(database)
    yield opened
    opened.close()


def vectors(*nonces: int, k: int = 2) -> Vectors:
    return Vectors(k, nonces, [bytes([nonce % 256]) * 2 * k for nonce in nonces])


def only(store: ReceivedStore) -> received.Received:
    count, [one] = store.senders(10)
    assert count == 1
    return one


def test_vectors_come_out_as_they_went_in(store: ReceivedStore) -> None:
    store.add_vectors(SENDER, vectors(2**32 - 1, 5), NO_KEY)
    after, new = store.add_vectors(SENDER, vectors(300), NO_KEY)
    assert new
    assert store.vectors(SENDER) == {
        nonce: bytes([nonce % 256]) * 4 for nonce in (5, 300, 2**32 - 1)
    }
    assert (after.artifacts, after.nonce_min, after.nonce_max) == (3, 5, 2**32 - 1)
    assert after.porosity == (2**32 - 1) / 3
    assert only(store) == after


def test_nothing_of_a_request_is_kept_when_one_nonce_is_there(
    store: ReceivedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "ASKED_AT_ONCE", 2)  # the index counts over all questions
    store.add_vectors(SENDER, vectors(1, 2), NO_KEY)
    with pytest.raises(ConflictError, match="nonce 2 ") as caught:
        store.add_vectors(SENDER, vectors(7, 8, 9, 2), Arrival("k", "d"))
    assert caught.value.index == 3
    assert list(store.vectors(SENDER)) == [1, 2]
    # The key of what was refused is free: nothing came under it.
    assert store.add_vectors(SENDER, vectors(9), Arrival("k", "other"))[1]


def test_the_same_nonce_of_another_sender_is_another(store: ReceivedStore) -> None:
    others = (Sender("other", "key", 3), Sender("block", "other", 3), Sender("block", "key", 4))
    for sender in (SENDER, *others):
        store.add_vectors(sender, vectors(1), NO_KEY)
    assert store.senders(2)[0] == 4
    assert [s.sender for s in store.senders(2)[1]] == [others[2], others[1]]


def test_a_repeat_is_kept_once_and_a_key_is_used_once(store: ReceivedStore) -> None:
    assert store.add_vectors(SENDER, vectors(1), Arrival("k", "d"))[1]
    again, new = store.add_vectors(SENDER, vectors(1), Arrival("k", "d"))
    assert (new, again.artifacts) == (False, 1)
    with pytest.raises(ConflictError, match="Idempotency-Key"):
        store.add_vectors(SENDER, vectors(2), Arrival("k", "e"))


def test_a_repeat_in_another_process_is_kept_once(database: str) -> None:
    """F46: the receiver itself was restarted between the two."""
    for _ in range(2):
        store = ReceivedStore(database)
        store.add_vectors(SENDER, vectors(1, 2, 3), Arrival("k", "d"))
        assert only(store).artifacts == 3
        store.close()


def test_vectors_of_another_length_do_not_mix(store: ReceivedStore) -> None:
    store.add_vectors(SENDER, vectors(1), NO_KEY)
    with pytest.raises(ConflictError, match="k_dim is 3"):
        store.add_vectors(SENDER, vectors(2, k=3), NO_KEY)


def test_porosity_is_over_all_that_is_kept(store: ReceivedStore) -> None:
    store.add_vectors(SENDER, vectors(*range(10)), NO_KEY)
    with pytest.raises(PorousError, match="100"):
        store.add_vectors(SENDER, vectors(1100), NO_KEY, most_porous=100)
    after, _ = store.add_vectors(SENDER, vectors(1099), NO_KEY, most_porous=100)
    assert after.porosity == 1099 / 11
    assert list(store.vectors(SENDER)) == [*range(10), 1099]


def test_results_and_refusals_are_counted(store: ReceivedStore) -> None:
    for number, fraud in enumerate((True, False)):
        result = Result("r", 100, 5, 0.25, fraud, "{}")
        for repeat in range(2):
            assert store.add_result(SENDER, result, Arrival(f"k{number}", "d")) is (repeat == 0)
    store.reject(SENDER, "artifacts[0]: bad\0 " + "x" * 2000)
    one = only(store)
    assert (one.results, one.fraud_detected, one.rejected) == (2, 1, 1)
    assert (one.last_rejection or "").startswith("artifacts[0]: bad x")
    assert one.porosity is None


def test_threads_of_one_sender_lose_nothing(store: ReceivedStore) -> None:
    def add(first: int) -> None:
        store.add_vectors(SENDER, vectors(*range(first, first + 5)), Arrival(f"k{first}", "d"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, [5 * (number // 2) for number in range(40)]))
    assert only(store).artifacts == 100
    assert list(store.vectors(SENDER)) == list(range(100))


def test_another_version_is_refused(database: str) -> None:
    store = ReceivedStore(database)
    with store._engine.begin() as connection:
        connection.execute(META.update().values(version=99))
    store.close()
    with pytest.raises(StoreError, match="99"):
        ReceivedStore(database)
