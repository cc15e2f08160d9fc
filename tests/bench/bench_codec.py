"""The compiled codec against construct, and against the other Kafka codecs on PyPI: ratios measured in one
run.

    python -m tests.bench.bench_codec [--partitions 100] [--rounds 15]

The subject is an OffsetCommit request. Every codec is warmed up, then the codecs take turns round by round,
so that a busy machine slows them all alike; the best round counts. Peers that are not installed are left out.
aiokafka knows the request up to version 3 only, hence the second table.
"""

from __future__ import annotations

import argparse
import importlib
import io
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from muster.protocol import codec, reference
from muster.protocol.messages.offsets import OffsetCommitRequest

FLEXIBLE_VERSION = 8
LEGACY_VERSION = 3
GROUP, MEMBER, TOPIC, METADATA = "orders", "consumer-1-7f3a", "payments", "host-3"


class Codec(NamedTuple):
    name: str
    kind: str
    decode: Callable[[], Any]
    encode: Callable[[], bytes]


def commit(partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=7,
        member_id=MEMBER,
        topics=[
            OffsetCommitRequest.Topic(
                name=TOPIC,
                partitions=[
                    OffsetCommitRequest.Partition(
                        partition_index=index,
                        committed_offset=index * 1_000_003,
                        committed_metadata=METADATA,
                    )
                    for index in range(partitions)
                ],
            )
        ],
    )


def muster(message: OffsetCommitRequest, version: int, data: bytes) -> Codec:
    return Codec(
        "muster",
        "compiled Python",
        lambda: codec.decode(OffsetCommitRequest, version, data),
        lambda: codec.encode(message, version),
    )


def construct(version: int, data: bytes) -> Codec:
    plain = reference.struct(OffsetCommitRequest, version)
    container = plain.parse(data)
    return Codec("construct", "interpreted", lambda: plain.parse(data), lambda: plain.build(container))


def reference_twin(message: OffsetCommitRequest, version: int, data: bytes) -> Codec:
    return Codec(
        "reference",
        "construct, to messages",
        lambda: reference.decode(OffsetCommitRequest, version, data),
        lambda: reference.encode(message, version),
    )


def kafka_python(version: int, data: bytes) -> Codec | None:
    try:
        from kafka.protocol.consumer import OffsetCommitRequest as Theirs
    except ImportError:
        return None

    message = Theirs.decode(data, version=version)
    message._header = None  # decode leaves it unset, and encode looks at it
    return Codec(
        "kafka-python",
        "compiled Python",
        lambda: Theirs.decode(data, version=version),
        lambda: bytes(message.encode(version=version)),
    )


def kio(version: int, data: bytes) -> Codec | None:
    try:
        from kio.serial import entity_reader, entity_writer
    except ImportError:
        return None

    module = importlib.import_module(f"kio.schema.offset_commit.v{version}.request")
    read = entity_reader(module.OffsetCommitRequest)
    write = entity_writer(module.OffsetCommitRequest)
    message, _ = read(data, 0)

    def encode() -> bytes:
        with io.BytesIO() as buffer:
            write(buffer, message)
            return buffer.getvalue()

    return Codec("kio", "native decode, Python encode", lambda: read(data, 0), encode)


def aiokafka(version: int, data: bytes) -> Codec | None:
    if version > LEGACY_VERSION:
        return None
    try:
        from aiokafka.protocol import commit
    except ImportError:
        return None

    schema = getattr(commit, f"OffsetCommitRequest_v{version}").SCHEMA
    message = schema.decode(io.BytesIO(data))
    return Codec(
        "aiokafka", "interpreted", lambda: schema.decode(io.BytesIO(data)), lambda: schema.encode(message)
    )


def best_of(functions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Seconds a call takes, per function, in the best of `rounds` rounds of at least 20 ms each."""
    calls = []
    for function in functions:
        function()
        started = time.perf_counter()
        function()
        calls.append(max(1, int(0.02 / (time.perf_counter() - started))))
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            started = time.perf_counter()
            for _ in range(calls[index]):
                function()
            best[index] = min(best[index], (time.perf_counter() - started) / calls[index])
    return best


def compare(version: int, partitions: int, rounds: int) -> None:
    message = commit(partitions)
    data = codec.encode(message, version)
    peers = [kafka_python(version, data), kio(version, data), aiokafka(version, data)]
    own = [muster(message, version, data), construct(version, data), reference_twin(message, version, data)]
    codecs = own + [peer for peer in peers if peer is not None]
    for peer in codecs:
        assert peer.encode() == data, f"{peer.name} encodes other bytes"
    decoding = best_of([peer.decode for peer in codecs], rounds)
    encoding = best_of([peer.encode for peer in codecs], rounds)
    print(f"\nOffsetCommit request v{version}, {partitions} partitions, {len(data)} bytes")
    print(f"{'codec':14}{'kind':30}{'decode us':>10}{'ratio':>8}{'encode us':>11}{'ratio':>8}")
    for peer, decode, encode in zip(codecs, decoding, encoding, strict=True):
        print(
            f"{peer.name:14}{peer.kind:30}{decode * 1e6:10.1f}{decode / decoding[0]:7.1f}x"
            f"{encode * 1e6:11.1f}{encode / encoding[0]:7.1f}x"
        )


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        description="The compiled codec against construct and other Kafka codecs."
    )
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}; a ratio of 2.0x: muster is twice as fast")
    for version in (FLEXIBLE_VERSION, LEGACY_VERSION):
        compare(version, options.partitions, options.rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
