"""`muster.coordinator.testing`: brokers in a thread, for other projects' tests."""

from __future__ import annotations

import asyncio
import errno
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.config import SettingError
from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.listener import BindError
from muster.coordinator.storage.store import NodeRow, StoreError
from muster.coordinator.testing import Broker, Cluster, FaultError, WaitFailed, core
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.server.test_classic_group import join, stable_member
from tests.support.leases import TERM_MS
from tests.support.wire import Wire
from tests.testing.test_thread import Watched

DEADLINE_S = 20


async def coordinator(cluster: Cluster, port: int, group_id: str = "orders") -> tuple[int, int]:
    """(error code, node id) as the broker on `port` reports it."""
    async with await Wire.connect(port) as wire:
        found = await wire.call(FindCoordinatorRequest(key=group_id), 2)
        return found.error_code, found.node_id


async def find_coordinator(cluster: Cluster, port: int, *, other_than: int) -> int:
    """Ask until a node other than `other_than` is the coordinator."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            error, node_id = await coordinator(cluster, port)
            if error == ErrorCode.NONE and node_id != other_than:
                return node_id


def commit(offset: int) -> OffsetCommitRequest:
    part = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequest.Topic(name="t", partitions=[part])
    return OffsetCommitRequest(group_id="orders", member_id="", topics=[topic])


async def committed(wire: Wire) -> int:
    response = await wire.call(OffsetFetchRequest(group_id="orders", topics=None), 5)
    if response.error_code:
        raise KafkaError(response.error_code)
    return int(response.topics[0].partitions[0].committed_offset)


def test_a_broker_that_was_closed_may_be_started_again() -> None:
    broker = Broker()
    for _ in range(2):
        with broker:
            with pytest.raises(WaitFailed):
                broker.group("g").stable(timeout=0.02)
            broker.create_topic("t")  # nothing is left of the first run


def test_starting_what_runs_is_harmless() -> None:
    with Broker().start() as broker:
        broker.create_topic("orders")
        at = broker.bootstrap
        assert broker.start().bootstrap == at
        assert broker.topic("orders").exists() == 1


@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "blocking"])
def test_those_who_start_it_at_once_start_it_once(monkeypatch: pytest.MonkeyPatch, awaited: bool) -> None:
    made: list[Brokers] = []

    def make(*arguments: Any, **more: Any) -> Brokers:
        made.append(Brokers(*arguments, **more))
        return made[-1]

    async def both() -> None:
        await asyncio.gather(broker.aio.start(), broker.aio.start())

    monkeypatch.setattr(core, "Brokers", make)
    before = threading.active_count()
    broker = Broker()
    if awaited:
        asyncio.run(both())
    else:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda _: broker.start(), range(2)))
    assert len(made) == 1
    broker.close()
    assert threading.active_count() == before


class HeldStop(Brokers):
    """Brokers whose stop takes until `may_stop`."""

    stops: threading.Event
    may_stop: threading.Event

    async def stop(self) -> None:
        self.stops.set()
        await asyncio.to_thread(self.may_stop.wait, DEADLINE_S)
        await super().stop()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HeldStop]]:
    HeldStop.stops, HeldStop.may_stop = threading.Event(), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(core, "Brokers", HeldStop)
        yield HeldStop
        HeldStop.may_stop.set()


@pytest.mark.parametrize("then", ["close", "start"])
@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "blocking"])
def test_whoever_closes_or_starts_it_while_it_closes_waits_for_that(
    tmp_path: Path, held: type[HeldStop], awaited: bool, then: str
) -> None:
    async def both() -> None:
        closing = asyncio.create_task(broker.aio.close())
        assert await asyncio.to_thread(held.stops.wait, DEADLINE_S)
        second = asyncio.create_task(getattr(broker.aio, then)())
        await asyncio.sleep(0)  # it has begun
        held.may_stop.set()
        await asyncio.gather(closing, second)

    before = set(threading.enumerate())
    broker, wanted = Broker(data=tmp_path).start(), threading.Event()
    if awaited:
        asyncio.run(both())
    else:
        broker._core.thread._changing = Watched(wanted)  # type: ignore[assignment]
        with ThreadPoolExecutor() as threads:
            closing = threads.submit(broker.close)
            assert held.stops.wait(DEADLINE_S)
            wanted.clear()
            second = threads.submit(getattr(broker, then))
            assert wanted.wait(DEADLINE_S)
            held.may_stop.set()
            closing.result(DEADLINE_S)
            second.result(DEADLINE_S)
    if then == "start":
        broker.create_topic("orders")
        broker.close()
    assert set(threading.enumerate()) <= before
    with Broker(data=tmp_path):  # nothing of the first run holds the directory
        pass


@pytest.mark.parametrize("cancelled", [{0}, {1}, {0, 1}], ids=["the first", "the second", "both"])
def test_of_two_who_start_it_at_once_one_may_be_cancelled(cancelled: set[int]) -> None:
    async def run() -> None:
        broker = Broker().aio
        starts = [asyncio.create_task(broker.start()) for _ in range(2)]
        await asyncio.sleep(0)  # both have begun
        for each in cancelled:
            starts[each].cancel()
        results = await asyncio.gather(*starts, return_exceptions=True)
        for each, result in enumerate(results):
            assert isinstance(result, asyncio.CancelledError) == (each in cancelled)
        if len(cancelled) == 1:
            await broker.create_topic("orders")
            await broker.close()
        assert threading.active_count() == before
        await broker.start()  # nothing hinders the next one
        await broker.create_topic("orders")
        await broker.close()

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before


def test_a_cancelled_start_of_what_runs_stops_nothing() -> None:
    async def run() -> None:
        async with Broker() as broker:
            at = broker.bootstrap
            again = asyncio.create_task(broker.start())
            await asyncio.sleep(0)  # it has begun
            again.cancel()
            await asyncio.wait([again])
            assert again.cancelled()
            await broker.create_topic("orders")
            assert broker.bootstrap == at

    asyncio.run(run())


def test_it_leaves_no_thread_behind_and_may_be_used_again() -> None:
    before = threading.active_count()
    for _ in range(3):
        with Broker() as broker:
            assert broker.bootstrap == f"127.0.0.1:{broker.port}"
    assert threading.active_count() == before


def test_a_start_without_an_event_loop_fails_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(runner: asyncio.Runner) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = threading.enumerate()
    broker = Broker()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Runner, "get_loop", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            broker.start()
    for each in set(threading.enumerate()) - set(before):
        each.join(DEADLINE_S)
    assert threading.enumerate() == before
    with broker:
        broker.create_topic("orders")


def test_two_brokers_are_independent() -> None:
    with Broker() as one, Broker() as other:
        one.create_topic("t")
        assert one.port != other.port
        with pytest.raises(KafkaError):
            one.create_topic("t")
        other.create_topic("t")


def test_many_at_once() -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(Broker()) for _ in range(12)]
        brokers.append(stack.enter_context(Cluster(3)))
        for number, broker in enumerate(brokers):
            broker.create_topic(f"t{number}")
        assert len({port for broker in brokers for port in broker.ports}) == 15
        for number, broker in enumerate(brokers):
            assert broker.topic(f"t{number}").exists(timeout=0) == 1
            with pytest.raises(WaitFailed):
                broker.topic(f"t{number + 1}").exists(timeout=0)


def test_a_wrong_setting_is_refused_before_anything_starts() -> None:
    with pytest.raises(SettingError, match="group_max_size"):
        Broker(group_max_size=0)
    with pytest.raises(TypeError, match=r"^unknown setting no_such_setting"):
        Broker(no_such_setting=1)
    with pytest.raises(TypeError, match=r"^unknown setting group_max_sise .did you mean group_max_size.*;"):
        Cluster(group_max_sise=1)
    with pytest.raises(TypeError, match="did you mean group_max_size"):
        Cluster(**{"group.max.size": 1})


@pytest.mark.parametrize(
    "options",
    [
        {"http": "127.0.0.1:0"},
        {"advertised_http": "broker.example:80"},
        {"http_token_file": "token"},
        {"http_insecure": True},
    ],
)
def test_settings_of_http_are_refused_since_brokers_in_a_test_serve_none(options: dict[str, Any]) -> None:
    (name,) = options
    said = rf"^{name}: brokers in a test serve no HTTP; for that use `muster serve --test-mode --http`$"
    for make in (Broker, Cluster):
        with pytest.raises(TypeError, match=said):
            make(**options)


@pytest.mark.parametrize("options", [{"log_level": "debug"}, {"log_format": "json"}])
def test_settings_of_the_log_are_refused_since_it_is_of_the_whole_process(options: dict[str, Any]) -> None:
    (name,) = options
    for make in (Broker, Cluster):
        with pytest.raises(TypeError, match=rf"^{name}: it is of a whole process, and has no effect on"):
            make(**options)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"data": "d", "ephemeral": True}, ValueError, "data: 'd' is not allowed; .* ephemeral=True"),
        ({"data": "d", "store": "postgresql://h/d"}, ValueError, "data: 'd' is not allowed; .* store=.*"),
        ({"data": 5}, TypeError, "data: it takes the path of a directory, not 5"),
        ({"clock": 5}, TypeError, r"clock: it takes an object with now_ms\(\) and at\(\), not 5"),
        ({"brokers": 3}, TypeError, r"brokers: a Broker is one broker; use Cluster\(3\)"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_starts(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"^{said}"):
        Broker(**options)


def test_a_port_in_use_is_called_by_its_argument() -> None:
    with Broker() as one:
        said = rf"^127\.0\.0\.1:{one.port} is in use; choose another port, or 0 for any free one$"
        with pytest.raises(BindError, match=said):
            Broker(port=one.port).start()


def test_a_broker_says_where_it_is() -> None:
    broker = Broker()
    assert repr(broker) == "<Broker not started>"
    with broker:
        assert repr(broker) == f"<Broker 127.0.0.1:{broker.port}>"
        assert repr(broker.aio) == f"<AsyncBroker 127.0.0.1:{broker.port}>"


def test_leases_are_short_where_another_broker_may_take_them() -> None:
    assert (Cluster(2).settings.lease_term_ms, Broker().settings.lease_term_ms) == (1_000, 30_000)
    assert Cluster(1).settings.lease_term_ms == 30_000
    assert Broker(lease_term_ms=300).settings.lease_term_ms == 300


def test_a_lone_broker_that_died_is_back_at_once() -> None:
    """Its leases have not expired; nobody waits for that."""
    with Broker(lease_term_ms=3_600_000) as broker:
        broker.create_topic("orders")
        broker.kill(0)
        broker.restart(0)
        assert (broker.coordinator_of("shop"), broker.leader_of("orders")) == (0, 0)
        assert broker.produce("orders", [b"paid"]) == 0


def test_an_index_that_no_broker_has_is_refused() -> None:
    with Broker() as broker, Cluster(2) as cluster:
        for call in (broker.stop, broker.kill, broker.restart, broker.pause, broker.resume):
            with pytest.raises(LookupError, match=r"^there is no broker of index 1; its only index is 0$"):
                call(1)
        for call in (cluster.stop, cluster.kill, cluster.restart, cluster.pause, cluster.resume):
            with pytest.raises(
                LookupError, match=r"^there is no broker of index -1; the indexes are 0 to 1$"
            ):
                call(-1)
        with pytest.raises(LookupError, match="index None"):
            cluster.kill(None)  # type: ignore[arg-type]  # what coordinator_of returns while there is none
        with pytest.raises(LookupError, match="there is no broker of index 2"):
            cluster.move("g", 2)


def test_a_broker_that_cannot_take_a_group_over_is_named_by_its_index() -> None:
    with Cluster(2) as cluster:
        cluster.pause(1)
        said = r"^to: the broker of index 1 is paused and cannot take over; resume it first$"
        with pytest.raises(FaultError, match=said):
            cluster.move("g", to=1)


def test_what_can_only_be_done_to_a_broker_that_runs_or_that_does_not() -> None:
    with Cluster(2) as cluster:
        with pytest.raises(FaultError, match=r"^the broker of index 1 is running; stop or kill it first$"):
            cluster.restart(1)
        cluster.stop(1)
        for call in (cluster.stop, cluster.kill, cluster.pause, cluster.resume, partial(cluster.move, "g")):
            with pytest.raises(FaultError, match=r"^the broker of index 1 is not running; restart it first$"):
                call(1)
        cluster.restart(1)


def test_while_no_broker_runs_it_says_so() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        broker.kill(0)
        for call in (partial(broker.create_topic, "u"), partial(broker.records, "t")):
            with pytest.raises(KafkaError, match="no broker runs: all were stopped or killed"):
                call()
        for wait in (broker.topic("t").exists, broker.topic("u").deleted):
            with pytest.raises(WaitFailed, match="no broker runs"):
                wait(timeout=0)
        broker.restart(0)
        assert broker.topic("t").exists() == 1


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="data directory"):
        Broker(data=tmp_path / "file").start()
    deadline = time.monotonic() + DEADLINE_S
    while threading.active_count() > before:
        assert time.monotonic() < deadline, threading.enumerate()


def test_a_data_directory_has_one_set_of_brokers_in_a_process(tmp_path: Path) -> None:
    with Broker(data=tmp_path), pytest.raises(StoreError, match="in use by other brokers of this process"):
        Broker(data=tmp_path).__enter__()
    with Broker(data=tmp_path):
        pass


def test_it_must_be_started() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = Broker().bootstrap


async def test_calls_under_way_while_it_closes_say_so() -> None:
    async with Broker() as broker:
        thread = broker._core.thread
        waits = [asyncio.create_task(broker.group("g").stable()) for _ in range(3)]
        sleeping = thread.submit(lambda: asyncio.sleep(DEADLINE_S), None)
        stops = thread.submit(broker._core.stopped, None)
        await asyncio.sleep(0)  # the waits go to the brokers' thread
        await asyncio.wrap_future(stops)
        assert repr(broker) == "<AsyncBroker closed>"
        with pytest.raises(RuntimeError, match=r"^closed: its `with` block has ended"):
            broker.groups()
    for each in (*waits, asyncio.wrap_future(sleeping)):
        with pytest.raises(RuntimeError, match=r"^closed: its `with` block has ended"):
            await each


async def test_one_that_was_closed_says_so() -> None:
    with Broker() as broker:
        pass
    assert repr(broker) == "<Broker closed>"
    for call in (broker.groups, lambda: broker.create_topic("t"), lambda: broker.bootstrap):
        with pytest.raises(RuntimeError, match=r"^closed: its `with` block has ended"):
            call()
    with pytest.raises(RuntimeError, match=r"^closed: "):
        await broker.aio.create_topic("t")
    with broker:
        broker.create_topic("t")
    assert repr(Broker()) == "<Broker not started>"


def test_one_that_is_given_to_another_process_says_what_to_give_instead() -> None:
    with Broker() as broker:
        for given in (broker, broker.aio, broker.group("orders")):
            with pytest.raises(
                TypeError, match=r"^<.*> cannot be copied, .* give that broker.bootstrap instead$"
            ):
                pickle.dumps(given)


async def test_a_data_directory_keeps_everything(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data") as broker:
        broker.create_topic("t", 2, {"retention.ms": "5000"})
        async with await Wire.connect(broker.port) as wire:
            await wire.call(commit(7), 9)
    with Broker(data=tmp_path / "data") as broker:
        async with await Wire.connect(broker.port) as wire:
            assert await committed(wire) == 7
            (topic,) = (await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)).topics
            assert (topic.name, len(topic.partitions)) == ("t", 2)


async def test_the_state_of_a_group_can_be_waited_for() -> None:
    with Broker() as broker:
        assert broker.group_state("orders") == "Dead"
        with pytest.raises(WaitFailed, match=r"orders to be Stable with 2 members\n.*Dead"):
            broker.wait_for_group("orders", members=2, timeout_s=0.01)
        async with await Wire.connect(broker.port) as wire:
            waiting = asyncio.ensure_future(asyncio.to_thread(broker.wait_for_group, "orders", members=1))
            await stable_member(wire)
            assert await waiting == ("Stable", 1)


# --- several brokers ----------------------------------------------------------------------------------------


async def test_brokers_share_the_shards_and_lead_clients_to_the_right_one() -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        assert len(set(cluster.ports)) == 3
        cluster.create_topic("t", 12)
        index = cluster.coordinator_of("orders")
        assert index is not None
        for port in cluster.ports:
            assert await coordinator(cluster, port) == (ErrorCode.NONE, index + 1)
            async with await Wire.connect(port) as wire:
                code = (await wire.call(join(), 9)).error_code
                right = port == cluster.ports[index]
                assert code == (ErrorCode.MEMBER_ID_REQUIRED if right else ErrorCode.NOT_COORDINATOR)
                (topic,) = (
                    await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)
                ).topics
                assert {each.leader_id for each in topic.partitions} == {1, 2, 3}


async def test_stopping_hands_over_without_losing_a_member_or_an_offset() -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        cluster.create_topic("t")
        index = cluster.coordinator_of("orders")
        assert index is not None
        async with await Wire.connect(cluster.ports[index]) as wire:
            await wire.call(commit(7), 9)
            member_id, generation = await stable_member(wire)
        cluster.stop(index)
        port = cluster.ports[(index + 1) % 3]
        node_id = await find_coordinator(cluster, port, other_than=index + 1)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        async with await Wire.connect(cluster.ports[node_id - 1]) as wire:
            assert await eventually_no_error(wire, beat, 4) == ErrorCode.NONE
            assert await committed(wire) == 7


async def eventually_no_error(wire: Wire, request: Any, version: int) -> int:
    """Retry while the shard is still moving or loading."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            code: int = (await wire.call(request, version)).error_code
            if code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                return code


