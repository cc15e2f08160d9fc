"""The pytest plugin as its users meet it: in its own pytest process, without this project's settings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

LONG_S = 300.0
PYTEST_ASYNCIO = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


class Run:
    """One run of pytest over one module, with one of the plugins for asynchronous tests, or none."""

    def __init__(self, folder: Path, program: str, *options: str, loops: str | None = None) -> None:
        (folder / "test_theirs.py").write_text(program)
        settings = "filterwarnings = error\n" + (PYTEST_ASYNCIO if loops == "asyncio" else "")
        (folder / "pytest.ini").write_text(f"[pytest]\n{settings}")
        # hypothesis takes longer to import than everything else together.
        without = [f"-pno:{plugin}" for plugin in ("asyncio", "anyio", "hypothesispytest") if plugin != loops]
        command = [sys.executable, "-m", "pytest", "-rA", "-pno:cacheprovider", "--strict-markers", *without]
        ended = subprocess.run(
            [*command, *options], cwd=folder, capture_output=True, text=True, timeout=LONG_S, check=False
        )
        self.code = ended.returncode
        self.text = ended.stdout + ended.stderr
        found = re.findall(r"^(PASSED|FAILED|ERROR) \S+::([\w\[\]-]+)", self.text, re.MULTILINE)
        self.outcomes = Counter(outcome for outcome, _ in found)
        self.of = {test: outcome for outcome, test in found}


PLAIN = """
import gc
import weakref

import pytest

from muster.coordinator.testing import Broker, Cluster

ports = []
had = []


def test_plain(muster):
    assert isinstance(muster, Broker)
    ports.append(muster.port)
    muster.create_topic("orders")
    assert muster.topic("orders").exists() == 1


def test_each_test_has_its_own(muster):
    assert muster.port not in ports
    muster.create_topic("orders")


@pytest.mark.muster(brokers=2, group_max_size=7)
def test_settings(muster_cluster):
    assert isinstance(muster_cluster, Cluster)
    assert len(muster_cluster.ports) == 2
    assert muster_cluster.settings.group_max_size == 7


def test_three_by_default(muster_cluster):
    assert len(muster_cluster.ports) == 3


class TestOfOneScope:
    pytestmark = pytest.mark.muster(scope="class")

    def test_first(self, muster):
        type(self).port = muster.port
        muster.create_topic("orders")
        muster.produce("orders", [b"tea"])

    def test_second_has_the_same_broker_and_nothing_of_the_first(self, muster):
        assert muster.port == self.port
        muster.create_topic("orders")
        assert muster.records("orders") == []


@pytest.mark.muster(scope="module")
def test_whoever_kills_one(muster_cluster):
    muster_cluster.kill(0)


@pytest.mark.muster(scope="module")
def test_harms_nobody_else(muster_cluster):
    muster_cluster.create_topic("orders", 3)
    muster_cluster.produce("orders", [b"tea"], partition=2)


@pytest.mark.muster(scope="module", brokers=2)
def test_whoever_disturbs_groups(muster_cluster):
    ports[:] = muster_cluster.ports
    muster_cluster.move("billing", to=1 - muster_cluster.coordinator_of("billing"))
    muster_cluster.hold("billing")
    muster_cluster.hold("payroll", reload=False)


@pytest.mark.muster(scope="module", brokers=2)
def test_disturbs_no_others(muster_cluster):
    assert muster_cluster.ports == ports  # the same brokers, not new ones
    assert not muster_cluster.release("billing")
    assert not muster_cluster.release("payroll")
    assert not muster_cluster.unpin("billing")


@pytest.mark.muster(scope="module", data="data")
def test_whoever_disturbs_requests(muster):
    ports[:] = muster.ports
    muster.create_topic("kept")
    muster.faults.add(close_before=True, times=None)


@pytest.mark.muster(scope="module", data="data")
def test_disturbs_no_others_though_data_is_kept(muster):
    assert muster.ports == ports
    assert muster.faults.rules() == []
    assert muster.topic("kept").exists(timeout=0) == 1


@pytest.mark.muster(scope="module", data="data")
def test_whoever_kills_one_with_data(muster):
    muster.kill(0)


@pytest.mark.muster(scope="module", data="data")
def test_harms_nobody_else_though_data_is_kept(muster):
    assert muster.topic("kept").exists(timeout=5) == 1
    muster.pause(0)


@pytest.mark.muster(scope="module", data="data")
def test_nor_does_whoever_pauses_one(muster):
    muster.produce("kept", [b"tea"])


@pytest.mark.muster(scope="module", brokers=2, data="data of two")
def test_whoever_stops_one_of_two(muster_cluster):
    muster_cluster.create_topic("kept", 2)
    muster_cluster.stop(1)


