"""The SQL store on a real PostgreSQL, with writers at once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from tests.support.results import make_result

from assay.errors import StoreError
from assay.store.database import Store

ROOT = Path(__file__).parents[2]


def test_frozen_rows_in_and_out(postgres_database: str) -> None:
    results = [make_result("a"), make_result("b", verdict="fail", label="cheat")]
    with Store(postgres_database) as store:
        for result in results:
            store.add(result)
        assert store.results() == results
        assert store.results("cheat") == results[1:]
    with Store(postgres_database) as again:
        assert again.results() == results


def test_a_database_without_an_encoding_holds_every_letter(
    postgres_url: str,
) -> None:
    """What initdb makes in the C locale, as in many containers."""
    name = "no_encoding"
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0"
        )
    engine.dispose()
    with Store(postgres_url.replace("/postgres?", f"/{name}?")) as store:
        store.add(make_result("a", label="größer 模型"))
        assert [r.label for r in store.results()] == ["größer 模型"]


def test_threads_that_replace_the_same_verdicts_at_once(postgres_database: str) -> None:
    with Store(postgres_database) as store:

        def add(number: int) -> None:
            store.add(make_result(f"claim-{number % 3}"))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(add, range(36)))
        assert len(store.results()) == 3


def test_processes_create_the_tables_at_once(postgres_database: str) -> None:
    script = (
        "import sys\n"
        "from assay.store.database import Store\n"
        "from tests.support.results import make_result\n"
        "sys.stdin.readline()\n"
        "with Store(sys.argv[1]) as store:\n"
        "    store.add(make_result(sys.argv[2]))\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, postgres_database, str(writer)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for writer in range(3)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors.decode()
    with Store(postgres_database) as store:
        assert len(store.results()) == 3


def test_a_database_of_a_newer_assay_is_refused(postgres_database: str) -> None:
    Store(postgres_database).close()
    engine = create_engine(postgres_database)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE assay_meta SET value = '99'")
    engine.dispose()
    with pytest.raises(StoreError, match="upgrade assay"):
        Store(postgres_database)
