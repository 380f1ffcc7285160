"""The SQL store: round trips, versions, writers at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.results import make_result

from assay.errors import StoreError
from assay.store.database import Store, store_url
from assay.store.tables import STORE_VERSION


def test_frozen_rows_in_and_out(tmp_path: Path) -> None:
    results = [make_result("a"), make_result("b", verdict="fail", label="cheat")]
    with Store(tmp_path / "s.db") as store:
        for result in results:
            store.add(result)
        assert store.results() == results
        assert store.results("cheat") == results[1:]
    with Store(tmp_path / "s.db") as again:
        assert again.results() == results


def test_the_latest_come_newest_first(tmp_path: Path) -> None:
    results = [make_result(name) for name in "abc"]
    with Store(tmp_path / "s.db") as store:
        for result in results:
            store.add(result)
        newest = sorted(results, key=lambda r: r.decided_at)[::-1]
        assert [r.decided_at for r in store.latest(2)] == [r.decided_at for r in newest[:2]]
        assert len(store.latest(10)) == 3


def test_the_same_work_again_replaces_its_verdict(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(make_result("a", verdict="inconclusive", blame="validator"))
        store.add(make_result("a"))
        [result] = store.results()
    assert result.verdict.verdict == "pass"


def test_writers_wait_for_each_other_and_readers_for_nobody(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db"):
        mode = sqlite3.connect(tmp_path / "s.db").execute("PRAGMA journal_mode").fetchone()
    assert mode == ("wal",)


def test_many_threads_write_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:

        def add(number: int) -> None:
            store.add(make_result(f"claim-{number % 20}", label=f"writer-{number % 4}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(80)))
        assert len(store.results()) == 20


def test_many_processes_create_and_write_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from assay.store.database import Store\n"
        "from tests.support.results import make_result\n"
        "with Store(sys.argv[1]) as store:\n"
        "    for number in range(5):\n"
        "        store.add(make_result(f'{sys.argv[2]}-{number}'))\n"
    )
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "s.db"), str(writer)],
            cwd=root,
            stderr=subprocess.PIPE,
        )
        for writer in range(4)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    with Store(tmp_path / "s.db") as store:
        assert len(store.results()) == 20


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_database_of_a_newer_assay_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "s.db").close()
    change(tmp_path / "s.db", f"UPDATE assay_meta SET value = '{STORE_VERSION + 1}'")
    with pytest.raises(StoreError, match="upgrade assay"):
        Store(tmp_path / "s.db")


@pytest.mark.parametrize("table", ["assay_verdicts", "assay_claims"])
def test_a_row_of_an_unknown_version_is_refused(tmp_path: Path, table: str) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(make_result("a"))
    change(tmp_path / "s.db", f"UPDATE {table} SET schema_version = 99")
    with Store(tmp_path / "s.db") as store, pytest.raises(StoreError, match="version 99"):
        store.results()


def test_an_older_database_is_raised_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.store import database

    with Store(tmp_path / "s.db") as store:
        store.add(make_result("a"))
    steps = []
    monkeypatch.setattr(database, "STORE_VERSION", 3)
    monkeypatch.setattr(
        database, "MIGRATIONS", {1: lambda c: steps.append(1), 2: lambda c: steps.append(2)}
    )
    with Store(tmp_path / "s.db") as store:
        assert len(store.results()) == 1
    with Store(tmp_path / "s.db"):
        pass
    assert steps == [1, 2]


def test_something_else_than_a_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    file.write_text("this is a text file and no database at all, of some length" * 20)
    with pytest.raises(StoreError, match="cannot open the store"):
        Store(file)


@pytest.mark.parametrize("url", ["nonsense://x", "postgresql+nodriver://h/d"])
def test_an_unknown_url_is_named(url: str) -> None:
    with pytest.raises(StoreError):
        Store(url)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreError) as caught:
        Store("sqlite://user:hunter2@/nowhere/at/all.db")
    assert "hunter2" not in str(caught.value)


def test_paths_become_sqlite_urls() -> None:
    assert store_url(Path("a/b.db")) == "sqlite:///a/b.db"
    assert store_url("postgresql://h/d") == "postgresql://h/d"
