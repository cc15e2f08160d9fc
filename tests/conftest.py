"""What every test shares: the event loops it runs on, and a check that it leaves nothing behind.

An asynchronous test runs once, on a plain asyncio loop; those of `OTHER_LOOPS` on others.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import hypothesis
import pytest

from tests.support.log_output import log_as_before

if TYPE_CHECKING:
    from tests.support.postgres import Postgres


def debugged() -> asyncio.AbstractEventLoop:
    """A loop in debug mode, which refuses calls from other threads; every task costs five times as much."""
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def uvloop() -> asyncio.AbstractEventLoop:
    uvloop = pytest.importorskip("uvloop")
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "debug": debugged,
    "uvloop": uvloop,
}

# uvloop's transports read and write in another order than asyncio's; above them a loop is a loop. Debug mode
# watches over what other threads hand to the loop.
OTHER_LOOPS: Final[Mapping[str, Sequence[str]]] = {
    "runtime": ("debug",),
    "server/test_admission.py": ("asyncio", "uvloop"),
    "server/test_connection.py": ("asyncio", "uvloop"),
    "server/test_connection_order.py": ("asyncio", "uvloop"),
    "server/test_fault_gate.py": ("uvloop",),
    "server/test_limits.py": ("asyncio", "uvloop"),
    "server/test_listener.py": ("asyncio", "uvloop"),
    "server/test_data.py": ("uvloop",),
    "server/security/test_authentication.py": ("asyncio", "uvloop"),
    "server/security/test_tls.py": ("asyncio", "uvloop"),
    "client/test_connection.py": ("asyncio", "uvloop"),
    "client/test_pool.py": ("asyncio", "uvloop"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=tuple(LOOPS),
        help="run every asynchronous test on this event loop",
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


def pytest_collection_finish() -> None:
    # Modules and tests stay to the end: looking through them again and again takes an eighth of the CPU time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    only = config.getoption("--loop")
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    names = (
        (only,) if only else OTHER_LOOPS.get(path) or OTHER_LOOPS.get(path.partition("/")[0], ("asyncio",))
    )
    return {name: LOOPS[name] for name in names}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for all tests of this process, each of which makes a database of its own."""
    from tests.support.postgres import Postgres

    with Postgres() as postgres:
        yield postgres


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    with log_as_before():
        yield


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
