"""Spark's own `kafka` connector compared with the format "muster": the same topics, from muster and from
Apache Kafka, give the same rows, batch by batch.

One process has a session with the connector's jars and runs everything that is compared; each test checks its
part of the results. DIFFERENT lists the differences, with the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Producer as ConfluentProducer

from muster.client import Admin
from muster.coordinator.testing import Broker
from tests.pipeline.connector.session import BATCH, STREAM, WRITE, Answer, Row, Step, run
from tests.pipeline.connector.topics import (
    BEGIN_MS,
    CODECS,
    KEPT,
    RECORDS,
    orders,
    wait_for_compaction,
    write,
)
from tests.support.apache_kafka import ApacheKafka

FORMATS: Final = ("kafka", "muster")
BROKERS: Final = ("muster", "apache")
_COMPACTING: Final = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "10485760",
}
_DELIVERED_S: Final = 60.0


def _each(topic: str, partitions: int, value: Any) -> str:
    """JSON with the value for each partition."""
    return json.dumps({topic: {str(partition): value for partition in range(partitions)}})


class Case(NamedTuple):
    """What to read, and the expected number of rows."""

    options: dict[str, str]
    rows: int


_ALL = len(CODECS) * RECORDS
_AT = BEGIN_MS + 20_000

BATCHES: Final[dict[str, Case]] = {
    "all": Case({"subscribe": "orders"}, _ALL),
    "headers": Case({"subscribe": "orders", "includeHeaders": "true"}, _ALL),
    "several topics": Case({"subscribe": "orders,small,empty,stamped", "includeHeaders": "true"}, _ALL + 6),
    "pattern": Case({"subscribePattern": "^s.*"}, 6),
    "pattern, found within names": Case({"subscribePattern": "rice|mal"}, len(KEPT) + 3),
    "assigned": Case({"assign": '{"orders":[1,3],"small":[1]}'}, 2 * RECORDS + 3),
    "nothing": Case({"subscribe": "empty"}, 0),
    "broker's clock": Case({"subscribe": "stamped"}, 3),
    "compacted": Case({"subscribe": "prices"}, len(KEPT)),
    "compacted, from within a gap": Case(
        {
            "subscribe": "prices",
            "startingOffsets": '{"prices":{"0":3}}',
            "endingOffsets": '{"prices":{"0":9}}',
        },
        1,
    ),
    "many tasks": Case({"subscribe": "orders", "minPartitions": "15"}, _ALL),
    "from offsets": Case(
        {
            "subscribe": "orders",
            "startingOffsets": '{"orders":{"0":-2,"1":10,"2":0,"3":59,"4":60}}',
            "endingOffsets": '{"orders":{"0":-1,"1":20,"2":0,"3":60,"4":-1}}',
        },
        RECORDS + 10 + 1,
    ),
    "from a time": Case({"subscribe": "orders", "startingTimestamp": str(_AT)}, len(CODECS) * (RECORDS - 20)),
    "to a time": Case({"subscribe": "orders", "endingTimestamp": str(_AT)}, len(CODECS) * 20),
    "from times by partition": Case(
        {
            "subscribe": "small,orders",
            "startingOffsetsByTimestamp": json.dumps(
                json.loads(_each("orders", len(CODECS), _AT + 1))
                | json.loads(_each("small", 2, BEGIN_MS + 2))
            ),
            "startingOffsetsByTimestampStrategy": "latest",
            "endingOffsetsByTimestamp": json.dumps(
                json.loads(_each("orders", len(CODECS), _AT + 5_000))
                | json.loads(_each("small", 2, BEGIN_MS + 9))
            ),
        },
        len(CODECS) * 4 + 1,
    ),
}

STREAMS: Final[dict[str, Case]] = {
    "all at once": Case({"subscribe": "orders,prices", "includeHeaders": "true"}, _ALL + len(KEPT)),
    "by and by": Case({"subscribe": "orders,small,empty", "maxOffsetsPerTrigger": "100"}, _ALL + 3),
}

REFUSED: Final[dict[str, dict[str, str]]] = {
    "a batch from the end": {"subscribe": "orders", "startingOffsets": "latest"},
    "a batch to the start": {"subscribe": "orders", "endingOffsets": "earliest"},
    "a time that is later than all": {"subscribe": "orders", "startingTimestamp": str(_AT + 10**9)},
    "an offset that is not there": {"subscribe": "small", "startingOffsets": '{"small":{"0":0,"1":7}}'},
    "not all partitions": {"subscribe": "small", "startingOffsets": '{"small":{"0":0}}'},
    "no topic": {},
    "two ways to name topics": {"subscribe": "small", "subscribePattern": "s.*"},
    "a topic that is not there": {"subscribe": "nowhere"},
}

TRANSACTIONS: Final[dict[str, Case]] = {
    "read_uncommitted": Case({"subscribe": "payments", "includeHeaders": "true"}, 5 + 5 + 4 + 2),
    "read_committed": Case({"subscribe": "payments", "kafka.isolation.level": "read_committed"}, 5 + 4),
}
"""Only on Apache Kafka so far."""

DIFFERENT: Final = {
    "offsets in a checkpoint": "ours have a second entry for each topic, `topic#id`, with leader epochs: by"
    " it a topic that was created again, and a log that was cut, are found out",
    "the way back from a checkpoint of ours": "the connector takes the second entries for topics that are"
    " gone: it goes on from there with failOnDataLoss=false alone",
}
"""The differences, and why. A test below has the name of each."""


MOVED: Final = (
    ("begun", "kafka", {}),
    ("gone on with", "muster", {}),
    ("gone back", "kafka", {}),
    ("gone back all the same", "kafka", {"failOnDataLoss": "false"}),
)
"""Streams with one checkpoint, each after further records: 1, 2, 3, 4."""


class Compared(NamedTuple):
    """The answers of both formats, by broker, kind and case."""

    answers: dict[tuple[str, str, str, str], Answer]

    def both(self, broker: str, kind: str, case: str) -> tuple[Answer, Answer]:
        found = [self.answers[broker, kind, case, each] for each in FORMATS]
        return found[0], found[1]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("connector")
    settings = {"log_cleaner_backoff_ms": 100, "lease_term_ms": 60_000}
    with Broker(**settings) as muster, ApacheKafka(_COMPACTING) as apache:
        servers = {"muster": muster.bootstrap, "apache": apache.bootstrap}
        for each in servers.values():
            asyncio.run(_prepared(each))
        _transact(apache.bootstrap)
        for each in servers.values():
            wait_for_compaction(each)
        steps = {
            (broker, step.kind, step.name, step.format): step
            for broker, where in servers.items()
            for step in _steps(broker, where)
        }
        answers = run(list(steps.values()), folder)
    return Compared(dict(zip(steps, answers, strict=True)))


def _steps(broker: str, servers: str) -> Iterator[Step]:
    where = {"kafka.bootstrap.servers": servers}
    earliest = where | {"startingOffsets": "earliest"}
    for each in FORMATS:
        for name, case in BATCHES.items():
            yield Step(name, each, BATCH, where | case.options)
        for name, options in REFUSED.items():
            yield Step(name, each, BATCH, where | options)
        for name, case in STREAMS.items():
            yield Step(name, each, STREAM, earliest | case.options)
        if broker == "apache":
            for name, case in TRANSACTIONS.items():
                yield Step(name, each, BATCH, where | case.options)
                yield Step(name, each, STREAM, earliest | case.options)
        yield Step("out", each, WRITE, where, _out(f"from-{each}"))
    for writer in FORMATS:
        for each in FORMATS:
            read = where | {"subscribe": f"from-{writer}", "includeHeaders": "true"}
            yield Step(f"from-{writer}", each, BATCH, read)
    # One format starts a query, the other continues it, and the first takes it back.
    follow = earliest | {"subscribe": "moved"}
    for number, (name, each, more) in enumerate(MOVED):
        yield Step(f"moved {number}", "kafka", WRITE, where, _numbers("moved", 10 * number, number + 1))
        yield Step(name, each, STREAM, follow | more, checkpoint=f"moved-{broker}")


async def _prepared(servers: str) -> None:
    await write(servers)
    async with Admin(servers) as admin:
        for each in FORMATS:
            await admin.create_topic(f"from-{each}", 3)
        await admin.create_topic("payments", 1)
        await admin.create_topic("moved", 1)


def _transact(servers: str) -> None:
    """Send records outside transactions, and in one that is aborted, one that is committed, and one that is
    left open."""

    def send(producer: ConfluentProducer, count: int) -> None:
        for number in range(count):
            producer.produce("payments", b"%d" % number, b"k", headers=[("n", b"1")])
        assert producer.flush(_DELIVERED_S) == 0

    settings = {"bootstrap.servers": servers, "transactional.id": "till", "transaction.timeout.ms": 800_000}
    send(ConfluentProducer({"bootstrap.servers": servers}), 5)
    producer = ConfluentProducer(settings)
    producer.init_transactions(_DELIVERED_S)
    for count, end in ((5, producer.abort_transaction), (4, producer.commit_transaction), (2, None)):
        producer.begin_transaction()
        send(producer, count)
        if end is not None:
            end(_DELIVERED_S)


def _out(topic: str) -> list[Row]:
    """Every shape of record, to two of the topic's partitions; without key and partition, a producer would
    choose one."""
    return [
        [_hex(key), _hex(value), topic, n % 2, [(name, _hex(each)) for name, each in headers]]
        for n, (key, value, headers, _) in enumerate(orders(0))
    ]


def _numbers(topic: str, first: int, count: int) -> list[Row]:
    return [[None, _hex(b"%d" % number), topic, 0, []] for number in range(first, first + count)]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex().upper()


def _expected(partition: int) -> list[list[Any]]:
    return [
        [
            _hex(key),
            _hex(value),
            "orders",
            partition,
            offset,
            at_ms * 1_000,
            0,
            [[name, _hex(each)] for name, each in headers] or None,
        ]
        for offset, (key, value, headers, at_ms) in enumerate(orders(partition))
    ]


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_has_the_same_rows(compared: Compared, broker: str, case: str) -> None:
    kafkas, ours = compared.both(broker, BATCH, case)
    assert (kafkas.error, ours.error) == ("", "")
    assert len(ours.rows) == BATCHES[case].rows
    assert ours.rows == kafkas.rows
    assert json.loads(ours.schema) == json.loads(kafkas.schema)  # names, types, nullability
    assert ours.tasks == kafkas.tasks
    if case == "many tasks":
        assert ours.tasks == 15


@pytest.mark.parametrize("broker", BROKERS)
def test_the_rows_are_what_was_written(compared: Compared, broker: str) -> None:
    """Otherwise both sources could be wrong in the same way."""
    expected = [row for partition in range(len(CODECS)) for row in _expected(partition)]
    for answer in compared.both(broker, BATCH, "headers"):
        assert answer.rows == expected
    for answer in compared.both(broker, BATCH, "compacted"):
        assert [row[4] for row in answer.rows] == KEPT


@pytest.mark.parametrize("case", sorted(BATCHES.keys() - {"broker's clock", "several topics", "pattern"}))
def test_both_brokers_have_the_same_rows(compared: Compared, case: str) -> None:
    """All cases but those that show a broker's own time."""
    for each in FORMATS:
        on_muster, on_apache = (compared.answers[broker, BATCH, case, each] for broker in BROKERS)
        assert on_muster.rows == on_apache.rows


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("case", REFUSED)
def test_both_refuse_the_same(compared: Compared, broker: str, case: str) -> None:
    kafkas, ours = compared.both(broker, BATCH, case)
    assert kafkas.error
    assert ours.error