async def test_a_killed_broker_is_missed_when_its_leases_run_out_and_may_come_back() -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        index = cluster.coordinator_of("orders")
        assert index is not None
        port, killed = cluster.ports[(index + 1) % 3], cluster.ports[index]
        async with await Wire.connect(killed) as wire:
            member_id, generation = await stable_member(wire)
            cluster.kill(index)
            assert await wire.closed()
        with pytest.raises(ConnectionError):
            await Wire.connect(killed)
        cluster.clock.advance(TERM_MS / 1_000)
        node_id = await find_coordinator(cluster, port, other_than=index + 1)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        async with await Wire.connect(cluster.ports[node_id - 1]) as wire:
            assert await eventually_no_error(wire, beat, 4) == ErrorCode.NONE
        cluster.restart(index)
        # Placement gives the shard back to its first owner.
        assert await find_coordinator(cluster, port, other_than=node_id) == index + 1
        async with await Wire.connect(killed) as wire:
            assert await eventually_no_error(wire, beat, 4) == ErrorCode.NONE


async def test_a_paused_broker_answers_nothing_and_writes_nothing_when_it_wakes_up() -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        cluster.create_topic("t")
        index = cluster.coordinator_of("orders")
        assert index is not None
        async with await Wire.connect(cluster.ports[index]) as stale:
            assert (await stale.call(commit(1), 9)).topics[0].partitions[0].error_code == ErrorCode.NONE
            cluster.pause(index)
            await stale.send(commit(2), 9)  # the broker reads it once it runs again, when it is too late
            cluster.clock.advance(TERM_MS / 1_000)
            port = cluster.ports[(index + 1) % 3]
            node_id = await find_coordinator(cluster, port, other_than=index + 1)
            async with await Wire.connect(cluster.ports[node_id - 1]) as wire:
                beat = HeartbeatRequest(group_id="orders", generation_id=1, member_id="m")
                await eventually_no_error(wire, beat, 4)
                assert (await wire.call(commit(3), 9)).topics[0].partitions[0].error_code == ErrorCode.NONE
                cluster.resume(index)
                refused = (await stale.receive()).topics[0].partitions[0].error_code
                assert refused == ErrorCode.NOT_COORDINATOR
        node_id = await find_coordinator(cluster, port, other_than=node_id)  # given back in the end
        async with await Wire.connect(cluster.ports[node_id - 1]) as wire:
            await eventually_no_error(wire, beat, 4)
            assert await committed(wire) == 3


