"""Where these tests keep partition logs: in files, or with --postgres in rows of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres
from tests.topics.support import TestRows


@pytest.fixture(scope="session")
def rows(postgres_server: Postgres) -> Iterator[TestRows]:
    rows = TestRows(postgres_server.new_database())
    yield rows
    rows.storage.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "logs_in" in metafunc.fixturenames:
        with_rows = metafunc.config.getoption("--postgres", default=False)
        files_only = metafunc.definition.get_closest_marker("files")
        metafunc.parametrize("logs_in", ["postgres"] if with_rows and not files_only else ["files"])


@pytest.fixture(autouse=True)
def _logs(request: pytest.FixtureRequest, logs_in: str) -> Iterator[None]:
    TestRows.in_use = request.getfixturevalue("rows") if logs_in == "postgres" else None
    yield
    TestRows.in_use = None
