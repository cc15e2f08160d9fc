"""The topic catalogue: what may be created, how it changes, and who is notified."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.placement import EVENTS_TOPIC
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import StoreBusy, TopicRow
from muster.coordinator.topics.catalogue import Catalogue, Change, Topic, events_topic
from muster.coordinator.topics.config import ConfigChange, Operation
from muster.coordinator.topics.replicas import Hosts
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.each import each
from tests.support.facts import turns, until
from tests.topics.support import NOW_MS, Brokers

DEADLINE_S = 30
TWO = Hosts({1: None, 2: None})
THREE = Hosts({1: None, 2: None, 3: None})


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    await brokers.add()
    yield brokers
    await brokers.close()


@pytest.fixture
def catalogue(brokers: Brokers) -> Catalogue:
    return brokers.catalogues[0]


async def refusal(call: Any) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value


def put(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, Operation.SET, value)


def removed(name: str) -> ConfigChange:
    return ConfigChange(name, Operation.DELETE)


async def test_a_topic_is_created_with_its_configs(catalogue: Catalogue, brokers: Brokers) -> None:
    topic = await catalogue.create("orders", partitions=3, configs={"retention.ms": "5000"})
    assert (topic.name, topic.partitions, topic.created_ms) == ("orders", 3, NOW_MS)
    assert topic.config.retention_ms == 5_000
    assert catalogue.named("orders") is catalogue.identified(topic.topic_id) is catalogue.topics()[0]
    assert await brokers.store.topics() == [
        TopicRow(topic.topic_id, "orders", 3, {"retention.ms": "5000"}, NOW_MS)
    ]
    assert not topic.internal


async def test_the_id_stays_and_a_topic_made_again_gets_another(
    catalogue: Catalogue, brokers: Brokers
) -> None:
    topic = await catalogue.create("orders")
    restarted = Catalogue(brokers.store, brokers.clock)
    await restarted.refresh()
    assert restarted.named("orders") == topic
    await catalogue.delete(topic)
    assert catalogue.by_name("orders") is catalogue.by_id(topic.topic_id) is None
    assert (await catalogue.create("orders")).topic_id != topic.topic_id


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "__consumer_offsets"])
async def test_names_that_kafka_allows(catalogue: Catalogue, name: str) -> None:
    topic = await catalogue.create(name)
    assert topic.internal == name.startswith("__")


@each("name", ["", ".", "..", "x" * 250, "a b", "a/b", "grün", "a\n", "a\x00"])
async def test_names_that_kafka_refuses(catalogue: Catalogue, name: str) -> None:
    assert (await refusal(catalogue.create(name))).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await refusal(catalogue.ensure(name))).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError) as caught:
        catalogue.named(name)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_name_of_kafkas_metadata_log_is_taken(brokers: Brokers) -> None:
    catalogue = Catalogue(brokers.store, brokers.clock)
    refused = await refusal(catalogue.create("__cluster_metadata"))
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert refused.why == "Creation of internal topic __cluster_metadata is prohibited."
    asked_for = await refusal(catalogue.ensure("__cluster_metadata"))
    assert asked_for.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    old = TopicRow(uuid4(), "__cluster_metadata", 1)
    await brokers.store.create_topic(old)
    await catalogue.refresh()
    assert (await catalogue.ensure("__cluster_metadata")).topic_id == old.topic_id, "one from before stays"
    assert not catalogue.named("__cluster_metadata").internal


async def test_names_that_differ_in_dot_and_underscore_only_collide(catalogue: Catalogue) -> None:
    await catalogue.create("a.b_c")
    assert (await refusal(catalogue.create("a_b.c"))).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await refusal(catalogue.create("a.b_c"))).code is ErrorCode.TOPIC_ALREADY_EXISTS
    await catalogue.create("a-b-c")


@each(
    "asked, code",
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 4, "brokers": THREE}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": {0: [1], 2: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [7]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1], 1: [1, 2]}, "brokers": TWO}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1]}, "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"configs": {"retention.minutes": "5"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}, "partitions": 0}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"remote.storage.enable": "true"}}, ErrorCode.INVALID_CONFIG),
        (
            {"configs": {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}},
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
async def test_topics_that_are_refused(catalogue: Catalogue, asked: dict[str, Any], code: ErrorCode) -> None:
    assert (await refusal(catalogue.create("orders", **asked))).code is code
    assert catalogue.topics() == []


async def test_counts_come_from_the_defaults_or_the_assignments(brokers: Brokers) -> None:
    catalogue = Catalogue(brokers.store, brokers.clock, num_partitions=6, defaults={"retention.ms": "77"})
    assert (await catalogue.create("a")).partitions == 6
    assigned = await catalogue.create("b", assignments={0: [1, 2], 1: [2, 1]}, brokers=TWO)
    assert assigned.partitions == 2
    assert (await catalogue.create("c", replication_factor=3, brokers=THREE)).config.retention_ms == 77
    assert (await catalogue.create("d", configs={"retention.ms": "1"})).config.retention_ms == 1
    assert catalogue.named("c").configs == {}


async def test_validating_changes_nothing(catalogue: Catalogue) -> None:
    assert (await catalogue.create("orders", partitions=2, validate_only=True)).partitions == 2
    assert catalogue.topics() == []
    await catalogue.create("orders")
    assert (await catalogue.add_partitions("orders", 5, validate_only=True)).partitions == 5
    changed = await catalogue.alter_configs("orders", [put("retention.ms", "1")], validate_only=True)
    assert changed.config.retention_ms == 1
    assert catalogue.named("orders").partitions == 1
    assert catalogue.named("orders").configs == {}


async def test_partitions_only_grow(catalogue: Catalogue) -> None:
    await catalogue.create("orders", partitions=2)
    assert (await catalogue.add_partitions("orders", 4)).partitions == 4
    for total in (4, 3, 0, -1):
        assert (await refusal(catalogue.add_partitions("orders", total))).code is ErrorCode.INVALID_PARTITIONS
    assert (await refusal(catalogue.add_partitions("nobody", 4))).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wrong = catalogue.add_partitions("orders", 6, assignments=[[1]])
    assert (await refusal(wrong)).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    wrong = catalogue.add_partitions("orders", 6, assignments=[[1], [2]])
    assert (await refusal(wrong)).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    grown = await catalogue.add_partitions("orders", 6, assignments=[[1], [2]], brokers=TWO)
    assert grown.partitions == 6


async def test_configs_are_set_removed_and_replaced(catalogue: Catalogue) -> None:
    await catalogue.create("orders", configs={"retention.ms": "1", "segment.ms": "2"})
    topic = await catalogue.alter_configs(
        "orders", [removed("retention.ms"), put("cleanup.policy", "compact")]
    )
    assert topic.configs == {"segment.ms": "2", "cleanup.policy": "compact"}
    appended = ConfigChange("cleanup.policy", Operation.APPEND, "delete,compact")
    assert (await catalogue.alter_configs("orders", [appended])).config.cleanup_policy == (
        "compact",
        "delete",
    )
    subtracted = ConfigChange("cleanup.policy", Operation.SUBTRACT, "compact")
    assert (await catalogue.alter_configs("orders", [subtracted])).config.cleanup_policy == ("delete",)
    topic = await catalogue.alter_configs("orders", [put("retention.ms", "9")], replace=True)
    assert topic.configs == {"retention.ms": "9"}
    for refused in (put("no.such", "1"), put("retention.ms", "x"), appended._replace(name="retention.ms")):
        assert (await refusal(catalogue.alter_configs("orders", [refused]))).code is ErrorCode.INVALID_CONFIG
        # ... whether there is such a topic or not, as in Kafka
        assert (await refusal(catalogue.alter_configs("nobody", [refused]))).code is ErrorCode.INVALID_CONFIG
    for name, code in (
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        assert (await refusal(catalogue.alter_configs(name, [put("retention.ms", "1")]))).code is code
    assert catalogue.named("orders").configs == {"retention.ms": "9"}


async def test_other_defaults_are_told_to_those_whom_they_change(catalogue: Catalogue) -> None:
    changes: list[Change] = []
    await catalogue.create("orders")
    await catalogue.create("audit", configs={"retention.ms": "1"})
    catalogue.subscribe(changes.append)
    catalogue.set_defaults({"retention.ms": "77"})
    ((before, after),) = changes.pop().altered
    assert (after.name, before.config.retention_ms, after.config.retention_ms) == ("orders", 604_800_000, 77)
    assert catalogue.named("orders") is catalogue.by_id(after.topic_id) is after
    assert catalogue.named("audit").config.retention_ms == 1
    with pytest.raises(KafkaError, match=r"retention\.ms"):
        catalogue.set_defaults({"retention.ms": "x"})
    assert catalogue.named("orders").config.retention_ms == 77
    assert not changes
    assert (await catalogue.create("late")).config.retention_ms == 77


async def test_defaults_that_contradict_a_topics_configs_do_not_hide_it(catalogue: Catalogue) -> None:
    await catalogue.create("orders", configs={"max.compaction.lag.ms": "9"})
    catalogue.set_defaults({"min.compaction.lag.ms": "10"})
    assert catalogue.named("orders").config.min_compaction_lag_ms == 10
    altering = catalogue.alter_configs("orders", [put("retention.ms", "1")])
    assert (await refusal(altering)).code is ErrorCode.INVALID_CONFIG


async def test_missing_topics_are_made_when_asked_for(brokers: Brokers) -> None:
    catalogue = Catalogue(brokers.store, brokers.clock, num_partitions=3)
    first, second = await asyncio.gather(catalogue.ensure("orders"), catalogue.ensure("orders"))
    assert first == second
    assert first.partitions == 3
    assert (await refusal(catalogue.ensure("__consumer_offsets"))).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    strict = Catalogue(brokers.store, brokers.clock, auto_create_topics=False)
    await strict.refresh()
    assert await strict.ensure("orders") == first
    assert (await refusal(strict.ensure("others"))).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_name_of_the_events_is_reserved(catalogue: Catalogue) -> None:
    for call in (catalogue.create(EVENTS_TOPIC), catalogue.ensure(EVENTS_TOPIC)):
        assert (await refusal(call)).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert catalogue.topics() == []


async def test_a_kept_topic_hides_one_of_its_name_from_before(brokers: Brokers) -> None:
    old = TopicRow(UUID(int=1), EVENTS_TOPIC, 2)
    await brokers.store.create_topic(old)
    kept = events_topic(UUID(int=7), 50, retention_ms=5_000, retention_bytes=6_000)
    catalogue = Catalogue(brokers.store, brokers.clock, kept=[kept])
    await catalogue.refresh()
    assert kept.internal
    assert (kept.config.retention_ms, kept.config.retention_bytes) == (5_000, 6_000)
    assert [topic.topic_id for topic in catalogue.hidden] == [old.topic_id]
    assert catalogue.named(EVENTS_TOPIC) is kept
    assert catalogue.topics() == [kept]
    hidden = catalogue.identified(old.topic_id)
    assert (hidden.partitions, hidden.internal) == (2, True)
    for call in (
        catalogue.delete(kept),
        catalogue.add_partitions(EVENTS_TOPIC, 60),
        catalogue.alter_configs(EVENTS_TOPIC, [put("retention.ms", "1")]),
    ):
        assert (await refusal(call)).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    await catalogue.delete(hidden)
    assert await brokers.store.topics() == []
    assert catalogue.hidden == []
    assert catalogue.topics() == [kept]


async def test_changes_of_two_brokers_at_once_are_both_kept(catalogue: Catalogue, brokers: Brokers) -> None:
    other = Catalogue(brokers.store, brokers.clock)
    await catalogue.create("orders")
    await other.refresh()
    await catalogue.alter_configs("orders", [put("retention.ms", "1")])
    await other.add_partitions("orders", 5)  # its view is older than the change
    await catalogue.refresh()
    assert catalogue.named("orders") == other.named("orders")
    assert (other.named("orders").partitions, other.named("orders").configs) == (5, {"retention.ms": "1"})


class Reads(MemoryStore):
    """Its reads of the topics are made and answered when the test says so: by default at once."""

    def __init__(self, *waits: tuple[asyncio.Event | None, asyncio.Event | None]) -> None:
        """`waits`: what each of the first reads waits for before and after it is made."""
        super().__init__()
        self.begun = 0
        self._waits = waits

    async def topics(self) -> list[TopicRow]:
        self.begun += 1
        before, after = self._waits[self.begun - 1] if self.begun <= len(self._waits) else (None, None)
        if before is not None:
            await before.wait()
        rows = await super().topics()
        if after is not None:
            await after.wait()
        return rows


async def test_a_read_that_is_answered_late_deletes_no_topic(brokers: Brokers) -> None:
    may_read, may_answer = asyncio.Event(), asyncio.Event()
    store = Reads((may_read, None), (None, may_answer))
    await store.open()
    catalogue = Catalogue(store, brokers.clock)
    changes: list[Change] = []
    catalogue.subscribe(changes.append)
    refreshes = [asyncio.ensure_future(catalogue.refresh()) for _ in range(2)]
    await turns()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    may_read.set()
    await refreshes[0]
    may_answer.set()
    await refreshes[1]
    assert catalogue.named("orders").topic_id == UUID(int=1)
    assert changes == [Change(created=(catalogue.named("orders"),))]


async def test_refreshes_asked_for_during_a_read_share_the_next(brokers: Brokers) -> None:
    may_answer = asyncio.Event()
    store = Reads((None, may_answer))
    await store.open()
    catalogue = Catalogue(store, brokers.clock)
    first = asyncio.ensure_future(catalogue.refresh())
    await turns()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    others = [asyncio.ensure_future(catalogue.refresh()) for _ in range(3)]
    await turns()
    may_answer.set()
    assert not await first
    assert [len(change.created) for change in await asyncio.gather(*others)] == [1, 0, 0]
    assert store.begun == 2


async def test_a_read_that_fails_does_so_for_all_who_asked_before_it(brokers: Brokers) -> None:
    class Hung(MemoryStore):
        begun = 0
        times_out: asyncio.Future[None]

        async def topics(self) -> list[TopicRow]:
            self.begun += 1
            self.times_out = asyncio.get_running_loop().create_future()
            await self.times_out
            return await super().topics()

    store = Hung()
    await store.open()
    catalogue = Catalogue(store, brokers.clock)
    refreshes = [asyncio.ensure_future(catalogue.refresh()) for _ in range(5)]
    for failed in (1, 5):
        await turns()
        store.times_out.set_exception(StoreBusy("no answer"))
        await turns()
        assert sum(refresh.done() for refresh in refreshes) == failed
    assert {repr(refresh.exception()) for refresh in refreshes} == {"StoreBusy('no answer')"}
    assert store.begun == 2
    again = asyncio.ensure_future(catalogue.refresh())
    await turns()
    store.times_out.set_result(None)
    assert not await again


async def test_who_is_cancelled_during_a_read_keeps_nobody_waiting(brokers: Brokers) -> None:
    store = Reads((asyncio.Event(), None))
    await store.open()
    catalogue = Catalogue(store, brokers.clock)
    hung = asyncio.ensure_future(catalogue.refresh())
    creating = asyncio.ensure_future(catalogue.create("orders"))
    await turns()
    assert not creating.done()
    hung.cancel()
    await until(creating.done)
    assert catalogue.named("orders") == creating.result()


async def test_creation_races_have_one_winner(catalogue: Catalogue, brokers: Brokers) -> None:
    other = Catalogue(brokers.store, brokers.clock)
    outcomes = await asyncio.gather(
        catalogue.create("orders"), other.create("orders"), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
    assert [each.code for each in refused] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert other.named("orders") == catalogue.named("orders")


async def test_what_is_under_way_counts_for_what_is_asked_meanwhile(brokers: Brokers) -> None:
    store = PausableStore(brokers.store)
    catalogue = Catalogue(store.as_store(), brokers.clock, partitions_total_max=9)
    await catalogue.create("first", partitions=2)
    store.pause()
    under_way = [
        asyncio.ensure_future(each)
        for each in (
            catalogue.create("a.b", partitions=3),
            catalogue.create("a.b", partitions=3),
            catalogue.add_partitions("first", 5),
            catalogue.add_partitions("first", 4),
        )
    ]
    await turns()
    async with asyncio.timeout(DEADLINE_S):  # the store does not answer before it is resumed
        colliding = await refusal(catalogue.create("a_b"))
        too_many = await refusal(catalogue.create("second", partitions=2))
    assert colliding.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert too_many.code is ErrorCode.POLICY_VIOLATION
    assert "there are 8 already" in too_many.why
    late = asyncio.ensure_future(catalogue.create("second", partitions=1))
    await turns()
    store.resume()
    made, made_twice, grown, grown_less = await asyncio.gather(*under_way, return_exceptions=True)
    assert sorted(type(each).__name__ for each in (made, made_twice)) == ["KafkaError", "Topic"]
    assert {each.code for each in (made, made_twice) if isinstance(each, KafkaError)} == {
        ErrorCode.TOPIC_ALREADY_EXISTS
    }
    assert isinstance(grown, Topic)
    assert isinstance(grown_less, KafkaError)
    assert (await late).partitions == 1
    assert sum(topic.partitions for topic in catalogue.topics()) == 9
    assert catalogue._partitions_under_way == 0


async def test_what_another_broker_has_done_meanwhile_counts_once(brokers: Brokers) -> None:
    store = PausableStore(brokers.store)
    catalogue, other = Catalogue(store.as_store(), brokers.clock), Catalogue(brokers.store, brokers.clock)
    first = await catalogue.create("first")
    growing = asyncio.ensure_future(catalogue.add_partitions("first", 9))
    store.pause()
    await turns()
    assert catalogue._partitions_under_way == 8
    await other.refresh()
    await other.add_partitions("first", 5)
    catalogue._take(await brokers.store.topics())
    assert (catalogue._partitions_total, catalogue._partitions_under_way) == (5, 4)
    await other.delete(first)
    catalogue._take(await brokers.store.topics())
    assert (catalogue._partitions_total, catalogue._partitions_under_way) == (0, 9)
    store.resume()
    await asyncio.gather(growing, return_exceptions=True)
    assert catalogue._partitions_under_way == 0


async def test_a_creation_does_not_look_at_all_others_that_are_under_way(brokers: Brokers) -> None:
    store = PausableStore(brokers.store)
    catalogue = Catalogue(store.as_store(), brokers.clock)
    store.pause()
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def calls_of(creations: list[str]) -> int:
        nonlocal calls
        calls, profile = 0, sys.getprofile()
        begun = [catalogue.create(name) for name in creations]
        sys.setprofile(count)
        try:
            for creation in begun:
                creation.send(None)  # until it waits for the store
        finally:
            sys.setprofile(profile)
        waiting.extend(begun)
        return calls

    waiting: list[Coroutine[Any, Any, Topic]] = []
    few = await calls_of([f"few.{number}" for number in range(10)])
    await calls_of([f"many.{number}" for number in range(200)])
    again = await calls_of([f"again.{number}" for number in range(10)])
    for creation in waiting:
        creation.close()
    assert again < 2 * few
    assert catalogue._under_way == {}


@pytest.mark.parametrize("cancelled", [True, False])
async def test_what_fails_is_under_way_no_longer(
    brokers: Brokers, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PausableStore(brokers.store)
    catalogue = Catalogue(store.as_store(), brokers.clock, partitions_total_max=5)
    await catalogue.create("first")

    async def fails(*_: Any, **__: Any) -> None:
        raise StoreBusy("held up")

    if not cancelled:
        for call in ("create_topic", "update_topic"):
            monkeypatch.setattr(store, call, fails)
    store.pause()
    under_way = [
        asyncio.ensure_future(catalogue.create("a.b", partitions=2)),
        asyncio.ensure_future(catalogue.add_partitions("first", 3)),
    ]
    await turns()
    if cancelled:
        for each in under_way:
            each.cancel()
    store.resume()
    outcomes = await asyncio.gather(*under_way, return_exceptions=True)
    expected = asyncio.CancelledError if cancelled else StoreBusy
    assert [type(each) for each in outcomes] == [expected, expected]
    monkeypatch.undo()
    await catalogue.create("a_b", partitions=4)
    assert catalogue._under_way == {}
    assert catalogue._partitions_under_way == 0


async def test_deleting_twice_is_said(catalogue: Catalogue) -> None:
    topic = await catalogue.create("orders")
    await catalogue.delete(topic)
    assert (await refusal(catalogue.delete(topic))).code is ErrorCode.UNKNOWN_TOPIC_ID
    with pytest.raises(KafkaError) as caught:
        catalogue.identified(topic.topic_id)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_subscribers_hear_what_changed(catalogue: Catalogue, brokers: Brokers) -> None:
    heard: list[Change] = []
    unsubscribe = catalogue.subscribe(heard.append)
    created = await catalogue.create("orders")
    altered = await catalogue.add_partitions("orders", 2)
    await catalogue.delete(altered)
    assert heard == [
        Change(created=(created,)),
        Change(altered=((created, altered),)),
        Change(deleted=(altered,)),
    ]
    await catalogue.refresh()
    assert len(heard) == 3
    unsubscribe()
    unsubscribe()
    await catalogue.create("others")
    assert len(heard) == 3


async def test_a_subscriber_that_fails_keeps_nothing_from_those_behind_it(catalogue: Catalogue) -> None:
    heard: list[Change] = []

    def failing(change: Change) -> None:
        raise RuntimeError("cannot take it")

    catalogue.subscribe(failing)
    catalogue.subscribe(heard.append)
    with pytest.raises(RuntimeError, match="cannot take it"):
        await catalogue.create("orders")
    assert heard == [Change(created=(catalogue.named("orders"),))]


async def test_bad_defaults_are_refused_at_once(brokers: Brokers) -> None:
    with pytest.raises(KafkaError, match=r"retention\.ms"):
        Catalogue(brokers.store, brokers.clock, defaults={"retention.ms": "-5"})


async def test_all_topics_together_have_a_bound(brokers: Brokers) -> None:
    catalogue = Catalogue(brokers.store, brokers.clock, partitions_total_max=5)
    first = await catalogue.create("first", partitions=3)
    for refused in (
        catalogue.create("second", partitions=3),
        catalogue.add_partitions("first", 6),
        catalogue.create("second", partitions=3, validate_only=True),
    ):
        error = await refusal(refused)
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert "there are 3 already" in error.why
    await catalogue.add_partitions("first", 5)
    assert (await refusal(catalogue.create("second"))).code is ErrorCode.POLICY_VIOLATION
    await catalogue.delete(first)
    await catalogue.create("second", partitions=5)


@pytest.mark.parametrize("deleting", [True, False])
async def test_who_is_cancelled_while_the_store_does_not_answer_waits_no_longer(
    brokers: Brokers, deleting: bool
) -> None:
    store = PausableStore(brokers.store)
    catalogue = Catalogue(store.as_store(), brokers.clock)
    await catalogue.refresh()
    topic = await catalogue.create("orders")
    store.pause()
    waiting = asyncio.ensure_future(catalogue.delete(topic) if deleting else catalogue.create("bills"))
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=DEADLINE_S)
    assert done
    assert waiting.cancelled()


async def test_topics_with_configs_of_a_newer_muster_do_no_harm(
    catalogue: Catalogue, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        Logger, "warning", lambda _, event, **fields: said.append((fields["topic"], fields["names"]))
    )
    configs = {"of.a.newer.muster": "1", "compression.type": "newer", "retention.ms": "5000"}
    row = TopicRow(uuid4(), "a", 1, configs)
    await brokers.store.create_topic(row)
    await brokers.store.create_topic(TopicRow(uuid4(), "b", 1))
    change = await catalogue.refresh()
    assert {topic.name for topic in change.created} == {"a", "b"}
    topic = catalogue.named("a")
    assert topic.configs == {"retention.ms": "5000"}
    assert (topic.config.retention_ms, topic.config.compression_type) == (5_000, "producer")
    catalogue.set_defaults({"retention.bytes": "9"})
    await catalogue.add_partitions("a", 2)
    kept = {each.name: each.configs for each in await brokers.store.topics()}
    assert kept["a"] == configs, "the newer muster still finds its own"
    await catalogue.create("c")
    assert said == [("a", ["compression.type", "of.a.newer.muster"])] * 2, "when first read, and when altered"
    await catalogue.delete(topic)
    assert [each.name for each in catalogue.topics()] == ["b", "c"]


async def test_configs_of_a_newer_muster_stay_when_others_are_altered(
    catalogue: Catalogue, brokers: Brokers
) -> None:
    newer = {"of.a.newer.muster": "1", "compression.type": "newer"}
    await brokers.store.create_topic(TopicRow(uuid4(), "a", 1, {**newer, "retention.ms": "5000"}))
    await catalogue.refresh()

    async def stored() -> Any:
        return (await brokers.store.topics())[0].configs

    topic = await catalogue.alter_configs("a", [put("retention.ms", "6000")])
    assert topic.configs == {"retention.ms": "6000"}
    assert await stored() == {**newer, "retention.ms": "6000"}
    for name in newer:
        refused = await refusal(catalogue.alter_configs("a", [put(name, "newest")]))
        assert refused.code is ErrorCode.INVALID_CONFIG
    await catalogue.alter_configs("a", [removed("of.a.newer.muster"), put("compression.type", "gzip")])
    assert await stored() == {"compression.type": "gzip", "retention.ms": "6000"}


@each("seed", range(10))
async def test_what_is_kept_up_to_date_is_what_a_new_catalogue_reads(seed: int) -> None:
    """Names, order and collisions, whatever changes here and elsewhere, also of a hidden topic."""
    random = Random(seed)
    store, clock = MemoryStore(), ManualClock()
    kept = [events_topic(uuid4(), 1, retention_ms=1, retention_bytes=1)]

    def new() -> Catalogue:
        return Catalogue(store, clock, kept=kept)

    await store.open()
    catalogue, other = new(), new()
    await catalogue.refresh()
    await store.create_topic(TopicRow(uuid4(), EVENTS_TOPIC, 1))
    names = ["b", "a.b", "c", "d", EVENTS_TOPIC]
    for number in range(40):
        await other.refresh()
        name = random.choice(names)
        row = next((row for row in await store.topics() if row.name == name), None)
        match random.randrange(5):
            case _ if row is None:
                await store.create_topic(TopicRow(uuid4(), name, 1))
            case 0:
                await store.delete_topic(row.topic_id)
            case 1:
                await store.update_topic(row._replace(configs={"retention.ms": str(random.randrange(9))}))
            case 2 if name != EVENTS_TOPIC:
                by = random.choice((catalogue, other))
                if by.by_name(name) is not None and by.named(name).topic_id == row.topic_id:
                    await by.add_partitions(name, row.partitions + 1)
            case 3:
                catalogue.set_defaults({"retention.bytes": str(random.randrange(9))})
                catalogue.set_defaults({})
            case _ if name != EVENTS_TOPIC:
                await store.update_topic(row._replace(name=f"{name}_{number}"))
        if random.random() < 0.7:
            await catalogue.refresh()
            fresh = new()
            await fresh.refresh()
            assert catalogue.topics() == fresh.topics(), f"{seed=}"
            assert [topic.config for topic in catalogue.topics()] == [
                topic.config for topic in fresh.topics()
            ]
            assert {topic.topic_id for topic in catalogue.hidden} == {
                topic.topic_id for topic in fresh.hidden
            }
            asked = [*names, "a_b", "b_1", "c.2"]
            assert [catalogue.is_free(each) for each in asked] == [fresh.is_free(each) for each in asked]


async def test_only_new_or_deleted_topics_are_put_in_order_by_name(catalogue: Catalogue) -> None:
    """With thousands of them, that takes milliseconds."""
    changes: list[Change] = []
    await catalogue.create("a")
    await catalogue.create("b")
    catalogue.subscribe(changes.append)
    folded = catalogue._folded
    assert await catalogue.refresh() == Change()
    await catalogue.alter_configs("a", [put("retention.ms", "5000")])
    await catalogue.add_partitions("b", 2)
    assert [after.name for change in changes for _, after in change.altered] == ["a", "b"]
    assert [(topic.name, topic.partitions) for topic in catalogue.topics()] == [("a", 1), ("b", 2)]
    assert catalogue._folded is folded
    await catalogue.create("aa")
    assert [topic.name for topic in catalogue.topics()] == ["a", "aa", "b"]
