"""`muster produce`: lines of standard input or a file become records."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final, Literal

from muster.client.admin.topics import ensure_topic
from muster.client.errors import DeliveryTimedOut
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.producer import Producer
from muster.coordinator.commands import output, streams
from muster.coordinator.commands.options import command, number, setting, timestamp_ms
from muster.coordinator.commands.records import JSON_SHAPE, NotARecord, Outgoing, from_json, is_unicode
from muster.coordinator.commands.run import Failed, Usage
from muster.protocol.compression import Codec
from muster.protocol.errors import KafkaError

_ACKS: Final[dict[str, Literal["all", 0, 1]]] = {"all": "all", "1": 1, "0": 0}

_DESCRIPTION: Final = f"""\
A line is the value of a record; with --key-separator it is KEY, separator, VALUE. With --format json a line
is a record as muster consume --output json prints it (topic and offset are passed over):
{JSON_SHAPE}
A topic that is missing is created if the broker's auto.create.topics.enable allows it.

JSON: a line per record, {{"topic": text, "partition": number, "offset": number, "timestamp": epoch ms}};
the offset is -1 with --acks 0."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser = command(commands, name, summary, _DESCRIPTION, output=("text", "json"))
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--file", metavar="PATH", help="read this instead of standard input")
    parser.add_argument(
        "--format", choices=("lines", "json"), default="lines", help="what the input is (default lines)"
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", metavar="KEY", help="the key of every record")
    keys.add_argument("--key-separator", metavar="TEXT", help="what stands between key and value in a line")
    parser.add_argument(
        "--header",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every record; may be repeated",
    )
    parser.add_argument(
        "--partition", type=number(0), metavar="N", help="where to; the key decides otherwise, as with Java"
    )
    parser.add_argument(
        "--timestamp", type=timestamp_ms, metavar="TIME", help="epoch ms or ISO 8601 (default: now)"
    )
    parser.add_argument("--null-marker", metavar="TEXT", help="a key or value that equals this is null")
    parser.add_argument(
        "--compression", choices=[each.name.lower() for each in Codec], default="none", help="(default none)"
    )
    parser.add_argument(
        "--acks",
        choices=_ACKS,
        default="all",
        help="who must have a record before it counts as sent: all in-sync replicas (default; nothing is\n"
        "written twice), the leader, nobody",
    )
    parser.set_defaults(work=produce)


async def produce(cluster: Cluster, given: Namespace) -> int:
    """Send records until the input ends."""
    read = _reader(given)
    descriptor = _open(given.file)
    await ensure_topic(cluster, given.topic, deadline(given.timeout))
    sending = _Sending(given)
    count = 0
    await sending.producer.start()
    try:
        async for lines in streams.lines(descriptor):
            records: list[Outgoing] = []
            broken = None
            for line in lines:
                try:
                    records.append(read(line))
                except NotARecord as error:
                    broken = Failed(f"line {count + len(records) + 1}: {error}")
                    break
            await sending.send(records, count)
            count += len(records)
            if broken is not None:
                raise broken
    except streams.LineTooLong:
        raise Failed(f"line {count + 1} is longer than {streams.LINE_BYTES_MAX} bytes") from None
    finally:
        await sending.producer.close(timeout=0)  # what was waited for is settled
    if given.output == "text":
        print(f"{count} record{'s' if count != 1 else ''} to {given.topic}")
    return 0


class _Sending:
    """Sends lines, as many at a time as have arrived, and waits until each is acknowledged."""

    def __init__(self, given: Namespace) -> None:
        self._given = given
        timeout_ms = max(1, round(given.timeout * 1000))
        self.producer: Producer[bytes, bytes] = Producer(
            given.bootstrap,
            acks=_ACKS[given.acks],
            compression_type=given.compression,
            linger_ms=0,
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            # The topic says how large a record may be.
            max_request_size=2 * streams.LINE_BYTES_MAX,
        )

    async def send(self, records: list[Outgoing], before: int) -> None:
        """`before`: so many lines were sent before these."""
        if not records:
            return
        first, last = before + 1, before + len(records)
        which = f"line {first}" if first == last else f"lines {first} to {last}"
        try:
            sent = await self._acknowledged(records)
        except KafkaError as error:
            raise KafkaError(error.code, f"{which}, not all are written: {error.why}") from error
        except DeliveryTimedOut as error:
            why = f"{which}, perhaps not all are written: {error}"
            raise Failed(f"{why} (--timeout gives them longer)") from error
        if self._given.output == "json":
            told = ({"topic": self._given.topic, **each} for each in sent)
            await streams.write("".join(output.line(each) + "\n" for each in told).encode())

    async def _acknowledged(self, records: list[Outgoing]) -> list[dict[str, int]]:
        futures = []
        try:
            for record in records:
                future = await self.producer.post(
                    self._given.topic,
                    record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                    headers=record.headers,
                )
                futures.append(future)
        finally:
            settled = await asyncio.gather(*futures, return_exceptions=True)
        sent = []
        for each in settled:
            if isinstance(each, BaseException):
                raise each
            sent.append({"partition": each.partition, "offset": each.offset, "timestamp": each.timestamp})
        return sent


def _open(path: str | None) -> int:
    if path is None:
        if sys.stdin is None:
            raise Failed("standard input is closed; --file names what to read instead")
        return sys.stdin.fileno()
    try:
        if os.path.isdir(path):  # which opens, and cannot be read
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Failed(f"--file {path}: {error.strerror}") from error


def _reader(given: Namespace) -> Callable[[bytes], Outgoing]:
    """How a line becomes a record."""
    for name, _ in given.header:
        if not is_unicode(name):
            raise Usage(f"--header: the name {name!r} is no UTF-8")
    headers = tuple((name, os.fsencode(value)) for name, value in given.header)
    if given.format == "json":
        if given.key is not None or given.key_separator is not None or given.null_marker is not None:
            raise Usage(
                "--key, --key-separator and --null-marker are for --format lines: JSON says it itself"
            )
        return lambda line: _completed(from_json(line), headers, given)
    if given.key_separator == "":
        raise Usage("--key-separator: it takes at least one character")
    # The bytes as they were typed, whatever the terminal's encoding.
    separator = None if given.key_separator is None else os.fsencode(given.key_separator)
    null = None if given.null_marker is None else os.fsencode(given.null_marker)
    fixed = None if given.key is None else os.fsencode(given.key)

    def read(line: bytes) -> Outgoing:
        key, value = fixed, line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise NotARecord(f"there is no {given.key_separator!r} in it")
        return _completed(
            Outgoing(None if key == null else key, None if value == null else value), headers, given
        )

    return read


def _completed(record: Outgoing, headers: tuple[tuple[str, bytes], ...], given: Namespace) -> Outgoing:
    """With what the options say about every record; what the record itself says goes before."""
    return record._replace(
        headers=(*record.headers, *headers),
        partition=given.partition if record.partition is None else record.partition,
        timestamp=given.timestamp if record.timestamp is None else record.timestamp,
    )
