"""Captures golden frames: stock clients talk to Apache Kafka through a proxy that records what it carries.

python -m tests.protocol.capture [SCENARIO ...]

starts Apache Kafka, runs one scenario with every client below (topics, idempotent producing, a group of a
dynamic and a static member that rebalances, commits, look-ups, deletions; security, quotas and features;
transactions), and rewrites the files in `golden/`; with names (java_security), only those. It is only needed
when a client or Kafka is upgraded; the tests read the files and need neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from muster.protocol import api, codec, header
from muster.protocol.frame import FrameSplitter
from muster.protocol.message import Message
from muster.protocol.messages.metadata import (
    DescribeClusterResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from tests.protocol.golden_frames import GOLDEN, GoldenFrame, write_frames, write_records
from tests.support import java as jvm
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_artifacts import KAFKA_VERSION, clients_classpath

_FRAME_BYTES_MAX = 3000
"""Longer frames are not worth their place in the repository."""

_DEADLINE_SECONDS: Final = 60.0
_NAMES_BROKERS: Final[dict[int, type[Message]]] = {
    api.ApiKey.METADATA: MetadataResponse,
    api.ApiKey.FIND_COORDINATOR: FindCoordinatorResponse,
    api.ApiKey.DESCRIBE_CLUSTER: DescribeClusterResponse,
}
"""Responses that tell clients where to connect."""

_TOPIC: Final = "golden"
_GROUP: Final = "golden-group"


class RecordingProxy:
    """Forwards frames between clients and a broker, and keeps those whose messages we declare.

    In responses, the proxy's address replaces the broker's own, so that clients stay with the proxy; the
    frames kept are those the broker sent.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._frames: dict[tuple[str, int], set[bytes]] = {}
        self._ready: Future[tuple[str, int]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._stop: Callable[[], object] = lambda: None

    def __enter__(self) -> RecordingProxy:
        self._thread.start()
        self.host, self.port = self._ready.result(_DEADLINE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join(_DEADLINE_SECONDS)

    def frames(self) -> list[GoldenFrame]:
        """The shortest frame of each message and version, and the longest one that is not too long."""
        chosen = []
        for (message, version), frames in sorted(self._frames.items()):
            by_length = sorted((frame for frame in frames if len(frame) <= _FRAME_BYTES_MAX), key=len)
            chosen += [GoldenFrame(message, version, frame) for frame in {*by_length[:1], *by_length[-1:]}]
        return chosen

    async def _serve(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._ready.set_result(server.sockets[0].getsockname()[:2])
        await stopped.wait()
        server.close()

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection(*self._upstream)
        asked: dict[int, tuple[int, int]] = {}  # correlation id -> API and version of the request

        def request(frame: bytes) -> bytes:
            api_key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
            asked[int.from_bytes(frame[4:8], "big")] = api_key, version
            self._keep("Request", api_key, version, frame)
            return frame

        def response(frame: bytes) -> bytes:
            api_key, version = asked.pop(int.from_bytes(frame[:4], "big"))
            self._keep("Response", api_key, version, frame)
            return self._readdress(api_key, version, frame)

        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(_pump(client, to_broker, request), _pump(broker, to_client, response))

    def _keep(self, kind: str, api_key: int, version: int, frame: bytes) -> None:
        if api_key in api.declared_apis() and version in api.versions(api_key):
            cls = api.request_class(api_key) if kind == "Request" else api.response_class(api_key)
            self._frames.setdefault((cls.__name__, version), set()).add(frame)

    def _readdress(self, api_key: int, version: int, frame: bytes) -> bytes:
        cls = _NAMES_BROKERS.get(api_key)
        if cls is None:
            return frame
        correlation_id, offset = header.decode_response_header(api_key, version, frame)
        message: Any = codec.decode(cls, version, frame, offset)
        for node in (message, *getattr(message, "brokers", ()), *getattr(message, "coordinators", ())):
            if getattr(node, "port", 0) == self._upstream[1]:
                node.port = self.port
        return header.encode_response(api_key, version, correlation_id, message)[4:]


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, forward: Callable[[bytes], bytes]
) -> None:
    splitter = FrameSplitter()
    try:
        while piece := await source.read(65536):
            for frame in splitter.feed(piece):
                forwarded = forward(frame)
                sink.write(len(forwarded).to_bytes(4, "big") + forwarded)
            await sink.drain()
    finally:
        sink.close()


def until(fact: Callable[[], object]) -> None:
    """Call `fact`, which does a little work, until it returns something true."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not come true in {_DEADLINE_SECONDS:.0f} s: {fact!r}")


def untyped(module: str) -> Any:
    """A client's module, whose contents no type checker knows."""
    return importlib.import_module(module)


def confluent_kafka(bootstrap: str) -> None:
    ck, ck_admin = untyped("confluent_kafka"), untyped("confluent_kafka.admin")
    partitions = [ck.TopicPartition(_TOPIC, 0), ck.TopicPartition(_TOPIC, 1)]
    common = {"bootstrap.servers": bootstrap, "client.id": "golden"}
    admin = ck_admin.AdminClient(common)

    def done(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(_DEADLINE_SECONDS)

    done(admin.create_topics([ck_admin.NewTopic(_TOPIC, 2, 1, config={"retention.ms": "-1"})]))
    until(lambda: len(admin.list_topics(_TOPIC, timeout=10).topics[_TOPIC].partitions) == 2)
    producer = ck.Producer({**common, "enable.idempotence": True})
    for number in range(4):
        producer.produce(_TOPIC, key=b"k", value=b"v%d" % number, partition=number % 2, headers={"h": b"1"})
    assert producer.flush(_DEADLINE_SECONDS) == 0

    group = {
        **common,
        "group.id": _GROUP,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 100,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first = ck.Consumer({**group, "partition.assignment.strategy": "cooperative-sticky"})
    second = ck.Consumer(
        {**group, "partition.assignment.strategy": "cooperative-sticky", "group.instance.id": "static-1"}
    )
    first.subscribe([_TOPIC])
    until(lambda: first.poll(0.1) and len(first.assignment()) == 2)
    first.commit(asynchronous=False)
    first.committed(partitions, timeout=10)
    first.offsets_for_times([ck.TopicPartition(_TOPIC, 0, 1)], timeout=10)
    first.get_watermark_offsets(partitions[0], timeout=10)
    second.subscribe([_TOPIC])
    until(lambda: (first.poll(0.05), second.poll(0.05), len(second.assignment()) == 1)[-1])
    admin.list_consumer_groups().result(_DEADLINE_SECONDS)
    done(admin.describe_consumer_groups([_GROUP], include_authorized_operations=True))
    done(admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(_GROUP)]))
    first.close()
    second.close()

    done(admin.list_offsets({partitions[0]: ck_admin.OffsetSpec.max_timestamp()}))
    admin.describe_cluster(include_authorized_operations=True).result(_DEADLINE_SECONDS)
    resource = ck_admin.ConfigResource(ck_admin.ConfigResource.Type.TOPIC, _TOPIC)
    done(admin.describe_configs([resource]))
    append = ck_admin.AlterConfigOpType.APPEND
    resource.add_incremental_config(
        ck_admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=append)
    )
    done(admin.incremental_alter_configs([resource]))
    admin.elect_leaders(ck.ElectionType.PREFERRED, partitions).result(_DEADLINE_SECONDS)
    done(admin.delete_records([ck.TopicPartition(_TOPIC, 0, 1)]))
    done(admin.create_partitions([ck_admin.NewPartitions(_TOPIC, 3)]))
    done(admin.delete_topics([_TOPIC]))
    until(lambda: _TOPIC not in admin.list_topics(timeout=10).topics)


def kafka_python(bootstrap: str) -> None:
    kafka, kafka_admin = untyped("kafka"), untyped("kafka.admin")
    common: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "golden"}
    admin = kafka.KafkaAdminClient(**common)
    admin.create_topics([kafka_admin.NewTopic(_TOPIC, 2, 1)])
    admin.wait_for_topics([_TOPIC])
    producer = kafka.KafkaProducer(**common)
    for number in range(4):
        producer.send(_TOPIC, key=b"k", value=b"v%d" % number, partition=number % 2).get(_DEADLINE_SECONDS)
    producer.close()

    def consumer(**configs: Any) -> Any:
        return kafka.KafkaConsumer(
            _TOPIC,
            **common,
            group_id=_GROUP,
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **configs,
        )

    first = consumer()
    until(lambda: first.poll(100) and len(first.assignment()) == 2)
    first.commit()
    partition = kafka.TopicPartition(_TOPIC, 0)
    first.committed(partition)
    first.offsets_for_times({partition: 1})
    first.end_offsets([partition])
    second = consumer(group_instance_id="static-1")
    until(lambda: (first.poll(50), second.poll(50), len(second.assignment()) == 1)[-1])
    admin.list_groups()
    admin.describe_groups([_GROUP])
    admin.list_group_offsets([_GROUP])
    first.close()
    second.close()

    admin.describe_cluster()
    topic = kafka_admin.ConfigResourceType.TOPIC
    admin.describe_configs([kafka_admin.ConfigResource(topic, _TOPIC)])
    for incremental in (True, False):
        changed = kafka_admin.ConfigResource(topic, _TOPIC, {"retention.ms": "-1"})
        admin.alter_configs([changed], incremental=incremental)
    admin.list_config_resources()
    admin.describe_log_dirs()
    admin.delete_records({partition: 1})
    admin.create_partitions({_TOPIC: kafka_admin.NewPartitions(3)})
    admin.delete_topics([_TOPIC])
    admin.close()


