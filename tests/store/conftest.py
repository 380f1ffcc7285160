"""``database``: a fresh empty database of each kind, SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from tests.support.postgres import NoPostgresError, postgres

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server for the session; the test is skipped with the reason where none can run."""
    pytest.importorskip(
        "psycopg", reason="psycopg is not installed: pip install vllm-assay[postgres]"
    )
    running = postgres()
    try:
        url = running.__enter__()
    except NoPostgresError as error:
        pytest.skip(f"PostgreSQL cannot run here: {error}")
    try:
        yield url
    finally:
        running.__exit__(None, None, None)


@pytest.fixture
def postgres_database(postgres_url: str) -> str:
    """URL of an empty database of this test's own."""
    name = f"test{next(_NUMBERS)}"
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return postgres_url.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Path or URL of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "test.db")
    return str(request.getfixturevalue("postgres_database"))
