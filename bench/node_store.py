"""What a node's rounds cost over its outbox alone: artifacts a second kept from backends.

Posts of 32 artifacts come every half second from each backend, and posts of 10,000 after an outage of
the node. ``append`` is the outbox with no round; ``keep`` sorts the same posts into the shares of eight
workers first; ``repeated`` are posts that are there already. Prints the ratio of the first two, of the
same run, and on PostgreSQL as well when given the URL of an empty database.

    python bench/node_store.py [database-url]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from assay.store.outbox import Campaign, Outbox
from assay.store.rounds import Artifact, Rounds
from assay.store.rounds_tables import RoundSpec, Worker

BACKENDS = 8
HEAD = {"public_key": "key", "block_hash": "hash", "block_height": 1, "node_id": 0}
URL = "http://receiver"
VECTOR = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
REPEATS = 5


def posts(size: int, count: int) -> list[list[Artifact]]:
    """``count`` posts of each backend in turn, ``size`` artifacts of its own class each."""
    return [
        [((at + p) * BACKENDS + backend, VECTOR) for p in range(size)]
        for at in range(0, size * count, size)
        for backend in range(BACKENDS)
    ]


def text(post: list[Artifact]) -> str:
    return ",".join(f'{{"nonce":{nonce},"vector_b64":"{vector}"}}' for nonce, vector in post)


def seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def appended(outbox: Outbox, made: list[list[Artifact]]) -> float:
    campaign = outbox.open_campaign(Campaign(URL, None, "generated", HEAD))

    def work() -> None:
        for index, post in enumerate(made):
            outbox.append(campaign.id, len(post), text(post), index)

    return seconds(work)


def kept(rounds: Rounds, made: list[list[Artifact]], identity: str) -> tuple[float, float]:
    """Seconds to keep all posts, and to find that all are there."""
    begun = rounds.begin(RoundSpec(identity, URL, None, HEAD, 0, 1), BACKENDS)
    workers: list[Worker] = []
    for share in rounds.shares(begun.id):
        workers.append(rounds.hire(begun.id, 5001 + share.group_id, 1))
        rounds.give([share], workers[-1])

    def work() -> None:
        for index, post in enumerate(made):
            rounds.keep(workers[index % BACKENDS].token, post)

    first = seconds(work)
    assert rounds.kept(begun.id) == sum(map(len, made))
    again = seconds(work)
    assert rounds.kept(begun.id) == sum(map(len, made))
    return first, again


def measure(database: str, size: int, count: int) -> None:
    made = posts(size, count)
    total = sum(map(len, made))
    outbox = Outbox(database)
    rounds = Rounds(outbox)
    runs = []
    for number in range(REPEATS):  # in turn, so that what else the machine does falls on both
        runs.append((appended(outbox, made), *kept(rounds, made, f"{size} {number}")))
    outbox.close()
    append, keep, again = (statistics.median(one) for one in zip(*runs, strict=True))
    ratio = statistics.median(one[1] / one[0] for one in runs)
    print(
        f"{len(made):5} posts of {size:6,}: append {total / append:10,.0f}/s,"
        f" keep {total / keep:10,.0f}/s ({1000 * keep / len(made):.2f} ms a post),"
        f" repeated {total / again:10,.0f}/s; keep / append {ratio:.2f} times the seconds"
    )


def main(databases: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for database in [str(Path(folder) / "node.db"), *databases]:
            print("PostgreSQL" if "://" in database else "SQLite")
            measure(database, 32, 25)
            measure(database, 10_000, 1)


if __name__ == "__main__":
    main(sys.argv[1:])
