"""`muster produce`: send lines of standard input or a file as records."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from muster.client.admin.topics import ensure_topic
from muster.client.errors import ClientError, DeliveryTimedOut
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.threads import in_thread
from muster.client.producer import Producer, RecordFuture, RecordMetadata
from muster.coordinator.commands import output, streams
from muster.coordinator.commands.options import any_name, command, number, setting, timestamp_ms
from muster.coordinator.commands.progress import Progress
from muster.coordinator.commands.records import JSON_SHAPE, NotARecord, Outgoing, from_json, is_unicode
from muster.coordinator.commands.run import Failed, Usage
from muster.protocol.compression import Codec
from muster.protocol.errors import KafkaError

_ACKS: Final[dict[str, Literal["all", 0, 1]]] = {"all": "all", "1": 1, "0": 0}

_PIECES_MAX: Final = 2
"""Chunks of input that may be queued behind the one being acknowledged."""

_DESCRIPTION: Final = f"""\
Each line is the value of a record, or with --key-separator KEY, separator, VALUE. With --format json it is a
record as printed by muster consume --output json (topic and offset are ignored):
{JSON_SHAPE}
A missing topic is created if the broker's auto.create.topics.enable allows it.

JSON: one line per record, {{"topic": text, "partition": number, "offset": number, "timestamp": epoch ms}};
the offset is -1 with --acks 0."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser = command(commands, name, summary, _DESCRIPTION, output=("text", "json"))
    parser.add_argument("topic", type=any_name, metavar="TOPIC")
    parser.add_argument("--file", metavar="PATH", help="read this file instead of standard input")
    parser.add_argument(
        "--format", choices=("lines", "json"), default="lines", help="input format (default lines)"
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", metavar="KEY", help="the key of every record")
    keys.add_argument("--key-separator", metavar="TEXT", help="separates key and value in a line")
    parser.add_argument(
        "--header",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header for every record; may be repeated",
    )
    parser.add_argument(
        "--partition",
        type=number(0),
        metavar="N",
        help="target partition; by default chosen by the key, as in Java",
    )
    parser.add_argument(
        "--timestamp",
        type=timestamp_ms,
        metavar="TIME",
        help="epoch ms or ISO 8601 (without a zone: local time); default: now",
    )
    parser.add_argument("--null-marker", metavar="TEXT", help="a key or value that equals this is null")
    parser.add_argument(
        "--compression", choices=[each.name.lower() for each in Codec], default="none", help="(default none)"
    )
    parser.add_argument(
        "--acks",
        choices=_ACKS,
        default="all",
        help="who must have a record before it counts as sent: all in-sync replicas (default, no "
        "duplicates),\nthe leader, nobody",
    )
    parser.set_defaults(work=produce)


async def produce(cluster: Cluster, given: Namespace) -> int:
    """Send records until the input ends."""
    read = _reader(given)
    descriptor = await in_thread(_open, given.file)  # a FIFO opens once somebody writes to it
    await ensure_topic(cluster, given.topic, deadline(given.timeout))
    size_bytes = _size_bytes(descriptor)
    with Progress(given.prog, "record", total_bytes=size_bytes, shown=_may_show(given)) as progress:
        count = await _Sending(given, read, progress).all_of(descriptor)
    if given.output == "text":
        print(f"{count} record{'s' if count != 1 else ''} to {given.topic}")
    return 0


class _Piece(NamedTuple):
    """Lines read and sent together: the number of the first, counted from 1, and their futures."""

    first: int
    futures: list[RecordFuture]
    size_bytes: int


class _Sending:
    """Sends lines as they arrive and keeps reading while earlier ones are in flight; awaits each in order."""

    def __init__(self, given: Namespace, read: Callable[[bytes], Outgoing], progress: Progress) -> None:
        self._given = given
        self._read = read
        self._progress = progress
        timeout_ms = max(1, round(given.timeout * 1000))
        self._producer: Producer[bytes, bytes] = Producer(
            given.bootstrap,
            **given.client_options,
            acks=_ACKS[given.acks],
            compression_type=given.compression,
            linger_ms=0,
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            # The topic's limit applies.
            max_request_size=2 * streams.LINE_BYTES_MAX,
        )
        self._posted = 0
        """Number of lines passed to the producer."""
        self._latest = _Piece(1, [], 0)
        self._pieces: asyncio.Queue[_Piece | Exception | None] = asyncio.Queue(_PIECES_MAX)
        """Chunks to await, in order. None: end of input. An exception: why no more lines are sent."""
        self._tells = given.output == "json"
        """Whether to print each acknowledgement: in JSON, and as long as somebody reads it."""

    async def all_of(self, descriptor: int) -> int:
        """Send every line; returns their number once all are acknowledged."""
        await self._producer.start()
        posting = asyncio.create_task(self._post_all(descriptor))
        piece: _Piece | Exception | None = None
        try:
            while (piece := await self._pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                await self._settle(piece)
        finally:
            posting.cancel()
            await asyncio.wait([posting])
            _forget(piece)
            _forget(self._latest)
            while not self._pieces.empty():
                _forget(self._pieces.get_nowait())
            await self._producer.close(timeout=0)  # everything awaited is settled
        return self._posted

    async def _post_all(self, descriptor: int) -> None:
        ended: Exception | None = None
        try:
            async for lines in streams.lines(descriptor):
                size_bytes = sum(map(len, lines)) + len(lines)
                self._latest = _Piece(self._posted + 1, [], size_bytes)
                ended = await self._post(lines, self._latest.futures)
                await self._pieces.put(self._latest)  # await what was sent, even if the next line failed
                if ended is not None:
                    break
        except streams.LineTooLong:
            ended = Failed(f"line {self._posted + 1} is longer than {streams.LINE_BYTES_MAX} bytes")
        except Exception as error:  # `all_of` raises it, instead of waiting for pieces
            ended = error
        await self._pieces.put(ended)

    async def _post(self, lines: list[bytes], futures: list[RecordFuture]) -> Exception | None:
        """Pass lines to the producer until one is rejected; returns the error."""
        post, topic, read = self._producer.post, self._given.topic, self._read
        for line in lines:
            try:
                key, value, headers, partition, timestamp_ms = read(line)
                future = await post(
                    topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
            except ValueError as error:  # NotARecord, or what the producer does not take
                return Failed(f"line {self._posted + 1}: {error}{self._before()}")
            except KafkaError as error:
                why = f"line {self._posted + 1} was not written: {error.why}{self._before()}"
                return KafkaError(error.code, why)
            except ClientError as error:
                return error
            futures.append(future)
            self._posted += 1
        return None

    def _before(self) -> str:
        """What becomes of the lines before one that is rejected."""
        return "; the lines before it are written" if self._posted else ""

    async def _settle(self, piece: _Piece) -> None:
        """Wait until each line is acknowledged."""
        sent: list[RecordMetadata] = []
        try:
            for future in piece.futures:
                sent.append(await future)
        except KafkaError as error:
            why = f"{self._named(piece.first + len(sent))} not written: {error.why}"
            raise KafkaError(error.code, why) from error
        except DeliveryTimedOut as error:
            why = f"{self._named(piece.first + len(sent))} possibly not written: {error}"
            raise Failed(f"{why} (raise --timeout to wait longer)") from error
        self._progress.advance(len(sent), piece.size_bytes)
        if self._tells:
            told = "".join(output.line(each._asdict()) + "\n" for each in sent)
            try:
                await streams.write(told.encode())
            except BrokenPipeError:  # the reader has all it wanted; the rest of the input is still to be sent
                self._tells = False

    def _named(self, line: int) -> str:
        """The first failed line: those before it are written, those after it may or may not be."""
        if line == self._posted:
            return f"line {line} was"
        return f"line {line} and some of those up to {self._posted} were"


def _forget(piece: _Piece | Exception | None) -> None:
    """Drop futures that nobody awaits, without asyncio's warnings."""
    for future in piece.futures if isinstance(piece, _Piece) else ():
        if not future.cancel() and not future.cancelled():
            future.exception()


def _size_bytes(descriptor: int) -> int | None:
    """The size of the input; None if unknown."""
    about = os.fstat(descriptor)
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _may_show(given: Namespace) -> bool:
    """Whether progress may be shown: not while lines are typed or JSON is printed on the same terminal."""
    typed = given.file is None and sys.stdin.isatty()
    return not typed and not (given.output == "json" and sys.stdout is not None and sys.stdout.isatty())


def _open(path: str | None) -> int:
    if path is None:
        if sys.stdin is None:
            raise Failed("standard input is closed; use --file")
        return sys.stdin.fileno()
    try:
        if os.path.isdir(path):  # can be opened but not read
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Failed(f"--file {path}: {error.strerror}") from error


def _reader(given: Namespace) -> Callable[[bytes], Outgoing]:
    """The function that turns a line into a record."""
    for name, _ in given.header:
        if not is_unicode(name):
            raise Usage(f"--header: the name {name!r} is not valid UTF-8")
    headers = tuple((name, os.fsencode(value)) for name, value in given.header)
    if given.format == "json":
        if given.key is not None or given.key_separator is not None or given.null_marker is not None:
            raise Usage("--key, --key-separator and --null-marker are for --format lines only")
        return lambda line: _completed(from_json(line), headers, given)
    if given.key_separator == "":
        raise Usage("--key-separator: it takes at least one character")
    # The bytes as typed, whatever the terminal's encoding.
    separator = None if given.key_separator is None else os.fsencode(given.key_separator)
    null = None if given.null_marker is None else os.fsencode(given.null_marker)
    fixed = None if given.key is None else os.fsencode(given.key)
    partition, timestamp = given.partition, given.timestamp

    def read(line: bytes) -> Outgoing:
        key, value = fixed, line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise NotARecord(f"it does not contain {given.key_separator!r}")
        return Outgoing(
            None if key == null else key, None if value == null else value, headers, partition, timestamp
        )

    return read


def _completed(record: Outgoing, headers: tuple[tuple[str, bytes], ...], given: Namespace) -> Outgoing:
    """The record with the options applied; its own values win."""
    return Outgoing(
        record.key,
        record.value,
        (*record.headers, *headers),
        given.partition if record.partition is None else record.partition,
        given.timestamp if record.timestamp is None else record.timestamp,
    )