# --- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_has_the_same_rows_in_the_same_batches(compared: Compared, broker: str, case: str) -> None:
    kafkas, ours = compared.both(broker, STREAM, case)
    assert (kafkas.error, ours.error) == ("", "")
    assert len(ours.rows) == STREAMS[case].rows
    assert sorted(ours.rows, key=_place) == sorted(kafkas.rows, key=_place)
    assert json.loads(ours.schema) == json.loads(kafkas.schema)
    assert [_without_identity(each) for each in ours.offsets] == kafkas.offsets
    assert len(kafkas.offsets) == (1 if case == "all at once" else 4)


def test_offsets_in_a_checkpoint(compared: Compared) -> None:
    """See DIFFERENT."""
    for broker in BROKERS:
        for case in STREAMS:
            kafkas, ours = compared.both(broker, STREAM, case)
            assert not any("#" in name for end in kafkas.offsets for name in end)
            for end in ours.offsets:
                topics = _without_identity(end)
                beside = {name.partition("#")[0]: numbers for name, numbers in end.items() if "#" in name}
                assert beside.keys() == topics.keys()
                assert all(beside[topic].keys() == topics[topic].keys() for topic in topics)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_checkpoint_of_the_connector_is_gone_on_with(compared: Compared, broker: str) -> None:
    begun, ours, _, _ = _moved(compared, broker)
    assert (begun.error, ours.error) == ("", "")
    assert [row[4] for row in begun.rows] == [0]
    assert sorted(row[4] for row in ours.rows) == [0, 1, 2]
    assert [_without_identity(each)["moved"]["0"] for each in ours.offsets] == [1, 3]


