"""The outcomes for several names when some fail, may succeed later, or get no answer; and Admin itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from muster.client.admin import answers
from muster.client.admin.answers import Outcomes, of_nodes, settle, together
from muster.client.admin.client import Admin
from muster.client.admin.configs import ConfigResource
from muster.client.admin.offsets import LATEST
from muster.client.admin.reset import Latest
from muster.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    Unreachable,
)
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address, deadline
from muster.client.partitions import TopicPartition
from muster.coordinator import testing
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataResponse
from tests.client.listeners import listener, losing_answers
from tests.support.each import each
from tests.support.ports import free_ports

LONG_S = 60.0
PASSES = KafkaError(ErrorCode.NOT_COORDINATOR)
FINAL = KafkaError(ErrorCode.NON_EMPTY_GROUP)
Answer = KafkaError | ClientError | str


@pytest.fixture
def nowhere() -> Cluster:
    """For calls that never get as far as a connection."""
    return Cluster([Address("127.0.0.1", 1)], retry_backoff_ms=1, retry_backoff_max_ms=1)


class Asked:
    """Answers each name with the next of its answers; the last one repeats."""

    def __init__(self, **answers: list[Answer]) -> None:
        self._answers = answers
        self.calls: list[list[str]] = []

    async def __call__(self, names: list[str]) -> dict[str, KafkaError | str]:
        self.calls.append(names)
        told: dict[str, KafkaError | str] = {}
        for name in names:
            answers = self._answers[name]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, ClientError):
                raise answer
            told[name] = answer
        return told


async def test_only_what_may_pass_is_asked_again(nowhere: Cluster) -> None:
    asked = Asked(a=[PASSES, PASSES, "done"], b=["done"], c=[FINAL])
    outcomes = await settle(nowhere, ["c", "a", "b", "a"], asked, deadline(LONG_S), api="Test")
    assert asked.calls == [["c", "a", "b"], ["a"], ["a"]]
    assert list(outcomes.items()) == [("c", FINAL), ("a", "done"), ("b", "done")]


async def test_at_the_deadline_the_last_failure_is_the_outcome(nowhere: Cluster) -> None:
    asked = Asked(a=[PASSES], b=["done"])
    outcomes = await settle(nowhere, ["a", "b"], asked, deadline(0.2), api="Test")
    assert outcomes == {"a": PASSES, "b": "done"}
    assert len(asked.calls) > 1


async def test_a_change_that_may_have_been_made_is_not_asked_for_again(nowhere: Cluster) -> None:
    asked = Asked(a=[KafkaError(ErrorCode.REQUEST_TIMED_OUT)], b=[PASSES, "done"])
    outcomes = await settle(nowhere, ["a", "b"], asked, deadline(LONG_S), api="Test", repeatable=False)
    assert asked.calls == [["a", "b"], ["b"]]
    assert outcomes.failed["a"].code == ErrorCode.REQUEST_TIMED_OUT
    reading = Asked(a=[KafkaError(ErrorCode.REQUEST_TIMED_OUT), "done"])
    assert await settle(nowhere, ["a"], reading, deadline(LONG_S), api="Test") == {"a": "done"}


async def test_a_lost_answer_is_raised_when_nothing_is_settled(nowhere: Cluster) -> None:
    asked = Asked(a=[ConnectionLost("gone"), "done"])
    with pytest.raises(ConnectionLost, match="gone; it may have been applied anyway"):
        await settle(nowhere, ["a"], asked, deadline(LONG_S), api="Test", repeatable=False)
    reading = Asked(a=[ConnectionLost("gone"), "done"])
    assert await settle(nowhere, ["a"], reading, deadline(LONG_S), api="Test") == {"a": "done"}


async def test_a_lost_answer_is_an_outcome_beside_what_is_settled(nowhere: Cluster) -> None:
    asked = Asked(a=["done"], b=[PASSES, ConnectionLost("gone"), "done"])
    outcomes = await settle(nowhere, ["a", "b"], asked, deadline(LONG_S), api="Test", repeatable=False)
    assert outcomes["a"] == "done"
    assert outcomes.failed["b"].code == ErrorCode.NETWORK_EXCEPTION
    assert outcomes.failed["b"].why == "gone; it may have been applied anyway"


async def test_an_answer_that_leaves_a_name_out_is_none(nowhere: Cluster) -> None:
    async def silent(names: list[str]) -> dict[str, str | KafkaError]:
        return {"a": "done"}

    with pytest.raises(NotKafka, match="answer to Test leaves out b"):
        await settle(nowhere, ["a", "b"], silent, deadline(LONG_S), api="Test")


@each(
    "error, code",
    [
        (ConnectionLost("gone"), ErrorCode.NETWORK_EXCEPTION),
        (RequestTimedOut("late"), ErrorCode.REQUEST_TIMED_OUT),
        (Unreachable("nobody there"), ErrorCode.BROKER_NOT_AVAILABLE),
        (FINAL, ErrorCode.NON_EMPTY_GROUP),
    ],
)
async def test_a_node_that_fails_keeps_the_others_from_nothing(error: Exception, code: ErrorCode) -> None:
    async def fails() -> dict[str, str | KafkaError]:
        raise error

    async def works() -> dict[str, str | KafkaError]:
        return {"c": "done"}

    outcomes = await together([(["a", "b"], fails()), (["c"], works())])
    assert outcomes["c"] == "done"
    assert {name: each.code for name, each in outcomes.failed.items()} == {"a": code, "b": code}
    with pytest.raises(type(error)):
        await together([(["a"], fails()), (["b"], fails())])


async def test_what_may_have_been_carried_out_is_not_hidden_by_what_was_not_sent(nowhere: Cluster) -> None:
    async def find(names: list[str]) -> dict[str, int]:
        return {"a": 1, "b": 2}

    async def ask(node: int, names: list[str]) -> dict[str, str | KafkaError]:
        raise Unreachable("nobody there") if node == 1 else ConnectionLost("gone")

    with pytest.raises(ConnectionLost, match="gone; it may have been applied"):
        await of_nodes(nowhere, ["a", "b"], find, ask, deadline(LONG_S), api="Test", repeatable=False)


async def test_what_was_lost_while_it_looked_for_the_place_was_not_sent(nowhere: Cluster) -> None:
    lost = [ConnectionLost("gone")]

    async def find(names: list[str]) -> dict[str, int]:
        if lost:
            raise lost.pop()
        return dict.fromkeys(names, 1)

    async def ask(node: int, names: list[str]) -> dict[str, str | KafkaError]:
        return dict.fromkeys(names, "done")

    outcomes = await of_nodes(nowhere, ["a"], find, ask, deadline(LONG_S), api="Test", repeatable=False)
    assert outcomes == {"a": "done"}


async def test_a_place_that_nobody_tells_is_no_change_that_was_made(nowhere: Cluster) -> None:
    async def find(names: list[str]) -> dict[str, int]:
        raise ConnectionLost("gone")

    async def ask(node: int, names: list[str]) -> dict[str, str | KafkaError]:
        raise AssertionError("nothing is to be sent")

    with pytest.raises(Unreachable, match=r"^gone$"):
        await of_nodes(nowhere, ["a"], find, ask, deadline(0.2), api="Test", repeatable=False)


async def test_what_was_found_out_outlives_the_one_node_that_fails(nowhere: Cluster) -> None:
    async def find(names: list[str]) -> dict[str, int | KafkaError]:
        return {"a": FINAL, "b": 1}

    async def ask(node: int, names: list[str]) -> dict[str, str | KafkaError]:
        raise ConnectionLost("gone")

    outcomes = await of_nodes(nowhere, ["a", "b"], find, ask, deadline(LONG_S), api="Test", repeatable=False)
    assert outcomes["a"] is FINAL
    assert outcomes.failed["b"].code == ErrorCode.NETWORK_EXCEPTION
    assert outcomes.failed["b"].why == "gone; it may have been applied anyway"


async def test_names_are_asked_for_where_they_are_now(nowhere: Cluster) -> None:
    """Names that moved are looked up again, and so are those of a node that is gone."""
    places: list[dict[str, int | KafkaError]] = [
        {"a": 1, "b": 2, "c": 1, "d": FINAL},
        {"b": 1, "c": 3},
    ]
    calls: list[tuple[int, list[str]]] = []

    async def find(names: list[str]) -> dict[str, int | KafkaError]:
        return places.pop(0)

    async def ask(node: int, names: list[str]) -> dict[str, str | KafkaError]:
        calls.append((node, names))
        if node == 2:
            raise Unreachable("nobody there")
        return {name: PASSES if (node, name) == (1, "c") else f"{name} at {node}" for name in names}

    outcomes = await of_nodes(nowhere, list("abcd"), find, ask, deadline(LONG_S), api="Test")
    assert outcomes == {"a": "a at 1", "b": "b at 1", "c": "c at 3", "d": FINAL}
    assert calls == [(1, ["a", "c"]), (2, ["b"]), (1, ["b"]), (3, ["c"])]


def test_leaders_are_found_with_one_look_at_each_topic() -> None:
    """One look for each wanted partition would take seconds with ten thousand."""
    looks = Counter[str]()

    class Partitions(list[MetadataResponse.Partition]):
        def __init__(self, topic: str, leaders: list[int]) -> None:
            Partition = MetadataResponse.Partition
            super().__init__(
                Partition(partition_index=index, leader_id=leader, replica_nodes=[], isr_nodes=[])
                for index, leader in enumerate(leaders)
            )
            self.topic = topic

        def __iter__(self) -> Iterator[MetadataResponse.Partition]:
            looks[self.topic] += 1
            return super().__iter__()

    told = MetadataResponse(
        brokers=[MetadataResponse.Broker(node_id=1, host="h", port=1)],
        topics=[
            MetadataResponse.Topic(name="a", partitions=Partitions("a", [1] * 20)),
            MetadataResponse.Topic(name="b", partitions=Partitions("b", [1, -1])),
        ],
    )
    wanted = [TopicPartition(topic, each) for topic, count in (("a", 20), ("b", 3)) for each in range(count)]
    found = answers._leaders(told, wanted)
    codes = [each.code if isinstance(each, KafkaError) else each for each in found.values()]
    assert codes == [1] * 21 + [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert looks == {"a": 1, "b": 1}


def test_outcomes() -> None:
    outcomes: Outcomes[str, int] = Outcomes({"a": 1, "b": FINAL})
    assert (outcomes.succeeded, outcomes.failed) == ({"a": 1}, {"b": FINAL})
    with pytest.raises(KafkaError):
        outcomes.raise_for_failures()
    del outcomes["b"]
    assert outcomes.raise_for_failures() == {"a": 1}


# --- Admin --------------------------------------------------------------------------------------------------

WHERE = TopicPartition("t", 0)
REPEATED: list[tuple[ApiKey, Callable[[Admin], Awaitable[object]]]] = [
    (ApiKey.METADATA, lambda admin: admin.list_topics()),
    (ApiKey.DESCRIBE_GROUPS, lambda admin: admin.describe_groups(["g"])),
    (ApiKey.OFFSET_FETCH, lambda admin: admin.list_group_offsets("g")),
    (ApiKey.LIST_OFFSETS, lambda admin: admin.list_offsets({WHERE: LATEST})),
    (ApiKey.OFFSET_COMMIT, lambda admin: admin.alter_group_offsets("g", {WHERE: 0})),
    (ApiKey.DELETE_RECORDS, lambda admin: admin.delete_records({WHERE: 0})),
]
NOT_REPEATED: list[tuple[ApiKey, Callable[[Admin], Awaitable[object]]]] = [
    (ApiKey.CREATE_TOPICS, lambda admin: admin.create_topic("new")),
    (ApiKey.CREATE_PARTITIONS, lambda admin: admin.create_partitions({"t": 2})),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, lambda admin: admin.alter_configs({CONFIGS: {"segment.ms": "9"}})),
    (ApiKey.DELETE_GROUPS, lambda admin: admin.delete_groups(["g"])),
    (ApiKey.DELETE_TOPICS, lambda admin: admin.delete_topics(["t"])),
]
CONFIGS = ConfigResource.of_topic("t")


@pytest.mark.parametrize(("api_key", "call"), REPEATED, ids=[key.name for key, _ in REPEATED])
async def test_what_does_no_harm_is_asked_again_when_its_answer_is_lost(
    api_key: ApiKey, call: Callable[[Admin], Awaitable[object]]
) -> None:
    port = free_ports(1)
    with testing.Broker(advertised=f"127.0.0.1:{port}") as broker:
        broker.create_topic("t")
        async with losing_answers(broker.port, api_key, 2, port) as address, Admin(str(address)) as admin:
            await call(admin)


@pytest.mark.parametrize(("api_key", "call"), NOT_REPEATED, ids=[key.name for key, _ in NOT_REPEATED])
async def test_what_changes_something_is_not(
    api_key: ApiKey, call: Callable[[Admin], Awaitable[object]]
) -> None:
    port = free_ports(1)
    with testing.Broker(advertised=f"127.0.0.1:{port}") as broker:
        broker.create_topic("t")
        # One answer is lost; a repeated request would have been answered.
        async with losing_answers(broker.port, api_key, 1, port) as address, Admin(str(address)) as admin:
            with pytest.raises(ConnectionLost, match="may have been applied anyway"):
                await call(admin)
            assert await admin.list_topics(include_internal=True)


async def test_a_broker_that_hangs_gets_no_more_than_its_time() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listener(mute) as address, Admin(str(address)) as admin:
        began = deadline(0)
        with pytest.raises(ClientError, match="in time"):
            await admin.list_topics(timeout=0.5)
        assert deadline(0) - began < 20


async def test_nobody_there() -> None:
    async with Admin(f"127.0.0.1:{free_ports(1)}") as admin:
        with pytest.raises(Unreachable, match="connection refused"):
            await admin.list_topics()


@each(
    "make, said",
    [
        (lambda: Admin("somewhere"), "bootstrap_servers: 'somewhere' is no address"),
        (lambda: Admin([]), r"bootstrap_servers=\[\]: it takes host:port"),
        (lambda: Admin(default_api_timeout_ms=0), "default_api_timeout_ms: it takes a time above 0"),
        (lambda: Admin(request_timeout_ms=-1), "request_timeout_ms: it takes a time above 0"),
    ],
)
async def test_settings_that_make_no_sense(make: Callable[[], Admin], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@each(
    "make, said",
    [
        (lambda: Admin(client_id=5), "client_id=5: it takes text"),  # type: ignore[arg-type]
        (lambda: Admin(client_id="\udc80"), r"client_id='\\udc80': it takes Unicode text"),
        (lambda: Admin(client_id="a" * 32_768), "client_id='a+': it takes Unicode text of at most 32767"),
        (
            lambda: Admin(default_api_timeout_ms="5"),  # type: ignore[arg-type]
            "default_api_timeout_ms='5': it takes a time, a number",
        ),
        (lambda: Admin(request_timeout_ms="5"), "request_timeout_ms='5': it takes"),  # type: ignore[arg-type]
    ],
)
async def test_settings_of_the_wrong_type_are_named(make: Callable[[], Admin], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make()


async def test_a_timeout_of_the_wrong_type_is_named(admin: Admin) -> None:
    with pytest.raises(TypeError, match="timeout='5': it takes a time, a number"):
        await admin.list_topics(timeout="5")  # type: ignore[arg-type]


@each("timeout", [0, -1, float("nan"), float("inf")])
async def test_timeouts_that_are_none(admin: Admin, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout: it takes a time above 0"):
        await admin.list_topics(timeout=timeout)


async def test_it_closes_for_good(admin: Admin) -> None:
    await admin.list_topics()
    await admin.close()
    await admin.close()
    with pytest.raises(Closed):
        await admin.list_topics()


async def test_a_cancelled_call_leaves_it_usable(admin: Admin, broker: testing.Broker) -> None:
    broker.create_topic("t", 3)
    for turns in range(40):
        call = asyncio.create_task(admin.reset_group_offsets("g", Latest(), topics=["t"]))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    assert len(await admin.reset_group_offsets("g", Latest(), topics=["t"])) == 3
    assert len(await admin.list_group_offsets("g")) == 3