@pytest.mark.parametrize("what", ["stop", "kill", "restart"])
async def test_a_broker_can_be_used_wherever_its_stop_or_start_is_cancelled(what: str) -> None:
    async with Broker() as broker:
        await broker.create_topic("t")

        async def cancelled(after: int) -> bool:
            """Call it on the brokers' loop, and cancel it after so many turns."""
            calling = asyncio.ensure_future(getattr(type(broker), what).__wrapped__(broker, 0))
            for _ in range(after):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
            return calling.cancelled()

        turns = cancellations = 0
        was_cancelled = True
        while was_cancelled:
            if what == "restart":
                await broker.kill(0)
            was_cancelled = await asyncio.wrap_future(
                broker._core.thread.submit(partial(cancelled, turns), DEADLINE_S)
            )
            with suppress(FaultError):  # a stop that had not begun, a restart that had
                await broker.restart(0)
            async with await Wire.connect(broker.port) as wire:
                assert (await wire.call(MetadataRequest(topics=[]), 12)).brokers
            assert await broker.produce("t", [b"v"]) == cancellations
            cancellations += was_cancelled
            turns += 1 + turns // 4
        assert cancellations > 1


async def test_closing_waits_for_a_restart_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    register = Node.register

    async def slowly(self: Node, node: NodeRow) -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait, DEADLINE_S)
        await register(self, node)

    async with Cluster(2) as cluster:
        port = cluster.ports[0]
        await cluster.kill(0)
        monkeypatch.setattr(Node, "register", slowly)
        restarting = asyncio.create_task(cluster.restart(0))
        assert await asyncio.to_thread(begun.wait, DEADLINE_S)
        restarting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restarting
        closing = asyncio.create_task(cluster.close())
        await asyncio.sleep(0)  # it begins to close
        assert cluster._core.closed
        may_end.set()
        async with asyncio.timeout(DEADLINE_S):
            await closing
    with pytest.raises(ConnectionError):
        await Wire.connect(port)


