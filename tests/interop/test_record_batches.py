"""Record batches against kafka-python's own reader and writer, and librdkafka's through a broker."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from muster.coordinator.testing import Broker
from muster.protocol import record_batch
from muster.protocol.compression import Codec
from muster.protocol.record_batch import Record

pytestmark = pytest.mark.interop

RECORDS = [
    Record(0, 1_700_000_000_000, b"a", b"one", (("trace", b"\x01"), ("none", None))),
    Record(1, 1_699_999_999_000, None, b"two" * 400),
    Record(2, 1_700_000_001_000, b"", None),
]
CODECS = list(Codec)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_kafka_python_are_read(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=123,
        producer_epoch=4,
        base_sequence=5,
        batch_size=1 << 20,
    )
    for record in RECORDS:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    built = bytes(builder.build())
    header = record_batch.peek(built)
    assert record_batch.crc_matches(built, 0, header)
    assert list(record_batch.records(built, 0, header)) == RECORDS
    checked = record_batch.check_records(record_batch.payload(built, 0, header), header)
    assert (checked.max_timestamp, checked.keyless) == (1_700_000_001_000, [1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123, 4, 5)
    if codec is Codec.NONE:
        ours = record_batch.build(RECORDS, producer_id=123, producer_epoch=4, base_sequence=5)
        skip = record_batch.PREFIX_BYTES  # a producer's leader epoch is meaningless
        assert ours[skip:] == built[skip:]


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_our_batches(codec: Codec) -> None:
    contents = [record._replace(offset=record.offset + 70) for record in RECORDS]
    ours = record_batch.build(contents, codec=codec, leader_epoch=6)
    theirs = DefaultRecordBatch(ours)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset, theirs.leader_epoch) == (70, 73, 6)
    found = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in theirs]
    assert found == [tuple(record) for record in contents]


def test_librdkafka_reads_what_it_and_what_we_packed() -> None:
    """Every codec as the producer packed it, and repacked by the broker (compression.type)."""
    packed = ["none", "gzip", "snappy", "lz4", "zstd"]
    demanded = ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    value = b'{"user": 1234567, "item": "abcdef"}' * 4
    count = 2_000
    with Broker() as broker:
        address = {"bootstrap.servers": broker.bootstrap}
        names = {pair: "-".join(pair) for pair in itertools.product(packed, demanded)}
        wanted = [
            NewTopic(name, 1, config={"compression.type": demand}) for (_, demand), name in names.items()
        ]
        admin = AdminClient(address)  # its futures resolve only as long as it lives
        for made in admin.create_topics(wanted).values():
            made.result(10)
        for codec in packed:
            producer = Producer({**address, "compression.type": codec, "enable.idempotence": True})
            for demand, number in itertools.product(demanded, range(count)):
                producer.produce(names[codec, demand], value, key=str(number))
            assert producer.flush(30) == 0
        for name in names.values():
            consumer = Consumer({**address, "group.id": "none", "check.crcs": True})
            consumer.assign([TopicPartition(name, 0, 0)])
            found: list[bytes] = []
            while len(found) < count and (messages := consumer.consume(count, 10)):
                for message in messages:
                    assert message.error() is None
                    assert message.value() == value
                    found.append(message.key())
            consumer.close()
            assert found == [b"%d" % number for number in range(count)], name
