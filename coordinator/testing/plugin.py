"""The pytest plugin: the fixtures `muster` and `muster_cluster`, and the marker that configures them.

    async def test_orders(muster):                  # async API in `async def` tests
        await muster.create_topic("orders")

    def test_orders(muster):                        # blocking API in others
        muster.create_topic("orders")

    @pytest.mark.muster(scope="module", group_max_size=2)
    def test_small_groups(muster): ...

pytest loads this in every run where muster is installed, so the fixtures import muster lazily.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from muster import realtime  # noqa: F401 - before a test can stop the time

if TYPE_CHECKING:
    from muster.coordinator.testing.broker import AsyncCluster, Cluster
    from muster.coordinator.testing.snapshot import Snapshot

_MARKER: Final = (
    'muster(brokers=3, scope="function", fresh=True, **settings): configures the fixtures muster and '
    "muster_cluster. brokers is for muster_cluster only; scope is function, class, module, package or "
    "session; with a wider scope than function, fresh restores everything before each test; settings are "
    "muster's own, with underscores."
)
_SCOPES: Final = {
    "class": pytest.Class,
    "module": pytest.Module,
    "package": pytest.Package,
    "session": pytest.Session,
}
_GROUPS_SHOWN: Final = 10
_LINES_SHOWN: Final = 200
"""Maximum lines of a group's timeline in the report of a failed test."""
_TRANSACTIONS_SHOWN: Final = 20


class _Told:
    """What the report of a failed test says of brokers, which may be closed by then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Cluster | None = cluster
        self._sections: list[tuple[str, str]] = []

    def sections(self) -> list[tuple[str, str]]:
        cluster = self._cluster
        return self._sections if cluster is None else _stories(cluster) + _transactions(cluster)

    def close(self) -> None:
        """To be called before the brokers are closed, since fixtures that fail at their end report later."""
        self._sections, self._cluster = self.sections(), None


class _Kept:
    """Brokers shared by several tests, and the snapshot restored before each."""

    def __init__(self, make: Callable[[], Cluster], fresh: bool) -> None:
        self._make = make
        self._fresh = fresh
        self._start()

    def _start(self) -> None:
        self.cluster = self._make()
        self.told = _Told(self.cluster)
        # Brokers that are not in memory keep what earlier tests leave behind.
        self._begun_with: Snapshot | None = (
            self.cluster.snapshot() if self._fresh and self.cluster.settings.ephemeral else None
        )

    def renew(self) -> None:
        """Reset the brokers before the next test."""
        if not self._fresh:
            return
        from muster.coordinator.testing.thread import CALL_S

        try:
            core = self.cluster._core
            core.thread.run(core.undisturbed, CALL_S)
            if self._begun_with is not None:
                self.cluster.restore(self._begun_with)
        except Exception:  # for example, a test killed a broker; data that is not in memory stays
            self.cluster.close()
            self._start()

    def close(self) -> None:
        self.told.close()
        self.cluster.close()


_kept: Final = pytest.StashKey[dict[tuple[object, ...], _Kept]]()
"""The session's shared brokers."""
_used: Final = pytest.StashKey[list[_Told]]()
"""The brokers that a running test uses, until it is reported; there if it has had any."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def muster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The test's own in-memory broker on a free port: `AsyncBroker` in an `async def` test, `Broker` in any
    other. `.blocking` and `.aio` convert between the two. Configure it with `@pytest.mark.muster(...)`."""
    wanted = _wanted(request)
    wanted.pop("brokers", None)  # a class's or module's is for those tests that use muster_cluster
    own = [marker.kwargs["brokers"] for marker in _own_markers(request.node) if "brokers" in marker.kwargs]
    by_name = "muster" in getattr(request.node, "fixturenames", ())  # not by getfixturevalue
    if own and own[-1] != 1 and by_name and "muster_cluster" not in request.fixturenames:
        _misused(f"brokers={own[-1]!r} is for the fixture muster_cluster; the fixture muster is one broker")
    yield from _provided(request, 1, wanted)


@pytest.fixture
def muster_cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Like `muster`, but a cluster of three brokers, or as many as the marker says: `AsyncCluster` or
    `Cluster`."""
    wanted = _wanted(request)
    yield from _provided(request, wanted.pop("brokers", 3), wanted)


_FIXTURES: Final = ("muster", "muster_cluster")


@pytest.hookimpl(trylast=True)  # after a test that passed, since it may ask for a fixture as it runs
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that has the marker but uses neither fixture. On a class or module, the marker is the
    default for tests that use them."""
    if _own_markers(item) and _used not in item.stash:
        _misused(f"{item.name} uses neither of the fixtures that it configures, {' and '.join(_FIXTURES)}")