async def test_writing_and_reading_wait_for_the_next_leader() -> None:
    async with Cluster(2, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders")
        await cluster.kill(cluster.leader_of("orders"))
        with pytest.raises(KafkaError, match="orders-0 has no leader right now"):
            cluster.leader_of("orders")
        writing = asyncio.ensure_future(cluster.produce("orders", [b"v"]))
        reading = asyncio.ensure_future(cluster.records("orders"))
        await cluster.clock.advance(TERM_MS / 1_000)
        assert await writing == 0
        assert {record.value for record in await reading} <= {b"v"}


async def test_nothing_is_written_to_a_paused_broker() -> None:
    async with Broker() as broker:
        await broker.create_topic("orders")
        await broker.pause(0)
        with pytest.raises(FaultError, match=r"^broker 0 is paused: resume it first$"):
            await broker.produce("orders", [b"v"])
        assert await broker.records("orders") == []
        await broker.resume(0)
        assert await broker.produce("orders", [b"v"]) == 0


async def test_writing_waits_for_the_next_leader_while_one_is_paused() -> None:
    async with Cluster(2, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders")
        paused = cluster.leader_of("orders")
        await cluster.pause(paused)
        assert cluster.leader_of("orders") == paused
        begun_ms = cluster.clock.now_ms()
        writing = asyncio.ensure_future(cluster.produce("orders", [b"v"]))
        await cluster.clock.advance(TERM_MS / 1_000)
        assert await writing == 0
        assert cluster.leader_of("orders") != paused
        (record,) = await cluster.records("orders")
        assert record.timestamp > begun_ms + TERM_MS // 2
        await cluster.resume(paused)


async def test_a_paused_broker_leads_and_coordinates_nothing_once_its_leases_have_run_out() -> None:
    async with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("t", 12)
        partition = next(each for each in range(12) if cluster.leader_of("t", each) == 0)
        await cluster.move("orders", to=0)
        async with await Wire.connect(cluster.ports[0]) as wire:
            await stable_member(wire)
            await cluster.pause(0)
            await cluster.clock.advance(TERM_MS / 1_000)
            assert cluster.groups() == ["orders"]
            assert cluster.leader_of("t", partition) != 0
            assert await cluster.produce("t", [b"v"], partition=partition) == 0
            await cluster.topic("t").has_records()
            assert [record.value for record in await cluster.records("t")] == [b"v"]
            await cluster.resume(0)


@pytest.mark.parametrize("harm", ["pause", "kill"])
async def test_a_shard_is_held_only_where_a_broker_can_reload_it(harm: str) -> None:
    async with Broker() as broker:
        await getattr(broker, harm)(0)
        with pytest.raises(FaultError, match=r"^every broker is stopped or paused: restart or resume one"):
            await broker.hold("orders")
        assert not await broker.release("orders")  # nothing is in force
        await broker.hold("orders", reload=False)
        assert await broker.release("orders")


async def test_a_topic_is_created_by_a_broker_that_is_not_paused() -> None:
    async with Cluster(2) as cluster:
        await cluster.pause(0)
        async with asyncio.timeout(DEADLINE_S):
            await cluster.create_topic("orders", 2)
        assert cluster.topic("orders").partitions == 2
        await cluster.pause(1)
        with pytest.raises(FaultError, match=r"^broker 0 is paused: resume it first$"):
            await cluster.create_topic("bills")
        await cluster.resume(0)
        await cluster.resume(1)
        assert await cluster.topic("orders").exists() == 2
        assert await cluster.topic("bills").deleted() is None