@pytest.mark.muster(scope="module", brokers=2, data="data of two")
def test_leaves_two(muster_cluster):
    muster_cluster.stop(1)  # raises unless it runs
    assert muster_cluster.topic("kept").exists() == 2


def test_whoever_has_had_a_broker(muster):
    had.append(weakref.ref(muster._core))


def test_keeps_it_no_longer():
    gc.collect()
    assert had[0]() is None


@pytest.mark.muster(scope="session", fresh=False)
def test_kept_1(muster):
    muster.create_topic("kept")


@pytest.mark.muster(scope="session", fresh=False)
def test_kept_2(muster):
    muster.create_topic("another")
    assert muster.topic("kept").exists(timeout=0) == 1


@pytest.mark.muster(scope="session", fresh=False, group_max_size=9)
def test_set_up_otherwise_it_is_another(muster):
    muster.create_topic("kept")


@pytest.mark.muster(no_such_setting=1)
def test_wrong_setting(muster):
    pass


@pytest.mark.muster(group_max_size=0)
def test_wrong_value(muster):
    pass


@pytest.mark.muster(scope="decade")
def test_wrong_scope(muster):
    pass


@pytest.mark.muster("module")
def test_wrong_arguments(muster):
    pass


@pytest.mark.muster(store="postgresql://127.0.0.1:1/nothing")
def test_wrong_store(muster):
    pass


@pytest.mark.muster(scope="session", fresh="no")
def test_wrong_fresh(muster):
    pass


@pytest.mark.muster(scope="class")
def test_in_no_class(muster):
    pass
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("plain"), PLAIN)


def test_fixtures_scopes_and_settings(plain: Run) -> None:
    wrong = {
        "wrong_setting",
        "wrong_value",
        "wrong_scope",
        "wrong_arguments",
        "wrong_fresh",
        "wrong_store",
        "in_no_class",
    }
    assert {test for test, outcome in plain.of.items() if outcome != "PASSED"} == {
        f"test_{each}" for each in wrong
    }
    assert plain.outcomes == {"PASSED": 22, "ERROR": 7}, plain.text


def test_a_marker_that_cannot_be_is_refused_in_a_line(plain: Run) -> None:
    for said in (
        "@pytest.mark.muster: unknown setting no_such_setting; muster serve --help lists them",
        "@pytest.mark.muster: group_max_size: 0 is not allowed; it takes a whole number",
        "@pytest.mark.muster: scope='decade' is not one of function, class, module, package, session",
        "@pytest.mark.muster: fresh='no' is not True or False",
        "@pytest.mark.muster: the broker failed to start: ",
        "@pytest.mark.muster: it takes keyword arguments only, not ('module',)",
        "@pytest.mark.muster: scope='class', but the test is in no class",
    ):
        assert said in plain.text
    assert "coordinator/testing/plugin.py" not in plain.text  # no traceback through our code
    assert "During handling of the above exception" not in plain.text  # nor the same again


AWAITED = """
import asyncio

import pytest

from muster.coordinator.testing import AsyncBroker, AsyncCluster, Broker

{marks}


async def test_awaited(muster):
    assert isinstance(muster, AsyncBroker)
    await muster.create_topic("orders", partitions=2)
    assert await muster.topic("orders").exists() == 2
    assert muster.group("billing").state == "Dead"


async def test_cluster(muster_cluster):
    assert isinstance(muster_cluster, AsyncCluster)
    await muster_cluster.kill(0)


def test_plain(muster):
    assert isinstance(muster, Broker)
"""


@pytest.mark.parametrize(
    ("loops", "marks", "passed"),
    [("asyncio", "", 3), ("anyio", "pytestmark = pytest.mark.anyio", 5)],  # anyio: on asyncio and on trio
)
def test_whoever_runs_asynchronous_tests(tmp_path: Path, loops: str, marks: str, passed: int) -> None:
    run = Run(tmp_path, AWAITED.format(marks=marks), loops=loops)
    assert (run.code, run.outcomes) == (0, {"PASSED": passed}), run.text


GIVEN = """
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from muster.coordinator.testing import AsyncBroker, Broker

{marks}
of_one_broker = settings(max_examples=2, database=None, suppress_health_check=list(HealthCheck))


@of_one_broker
@given(number=strategies.integers())
async def test_awaited(muster, number):
    assert isinstance(muster, AsyncBroker)
    await muster.no_open_transaction()


class TestInAClass:
    @pytest.mark.parametrize("again", [1, 2])
    @of_one_broker
    @given(number=strategies.integers())
    async def test_awaited(self, muster, number, again):
        assert isinstance(muster, AsyncBroker)


@of_one_broker
@given(number=strategies.integers())
def test_plain(muster, number):
    assert isinstance(muster, Broker)
"""


