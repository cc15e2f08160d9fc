"""Every test in this folder that uses `place` runs once per target; tests for members of both protocols run
once for each protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from muster.client import Admin, Producer
from tests.interop.behaviour.place import Place
from tests.interop.behaviour.targets import TARGETS, Target, running


@pytest.fixture(scope="package")
def started() -> Iterator[Callable[[str], Target]]:
    """A target by its name. Each starts when it is first asked for, and runs until the folder is done: files
    come one after the other, and each file needs every target."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(name)))


@pytest.fixture(scope="package", params=TARGETS)
def target(request: pytest.FixtureRequest, started: Callable[[str], Target]) -> Target:
    """One of each target, shared by all tests in this folder."""
    return started(request.param)


@pytest.fixture
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of the test's members: see `place.BOTH`."""
    protocol: str = getattr(request, "param", "classic")
    return protocol


@pytest.fixture
async def place(target: Target, protocol: str) -> AsyncIterator[Place]:
    async with Admin(target.bootstrap) as admin, Producer(target.bootstrap) as producer:
        yield Place(target.bootstrap, admin, producer, protocol)
