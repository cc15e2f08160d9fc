"""Every test in this folder that uses `place` runs once per target; tests for members of both protocols run
once for each protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from muster.client import Admin, Producer
from tests.interop.behaviour.place import Place
from tests.interop.behaviour.targets import TARGETS, Target, running


@pytest.fixture(scope="package", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One of each target, shared by all tests in this folder."""
    with running(request.param) as target:
        yield target


@pytest.fixture
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of the test's members: see `place.BOTH`."""
    protocol: str = getattr(request, "param", "classic")
    return protocol


@pytest.fixture
async def place(target: Target, protocol: str) -> AsyncIterator[Place]:
    async with Admin(target.bootstrap) as admin, Producer(target.bootstrap) as producer:
        yield Place(target.bootstrap, admin, producer, protocol)
