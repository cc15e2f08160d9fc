"""The backends that the contract suite runs against, and the clock they are given.

A further backend is one more class in BACKENDS: every test that takes `store` or `backend` then runs against
it too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import LeaseKind, Store

LEASE_COUNTS = {LeaseKind.GROUP: 6, LeaseKind.DATA: 4}


class StoreClock:
    """The store's own time, moved by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class Backend(Protocol):
    """One place where state lives, and store objects upon it."""

    def __init__(self, directory: Path, clock: StoreClock | None) -> None:
        """Without a clock the stores have their own."""

    def store(self) -> Store:
        """A store object for the state, not opened. Only one of them is open at a time."""


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


def _now_ms(clock: StoreClock | None) -> Any:
    return {} if clock is None else {"now_ms": clock}


BACKENDS: dict[str, type[Backend]] = {"memory": MemoryBackend, "sqlite": SqliteBackend}


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: StoreClock) -> Backend:
    made: Backend = request.param(tmp_path, clock)
    return made


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
async def store_with_its_own_clock(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    backend: Backend = request.param(tmp_path, None)
    store = backend.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    store = backend.store()
    await store.open()
    yield store
    await store.close()