@pytest.mark.parametrize(
    ("loops", "marks", "passed"), [("asyncio", "", 4), ("anyio", "pytestmark = pytest.mark.anyio", 7)]
)
def test_asynchronous_tests_of_hypothesis_are_awaited_too(
    tmp_path: Path, loops: str, marks: str, passed: int
) -> None:
    run = Run(tmp_path, GIVEN.format(marks=marks), loops=loops)
    assert (run.code, run.outcomes) == (0, {"PASSED": passed}), run.text


def test_in_several_workers_at_once(tmp_path: Path) -> None:
    program = (
        "import pytest\n@pytest.mark.parametrize('number', range(8))\n@pytest.mark.muster(scope='session')\n"
    )
    program += "def test_one(muster, number):\n    muster.create_topic('orders')\n"
    run = Run(tmp_path, program, "-n", "2")
    assert (run.code, run.outcomes) == (0, {"PASSED": 8}), run.text


FAILING = """
import pytest
from muster.client import Consumer, Producer


async def test_fails(muster):
    await muster.create_topic("orders")
    settings = dict(group_id="billing", topics=["orders"], client_id="web-1")
    async with Consumer(muster.bootstrap, **settings) as consumer:
        await consumer.get(timeout=0.01)
        await muster.group("billing").stable(members=1)
        assert 1 == 2


async def test_fails_in_a_transaction(muster):
    await muster.create_topic("totals")
    async with Producer(muster.bootstrap, transactional_id="etl-1") as producer:
        async with producer.transaction() as transaction:
            await transaction.send("totals", b"1")
            assert 1 == 2


def test_fails_without_groups(muster):
    assert 1 == 2


async def test_waits_in_vain(muster):
    await muster.group("billing").stable(members=2, timeout=0.05)


def test_fails_without_a_broker():
    assert 1 == 2


@pytest.fixture
async def failing(muster):
    await muster.create_topic("orders")
    async with Consumer(muster.bootstrap, group_id="fixtures", topics=["orders"]) as consumer:
        await consumer.get(timeout=0.01)
        await muster.group("fixtures").stable(members=1)
        await muster.group("fixtures").stable(members=2, timeout=0.05)


async def test_has_a_fixture_that_fails(failing):
    pass


@pytest.fixture
async def failing_at_its_end(muster):
    await muster.create_topic("orders")
    yield
    async with Consumer(muster.bootstrap, group_id="ends", topics=["orders"]) as consumer:
        await consumer.get(timeout=0.01)
        await muster.group("ends").stable(members=1)
        await muster.group("ends").stable(members=2, timeout=0.05)


async def test_has_a_fixture_that_fails_at_its_end(failing_at_its_end):
    pass


@pytest.mark.muster(scope="class")
class TestTheLastOfItsClass:
    async def test_has_a_fixture_that_fails_at_its_end(self, failing_at_its_end):
        pass
"""


RERUN = """
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    runtestprotocol(item, nextitem=nextitem, log=False)  # as pytest-rerunfailures does
    runtestprotocol(item, nextitem=nextitem)
    return True
"""
FAILS = """
def test_fails(muster):
    assert muster.group("billing").state == "Stable"
"""


def test_a_test_that_is_run_again_shows_nothing_of_its_first_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(RERUN)
    run = Run(tmp_path, FAILS)
    assert run.outcomes == {"FAILED": 1}, run.text
    assert "'Dead' == 'Stable'" in run.text
    assert "closed" not in run.text


def test_a_failed_test_shows_the_timelines_of_its_groups(tmp_path: Path) -> None:
    run = Run(tmp_path, FAILING, loops="asyncio")
    assert run.outcomes == {"PASSED": 2, "FAILED": 5, "ERROR": 3}, run.text
    assert run.text.count("muster: group billing") == 1
    assert run.text.count("muster: group fixtures") == 1
    assert run.text.count("muster: group ends") == 2
    section = run.text.split("muster: group billing")[1].split("____")[0]
    assert "web-1" in section
    assert run.text.count("muster: transactions") == 1
    section = run.text.split("muster: transactions")[1].split("____")[0]
    assert re.search(r"^etl-1: \w+, producer \d+ in epoch \d+", section, re.MULTILINE), section
    # A failed wait is reported at the test's own line, not at ours.
    told = run.text.split("_ test_waits_in_vain _")[1].split("\n____")[0]
    assert ">       await muster.group" in told
    assert "timed out after 0.05 s waiting for group billing to be Stable with 2 members" in told
    assert "def wait_until" not in told