def _provided(
    request: pytest.FixtureRequest, brokers: int, wanted: dict[str, Any]
) -> Iterator[Cluster | AsyncCluster]:
    """`wanted`: the marker's arguments other than the number of brokers."""
    scope, fresh = wanted.pop("scope", "function"), wanted.pop("fresh", True)
    if not isinstance(fresh, bool):
        _misused(f"fresh={fresh!r} is not True or False")
    if scope == "function":
        with _started(brokers, wanted) as cluster:
            told = _Told(cluster)
            yield _lent(request, cluster, told)
            told.close()
    elif scope in _SCOPES:
        kept = _kept_in(request, scope, brokers, fresh, wanted)
        yield _lent(request, kept.cluster, kept.told)
    else:
        scopes = ", ".join(["function", *_SCOPES])
        _misused(f"scope={scope!r} is not one of {scopes}")


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The markers' arguments; the closest marker wins, so a module's `pytestmark` is the default for its
    tests."""
    wanted: dict[str, Any] = {}
    of_parents = [marker for node in request.node.listchain()[:-1] for marker in _own_markers(node)]
    for marker in of_parents + _own_markers(request.node):
        if marker.args:
            _misused(f"it takes keyword arguments only, not {marker.args!r}")
        wanted.update(marker.kwargs)
    return wanted


def _own_markers(node: pytest.Item | pytest.Collector) -> list[pytest.Mark]:
    """Without those of its class or module; the closest last, which is that of a test's parameter."""
    of_parameters = getattr(getattr(node, "callspec", None), "marks", ())
    of_itself = [marker for marker in reversed(node.own_markers) if marker not in of_parameters]
    return [marker for marker in (*of_itself, *of_parameters) if marker.name == "muster"]


def _started(brokers: int, settings: Mapping[str, Any]) -> Cluster:
    from muster.coordinator.server.listener import BindError
    from muster.coordinator.storage.store import StoreError
    from muster.coordinator.testing.broker import Broker, Cluster

    try:
        cluster = Broker(**settings) if brokers == 1 else Cluster(brokers, **settings)
    except (TypeError, ValueError) as error:
        _misused(str(error))
    try:
        return cluster.start()
    except (StoreError, BindError) as error:
        _misused(f"the broker failed to start: {error}")


def _kept_in(
    request: pytest.FixtureRequest, scope: str, brokers: int, fresh: bool, settings: Mapping[str, Any]
) -> _Kept:
    """The scope's brokers with this configuration; the first test that needs them starts them."""
    place = request.session if scope == "session" else request.node.getparent(_SCOPES[scope])
    if place is None:
        _misused(f"scope={scope!r}, but the test is in no {scope}")
    of_session = request.session.stash.setdefault(_kept, {})
    key = (place.nodeid, scope, brokers, fresh, repr(sorted(settings.items())))
    kept = of_session.get(key)
    if kept is None:
        kept = of_session[key] = _Kept(lambda: _started(brokers, settings), fresh)
        place.addfinalizer(_ending(of_session, key))
    else:
        kept.renew()
    return kept


def _ending(of_session: dict[tuple[object, ...], _Kept], key: tuple[object, ...]) -> Callable[[], None]:
    return lambda: of_session.pop(key).close()


def _misused(why: str) -> NoReturn:
    """Report a mistake in the test, without a traceback through muster or the error it came from."""
    raise pytest.fail.Exception(f"@pytest.mark.muster: {why}", pytrace=False) from None


def _lent(request: pytest.FixtureRequest, cluster: Cluster, told: _Told) -> Cluster | AsyncCluster:
    """The blocking or async API for the requesting test."""
    request.node.stash.setdefault(_used, []).append(told)
    # Methods are bound anew for each test.
    return cluster.aio if _is_async(getattr(request.function, "__func__", request.function)) else cluster


@cache  # since anyio replaces hypothesis's `inner_test` by a function that is not async
def _is_async(function: Any) -> bool:
    """Whether a test is awaited, beneath its decorators, hypothesis's `given` among them."""
    beneath = inspect.unwrap(function)
    given = getattr(beneath, "hypothesis", None)
    return inspect.iscoroutinefunction(inspect.unwrap(getattr(given, "inner_test", beneath)))


# --- reports ------------------------------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)  # the kind of wrapper that every pytest since 7 supports
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the groups' timelines and the state of transactions to the report of a failed test or fixture."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    used = item.stash.get(_used, [])
    if report.failed:
        for told in used:
            report.sections += told.sections()
    if report.when == "teardown":
        used.clear()


def _stories(cluster: Cluster) -> list[tuple[str, str]]:
    try:
        stories = cluster.stories()
    except Exception as error:  # the test's own failure matters more
        return [("muster", f"no timelines: {error!r}")]
    sections = []
    for group_id, lines in list(stories.items())[:_GROUPS_SHOWN]:
        shown = lines[-_LINES_SHOWN:]
        left_out = [f"({len(lines) - len(shown)} older entries omitted)"] if len(lines) > len(shown) else []
        sections.append((f"muster: group {group_id}", "\n".join(left_out + shown)))
    if len(stories) > _GROUPS_SHOWN:
        sections.append(("muster", f"and {len(stories) - _GROUPS_SHOWN} more groups"))
    return sections


def _transactions(cluster: Cluster) -> list[tuple[str, str]]:
    try:
        transactions = cluster.transactions()
    except Exception as error:  # as above; for example, a broker was killed
        return [("muster", f"no transactions: {error!r}")]
    lines = [str(each) for each in transactions[:_TRANSACTIONS_SHOWN]]
    if len(transactions) > _TRANSACTIONS_SHOWN:
        lines.append(f"and {len(transactions) - _TRANSACTIONS_SHOWN} more transactional ids")
    return [("muster: transactions", "\n".join(lines))] if lines else []