def test_the_way_back_from_a_checkpoint_of_ours(compared: Compared) -> None:
    """See DIFFERENT."""
    for broker in BROKERS:
        *_, back, all_the_same = _moved(compared, broker)
        assert "moved#" in back.error
        assert "failOnDataLoss" in back.error
        assert all_the_same.error == ""
        assert sorted(row[4] for row in all_the_same.rows) == list(range(10))


def _moved(compared: Compared, broker: str) -> list[Answer]:
    return [compared.answers[broker, STREAM, name, each] for name, each, _ in MOVED]


def _place(row: Row) -> Any:
    return row[2:5]


def _without_identity(end: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: numbers for name, numbers in end.items() if "#" not in name}


# --- transactions and writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BATCH, STREAM])
@pytest.mark.parametrize("case", TRANSACTIONS)
def test_transactions_on_apache_kafka(compared: Compared, kind: str, case: str) -> None:
    kafkas, ours = compared.both("apache", kind, case)
    assert (kafkas.error, ours.error) == ("", "")
    assert len(ours.rows) == TRANSACTIONS[case].rows
    assert ours.rows == kafkas.rows


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("writer", FORMATS)
def test_what_either_writes_both_read(compared: Compared, broker: str, writer: str) -> None:
    written = compared.answers[broker, WRITE, "out", writer]
    assert written.error == ""
    kafkas, ours = compared.both(broker, BATCH, f"from-{writer}")
    assert (kafkas.error, ours.error) == ("", "")
    assert ours.rows == kafkas.rows
    found = [[*row[:4], row[7] or []] for row in ours.rows]
    sent = [[*row[:4], [list(each) for each in row[4]]] for row in _out(f"from-{writer}")]
    assert found == sorted(sent, key=lambda row: row[3])


def test_every_difference_has_a_test() -> None:
    names = {name.replace("test_", "").replace("_", " ") for name in globals()}
    assert DIFFERENT.keys() <= names
