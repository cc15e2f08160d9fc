"""One PostgreSQL for the tests of a module, and a database of its own for each."""

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
    """The url of a database that is ready for brokers."""
    return postgres.new_database()
