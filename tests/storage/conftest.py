"""The backends that the contract suite runs against, and the clock they use.

A further backend is one more class in BACKENDS: every test that takes `store` or `backend` then runs against
it too. With --postgres all run against PostgreSQL instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import LeaseKind, Store

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

LEASE_COUNTS = {LeaseKind.GROUP: 6, LeaseKind.TRANSACTION: 5, LeaseKind.DATA: 4, LeaseKind.REPLICAS: 3}


class StoreClock:
    """The store's own time, moved by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class Backend(Protocol):
    """A place that holds state, and store objects over it."""

    def store(self) -> Store:
        """An unopened store object for the state. Only one of them is open at a time."""


class MemoryBackend:
    def __init__(self, directory: Path, clock: StoreClock | None) -> None:
        self._store = MemoryStore(**_now_ms(clock), lease_counts=LEASE_COUNTS)

    def store(self) -> Store:
        return self._store


class SqliteBackend:
    def __init__(self, directory: Path, clock: StoreClock | None) -> None:
        self._directory = directory
        self._clock = clock

    def store(self) -> Store:
        return SqliteStore(self._directory / "data", **_now_ms(self._clock), lease_counts=LEASE_COUNTS)


class PostgresBackend:
    def __init__(self, url: str, clock: StoreClock | None) -> None:
        self.url = url
        self._clock = clock

    def store(self) -> Store:
        return PostgresStore(self.url, **_now_ms(self._clock))


def _now_ms(clock: StoreClock | None) -> Any:
    return {} if clock is None else {"now_ms": clock}


BACKENDS = {"memory": MemoryBackend, "sqlite": SqliteBackend}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make_backend" in metafunc.fixturenames:
        names = ["postgres"] if metafunc.config.getoption("--postgres") else BACKENDS
        metafunc.parametrize("make_backend", names, indirect=True)


@pytest.fixture
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[StoreClock | None], Backend]:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres_server")
        return partial(PostgresBackend, server.new_database(LEASE_COUNTS))
    return partial(BACKENDS[request.param], tmp_path)


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
def backend(make_backend: Callable[[StoreClock | None], Backend], clock: StoreClock) -> Backend:
    return make_backend(clock)


@pytest.fixture
async def store_with_its_own_clock(
    make_backend: Callable[[StoreClock | None], Backend],
) -> AsyncIterator[Store]:
    """A store whose clock is not the test's."""
    store = make_backend(None).store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    store = backend.store()
    await store.open()
    yield store
    await store.close()
