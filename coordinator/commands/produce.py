"""`muster produce`: lines of standard input or a file become records."""

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
from muster.client.producer import Producer, RecordFuture, RecordMetadata
from muster.coordinator.commands import output, streams
from muster.coordinator.commands.options import command, number, setting, timestamp_ms
from muster.coordinator.commands.progress import Progress
from muster.coordinator.commands.records import JSON_SHAPE, NotARecord, Outgoing, from_json, is_unicode
from muster.coordinator.commands.run import Failed, Usage
from muster.protocol.compression import Codec
from muster.protocol.errors import KafkaError

_ACKS: Final[dict[str, Literal["all", 0, 1]]] = {"all": "all", "1": 1, "0": 0}

_PIECES_MAX: Final = 2
"""Pieces of input that wait behind the one whose lines are waited for."""

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
    size_bytes = _size_bytes(descriptor)
    with Progress(given.prog, "record", total_bytes=size_bytes, shown=_may_show(given)) as progress:
        count = await _Sending(given, read, progress).all_of(descriptor)
    if given.output == "text":
        print(f"{count} record{'s' if count != 1 else ''} to {given.topic}")
    return 0


class _Piece(NamedTuple):
    """Lines that were read together and posted: the number of the first one, from 1, and what becomes of
    each."""

    first: int
    futures: list[RecordFuture]
    size_bytes: int


class _Sending:
    """Sends lines as they arrive, and goes on reading while earlier ones are on their way; each is waited for
    in turn."""

    def __init__(self, given: Namespace, read: Callable[[bytes], Outgoing], progress: Progress) -> None:
        self._given = given
        self._read = read
        self._progress = progress
        timeout_ms = max(1, round(given.timeout * 1000))
        self._producer: Producer[bytes, bytes] = Producer(
            given.bootstrap,
            acks=_ACKS[given.acks],
            compression_type=given.compression,
            linger_ms=0,
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            # The topic says how large a record may be.
            max_request_size=2 * streams.LINE_BYTES_MAX,
        )
        self._posted = 0
        """How many lines the producer was given."""
        self._latest = _Piece(1, [], 0)
        self._pieces: asyncio.Queue[_Piece | Exception | None] = asyncio.Queue(_PIECES_MAX)
        """Those to be settled, in order. None: the input has ended. An error: why no more lines are sent."""

    async def all_of(self, descriptor: int) -> int:
        """Send every line, and return how many there were once all are acknowledged."""
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
            await self._producer.close(timeout=0)  # what was waited for is settled
        return self._posted

    async def _post_all(self, descriptor: int) -> None:
        ended: Exception | None = None
        try:
            async for lines in streams.lines(descriptor):
                size_bytes = sum(map(len, lines)) + len(lines)
                self._latest = _Piece(self._posted + 1, [], size_bytes)
                ended = await self._post(lines, self._latest.futures)
                await self._pieces.put(self._latest)  # what was taken is settled, also if the next was not
                if ended is not None:
                    break
        except streams.LineTooLong:
            ended = Failed(f"line {self._posted + 1} is longer than {streams.LINE_BYTES_MAX} bytes")
        except OSError as error:
            ended = error
        await self._pieces.put(ended)

    async def _post(self, lines: list[bytes], futures: list[RecordFuture]) -> Exception | None:
        """Give lines to the producer until one is not taken, and say why it was not."""
        post, topic, read = self._producer.post, self._given.topic, self._read
        for line in lines:
            try:
                key, value, headers, partition, timestamp_ms = read(line)
                future = await post(
                    topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
            except NotARecord as error:
                return Failed(f"line {self._posted + 1}: {error}")
            except KafkaError as error:
                return KafkaError(error.code, f"line {self._posted + 1} is not written: {error.why}")
            except ClientError as error:
                return error
            futures.append(future)
            self._posted += 1
        return None

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
            why = f"{self._named(piece.first + len(sent))} perhaps not written: {error}"
            raise Failed(f"{why} (--timeout gives them longer)") from error
        self._progress.advance(len(sent), piece.size_bytes)
        if self._given.output == "json":
            told = "".join(output.line(each._asdict()) + "\n" for each in sent)
            await streams.write(told.encode())

    def _named(self, line: int) -> str:
        """The first line that failed: those before it are written, of those behind it nobody knows."""
        if line == self._posted:
            return f"line {line} is"
        return f"line {line} and some of those up to {self._posted} are"


def _forget(piece: _Piece | Exception | None) -> None:
    """Nobody waits for these any more, and asyncio is not to say so of each."""
    for future in piece.futures if isinstance(piece, _Piece) else ():
        if not future.cancel() and not future.cancelled():
            future.exception()


def _size_bytes(descriptor: int) -> int | None:
    """How much there is to send; None where nobody knows."""
    about = os.fstat(descriptor)
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _may_show(given: Namespace) -> bool:
    """Whether progress disturbs nobody: neither who types lines nor who reads JSON on the same terminal."""
    typed = given.file is None and sys.stdin.isatty()
    return not typed and not (given.output == "json" and sys.stdout is not None and sys.stdout.isatty())


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
    partition, timestamp = given.partition, given.timestamp

    def read(line: bytes) -> Outgoing:
        key, value = fixed, line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise NotARecord(f"there is no {given.key_separator!r} in it")
        return Outgoing(
            None if key == null else key, None if value == null else value, headers, partition, timestamp
        )

    return read


def _completed(record: Outgoing, headers: tuple[tuple[str, bytes], ...], given: Namespace) -> Outgoing:
    """With what the options say about every record; what the record itself says goes before."""
    return Outgoing(
        record.key,
        record.value,
        (*record.headers, *headers),
        given.partition if record.partition is None else record.partition,
        given.timestamp if record.timestamp is None else record.timestamp,
    )
