"""What every test shares: the event loop under test, and a check that a test leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.support.postgres import Postgres


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop that asynchronous tests run on",
    )
    parser.addoption(
        "--postgres",
        action="store_true",
        help="run the suites that have several backends over PostgreSQL instead (needs its server)",
    )


def pytest_configure() -> None:
    # A shell that starts this in its background has it ignore Ctrl-C, and so all that tests end by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says how busy the machine is, no more.
    hypothesis.settings.register_profile("muster", deadline=None)
    hypothesis.settings.load_profile("muster")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if config.getoption("--loop") == "uvloop":
        import uvloop

        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for all tests of this process, each of which makes a database of its own."""
    from tests.support.postgres import Postgres

    with Postgres() as postgres:
        yield postgres


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> None:
    """Fail an asynchronous test that ends with a task still running or a transport still open.

    Set up before every other fixture of the test, so it looks when all of them are torn down.
    """
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_leftovers")


@pytest.fixture
async def _leftovers() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    yield
    # A cancelled task or a closing transport needs a turn or two of the loop to be gone.
    for _ in range(10):
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        transports = [t for t in getattr(loop, "_transports", {}).values() if not t.is_closing()]
        if not tasks and not transports:
            return
        await asyncio.sleep(0)
    pytest.fail(f"left behind: tasks {tasks!r}, transports {transports!r}")