WARNED = """
import socket


def warn(muster):
    with socket.create_connection(("127.0.0.1", muster.port)) as browser:
        browser.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        browser.settimeout(60)
        try:
            browser.recv(1)
        except ConnectionError:
            pass


def test_one_captures(muster, capsys):
    warn(muster)
    assert "HTTP request on a Kafka listener" in capsys.readouterr().err


def test_another_captures(muster, capsys):
    warn(muster)
    assert "HTTP request on a Kafka listener" in capsys.readouterr().err


def test_fails(muster):
    warn(muster)
    assert 1 == 2
"""


def test_warnings_of_brokers_are_seen_after_a_test_that_captures_output(tmp_path: Path) -> None:
    run = Run(tmp_path, WARNED)
    assert run.outcomes == {"PASSED": 2, "FAILED": 1}, run.text
    report = run.text.split("_ test_fails _")[1]
    assert "Captured stderr call" in report
    assert "HTTP request on a Kafka listener" in report


MISUSED = """
import pytest
from muster.coordinator.testing import Broker, Cluster


def closed():
    with Broker() as broker:
        return broker


def test_closed():
    closed().create_topic("orders")


def test_closed_fact():
    closed().groups()


async def test_closed_awaited():
    await closed().aio.create_topic("orders")


def test_not_started():
    Broker().group("billing").stable()


def test_no_such_setting():
    Broker(no_such_setting=1)


def test_wrong_setting():
    Cluster(3, port="x")


def test_wrong_name(muster):
    muster.create_topic("no/topic")


def test_no_such_topic(muster):
    muster.records("orders")


async def test_no_such_topic_awaited(muster):
    await muster.records("orders")


def test_no_such_state(muster):
    muster.group("billing").in_state("Stabel")


def test_wrong_arguments(muster):
    muster.group("billing").stable(3)


def test_no_such_member(muster):
    muster.group("billing").evict("web-1")


def test_nobody_to_crash(muster):
    muster.group("billing").member("web-1").crash()


async def test_nobody_to_crash_awaited(muster):
    await muster.group("billing").member("web-1").crash()


def test_no_such_broker(muster_cluster):
    muster_cluster.stop(7)


def test_wrong_fault(muster):
    muster.faults.add(api="OffsetCommit", error="X")


async def test_wrong_fault_awaited(muster):
    await muster.faults.add(api="OffsetCommit", error="X")


async def test_wrong_fault_entered(muster):
    async with muster.faults.add(api="OffsetCommit", error="X"):
        pass


def test_wrong_duration(muster):
    muster.clock.advance("-3s")
"""


def test_misuse_is_told_at_the_tests_own_line(tmp_path: Path) -> None:
    run = Run(tmp_path, MISUSED, loops="asyncio")
    count = MISUSED.count("def test_")
    assert run.outcomes == {"FAILED": count}, run.text
    reports = re.split(r"^_+ (test_\w+) _+$", run.text.split("= short test summary")[0], flags=re.MULTILINE)
    assert len(reports[1::2]) == count
    for test, report in zip(reports[1::2], reports[2::2], strict=True):
        places = re.findall(r"^(\S+\.py):\d+: ", report, re.MULTILINE)
        assert places[0] == "test_theirs.py", report
        assert len(places) <= 2, f"{test}: {report}"


UNUSED = """
import pytest

pytestmark = pytest.mark.muster(group_max_size=7)


@pytest.mark.muster(brokers=3)
def test_one_broker(muster):
    pass


@pytest.mark.muster(brokers=3)
def test_a_fixture_of_their_own(tmp_path):
    pass


@pytest.mark.muster(brokers=2)
def test_both(muster, muster_cluster):
    assert (len(muster.ports), len(muster_cluster.ports)) == (1, 2)


def test_defaults_of_a_module_need_not_be_used():
    pass
"""


def test_a_marker_that_sets_nothing_up_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, UNUSED)
    assert run.of == {
        "test_one_broker": "ERROR",
        "test_a_fixture_of_their_own": "FAILED",
        "test_both": "PASSED",
        "test_defaults_of_a_module_need_not_be_used": "PASSED",
    }, run.text
    one_broker = "brokers=3 is for the fixture muster_cluster; the fixture muster is one broker"
    assert f"@pytest.mark.muster: {one_broker}" in run.text
    uses_none = (
        "test_a_fixture_of_their_own uses neither of the fixtures that it configures, "
        "muster and muster_cluster"
    )
    assert f"@pytest.mark.muster: {uses_none}" in run.text


