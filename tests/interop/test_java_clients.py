"""Apache Kafka's own Java clients, unchanged, against muster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.record_batch import batches, payload
from tests.support.java import java
from tests.support.kafka_artifacts import clients_classpath
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.interop

_CLIENTS = Path(__file__).with_name("JavaClients.java")
_CODECS = Path(__file__).with_name("JavaCodecs.java")
_SECONDS_MAX = 90


def test_java_clients_produce_share_a_group_and_resume() -> None:
    """Two consumers split four partitions; a third goes on exactly where they committed."""
    classpath = clients_classpath()
    with Broker() as broker:
        printed = _run(_CLIENTS, classpath, broker.bootstrap)
    assert printed == [
        "shared=2+2",
        "consumed=100",
        "rebalanced=true",
        "resumed=100..109",
        "committed=110",
    ]


def test_java_reads_what_the_broker_packed_anew() -> None:
    """With compression.type set, the bytes are muster's own and not those of a Kafka client."""
    classpath = clients_classpath()
    names = [codec.name.lower() for codec in Codec if codec is not Codec.NONE]
    with Broker() as broker:
        printed = _run(_CODECS, classpath, broker.bootstrap, *names)
        packed = {name: _stored(broker, name) for name in names}
    assert printed == [f"{name}=2005" for name in names]
    for name, stored in packed.items():
        unpacked_sizes = []
        for position, header in batches(stored):
            assert Codec(header.codec).name.lower() == name
            unpacked_sizes.append(len(payload(stored, position, header)))
        assert max(unpacked_sizes) > 4 * 65_536, f"{name}: no batch of several blocks"


def _stored(broker: Broker, topic: str) -> bytes:
    """The batches of partition 0 as they are sent to consumers."""
    host, _, port = broker.bootstrap.rpartition(":")
    stored = b""
    offset = 0
    with WireConnection(host, int(port), "test") as connection:
        while True:
            part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            named = FetchRequest.FetchTopic(topic=topic, partitions=[part])
            asked = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[named])
            (answer,) = connection.call(asked, 12, FetchResponse).responses[0].partitions
            assert answer.error_code == 0
            if not answer.records:
                return stored
            stored += answer.records
            *_, (_, last) = batches(answer.records)
            offset = last.next_offset


def _run(program: Path, classpath: str, *arguments: str) -> list[str]:
    """The output lines of a Java program."""
    done = subprocess.run(
        [*java(classpath), str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()