def confluent_transactions(bootstrap: str) -> None:
    """Transactions in the protocol before KIP-890's second part."""
    ck, ck_admin = untyped("confluent_kafka"), untyped("confluent_kafka.admin")
    common = {"bootstrap.servers": bootstrap, "client.id": "golden"}
    admin = ck_admin.AdminClient(common)
    admin.create_topics([ck_admin.NewTopic(_TOPIC, 2, 1)])[_TOPIC].result(_DEADLINE_SECONDS)
    reading = {
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = ck.Consumer({**common, **reading, "group.id": _GROUP})
    consumer.subscribe([_TOPIC])
    producer = ck.Producer({**common, "transactional.id": "golden-id"})
    producer.init_transactions(_DEADLINE_SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(_TOPIC, key=b"k", value=b"v", partition=partition)
        if end == producer.abort_transaction:
            until(lambda: consumer.poll(0.1) is not None)
            offsets = [ck.TopicPartition(_TOPIC, 0, 1)]
            producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), _DEADLINE_SECONDS
            )
        assert producer.flush(_DEADLINE_SECONDS) == 0
        end(_DEADLINE_SECONDS)
    consumer.close()


def java(bootstrap: str) -> None:
    _run_java("GoldenScenario.java", bootstrap, _TOPIC, _GROUP)