OF_PARAMETERS = """
import pytest


@pytest.mark.muster(group_max_size=1, brokers=1)
class TestOfAClass:
    @pytest.mark.muster(group_max_size=2)
    @pytest.mark.muster(group_max_size=7, brokers=2)
    @pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.muster(group_max_size=3, brokers=3))])
    def test_both(self, muster_cluster, n):
        assert (len(muster_cluster.ports), muster_cluster.settings.group_max_size) == (n, n if n == 3 else 7)

    @pytest.mark.muster(brokers=2)
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.muster(brokers=1))])
    def test_number(self, muster, n):
        assert muster.settings.group_max_size == n
"""


def test_the_marker_of_a_parameter_is_closer_than_that_of_the_function(tmp_path: Path) -> None:
    run = Run(tmp_path, OF_PARAMETERS)
    assert (run.code, run.outcomes) == (0, {"PASSED": 3}), run.text


ASKED_FOR_WHILE_IT_RUNS = """
import pytest


@pytest.fixture(params=["muster", "muster_cluster"])
def broker(request):
    return request.getfixturevalue(request.param)


@pytest.mark.muster(group_max_size=2)
def test_either(broker):
    assert broker.settings.group_max_size == 2


@pytest.mark.muster(brokers=2)
def test_number(broker):
    assert len(broker.ports) in (1, 2)


@pytest.mark.muster(group_max_size=2)
def test_asks_itself(request):
    assert request.getfixturevalue("muster").settings.group_max_size == 2


@pytest.mark.muster(group_max_size=2)
@pytest.mark.xfail(reason="it does not pass")
def test_fails_anyway():
    assert 1 == 2
"""


def test_a_marker_is_for_fixtures_that_are_asked_for_while_the_test_runs_too(tmp_path: Path) -> None:
    run = Run(tmp_path, ASKED_FOR_WHILE_IT_RUNS)
    assert run.code == 0, run.text
    assert run.outcomes == {"PASSED": 5}, run.text


BROKERS_BY_DEFAULT = """
import pytest

pytestmark = pytest.mark.muster(brokers=2)


def test_one_broker(muster):
    assert len(muster.ports) == 1


def test_cluster(muster_cluster):
    assert len(muster_cluster.ports) == 2


class TestOfThree:
    pytestmark = pytest.mark.muster(brokers=3)

    def test_one_broker_of_a_class(self, muster):
        assert len(muster.ports) == 1

    @pytest.mark.muster(brokers=2)
    def test_misused(self, muster):
        pass
"""


def test_the_number_of_brokers_of_a_module_is_for_its_clusters(tmp_path: Path) -> None:
    run = Run(tmp_path, BROKERS_BY_DEFAULT)
    assert run.of == {
        "test_one_broker": "PASSED",
        "test_cluster": "PASSED",
        "test_one_broker_of_a_class": "PASSED",
        "test_misused": "ERROR",
    }, run.text


def test_nothing_is_imported_until_a_fixture_is_used(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        "import sys\n"
        "def test_light():\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] == 'muster'}\n"
        "    assert ours == {'muster', 'muster.coordinator', 'muster.coordinator.testing',\n"
        "                    'muster.coordinator.testing.plugin', 'muster.realtime'}\n"
        "    assert 'structlog' not in sys.modules and 'construct' not in sys.modules\n",
    )
    assert (run.code, run.outcomes) == (0, {"PASSED": 1}), run.text


FROZEN = """
import sys
import time

import pytest


def test_stands_still(monkeypatch, request):
    assert "muster.coordinator.testing.broker" not in sys.modules
    really = time.time()
    for name in ("time", "time_ns", "monotonic", "monotonic_ns"):
        monkeypatch.setattr(time, name, lambda: 1_700_000_000)
    muster = request.getfixturevalue("muster")
    assert abs(muster.clock.now().timestamp() - really) < 3600
    with pytest.raises(AssertionError, match=r"timed out after 0\\.05 s"):
        muster.group("billing").stable(timeout=0.05)
"""


def test_time_may_stand_still_before_the_first_broker_starts(tmp_path: Path) -> None:
    run = Run(tmp_path, FROZEN)
    assert (run.code, run.outcomes) == (0, {"PASSED": 1}), run.text


def test_the_fixtures_and_the_marker_explain_themselves(tmp_path: Path) -> None:
    text = Run(tmp_path, "", "--fixtures", "--markers").text
    assert "@pytest.mark.muster(brokers=3" in text
    assert re.search(r"^muster -- .*plugin\.py", Run(tmp_path, "", "--fixtures").text, re.MULTILINE)
