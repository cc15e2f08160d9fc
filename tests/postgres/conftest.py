"""One PostgreSQL server for the tests of a module, and a separate database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def store(postgres: Postgres) -> str:
    """URL of a database that is ready for brokers."""
    return postgres.new_database()