def java_security(bootstrap: str) -> None:
    _run_java("GoldenSecurity.java", bootstrap, _TOPIC)


def java_transactions(bootstrap: str) -> None:
    _run_java("GoldenTransactions.java", bootstrap, _TOPIC, _GROUP)


def _run_java(program: str, *arguments: str) -> None:
    scenario = Path(__file__).with_name(program)
    command = [*jvm.java(clients_classpath(), log="error"), str(scenario), *arguments]
    subprocess.run(command, check=True, timeout=2 * _DEADLINE_SECONDS)


def coordinator_records(bootstrap: str) -> Iterator[tuple[bytes, bytes | None]]:
    """All records of `__consumer_offsets`, tombstones included."""
    ck = untyped("confluent_kafka")
    reader = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    topic = "__consumer_offsets"
    partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([ck.TopicPartition(topic, number, 0) for number in partitions])
    open_partitions = set(partitions)
    while open_partitions:
        message = reader.poll(_DEADLINE_SECONDS)
        assert message is not None, "the topic's end was not reached"
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            open_partitions.discard(message.partition())
        else:
            yield message.key(), message.value()
    reader.close()


def few_of_each_kind(
    records: Iterable[tuple[bytes, bytes | None]],
) -> list[tuple[bytes, bytes | None]]:
    """The shortest and the longest record of each record type and value version."""
    kinds: dict[tuple[bytes, bytes | None], list[tuple[bytes, bytes | None]]] = {}
    for key, value in records:
        kinds.setdefault((key[:2], None if value is None else value[:2]), []).append((key, value))
    chosen = []
    for kind in sorted(kinds, key=repr):
        by_length = sorted(kinds[kind], key=lambda record: len(record[1] or b""))
        chosen += by_length[:1] + by_length[-1:]
    return list(dict.fromkeys(chosen))


def clients() -> Iterator[tuple[str, Callable[[str], None]]]:
    """Name and version of each client, and its scenario."""
    yield f"confluent-kafka {metadata.version('confluent-kafka')}", confluent_kafka
    yield f"confluent-kafka {metadata.version('confluent-kafka')}", confluent_transactions
    yield f"kafka-python {metadata.version('kafka-python')}", kafka_python
    yield f"kafka-clients {KAFKA_VERSION} (Java)", java
    yield f"kafka-clients {KAFKA_VERSION} (Java)", java_security
    yield f"kafka-clients {KAFKA_VERSION} (Java)", java_transactions


def main(names: Sequence[str]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    records: list[tuple[bytes, bytes | None]] = []
    for name, scenario in clients():
        if names and scenario.__name__ not in names:
            continue
        # Each client gets its own broker, so that it does not see what others left behind (groups, offsets).
        with ApacheKafka() as kafka, RecordingProxy(kafka.host, kafka.port) as proxy:
            scenario(f"{proxy.host}:{proxy.port}")
            frames = proxy.frames()
            records += [] if names else coordinator_records(kafka.bootstrap)
        path = GOLDEN / f"{scenario.__name__}.txt"
        write_frames(path, f"{name} and Apache Kafka {KAFKA_VERSION}", frames)
        print(f"{path.name}: {len(frames)} frames")
    if not names:
        write_records(f"Apache Kafka {KAFKA_VERSION}", few_of_each_kind(records))


if __name__ == "__main__":
    main(sys.argv[1:])
