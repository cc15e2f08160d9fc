"""`muster consume`: print the records of a topic."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

from muster.client.admin.offsets import EARLIEST, LATEST, list_offsets
from muster.client.admin.topics import describe_topics
from muster.client.errors import ClientError
from muster.client.fetch.fetcher import Fetcher
from muster.client.fetch.positions import EARLIEST as FROM_EARLIEST
from muster.client.fetch.positions import Position
from muster.client.fetch.records import ConsumerRecord
from muster.client.fetch.requests import READ_COMMITTED, READ_UNCOMMITTED, FetchSettings
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.commands import streams
from muster.coordinator.commands.options import any_name, command, number, seconds, since_ms, valid_name
from muster.coordinator.commands.progress import Progress
from muster.coordinator.commands.records import JSON_SHAPE, NotARecord, template, to_json
from muster.coordinator.commands.run import Failed, Usage
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from muster.client.consume.health import Health

_INT64_MAX: Final = 2**63 - 1
_WAIT_S: Final = 0.5
"""How often the end conditions are checked."""
_AT_ONCE: Final = 5_000
"""Records printed together."""
_WAITING: Final = ("PREPARING_REBALANCE", "COMPLETING_REBALANCE")
"""The memberships of those who wait for other members, or for what they are assigned."""
_OUTSIDE: Final = (*_WAITING, "UNJOINED", "JOINING")
"""The memberships of those who have yet to join."""

Record = ConsumerRecord[bytes | None, bytes | None]
Show = Callable[[Record], bytes]

_DESCRIPTION: Final = f"""\
Without --group, reads all partitions from their end and commits nothing. With it, shares the topic with the
group's other members, starts at the committed offsets and commits what was printed. Records of a partition
come in order. Runs until Ctrl-C unless an option says when to stop.

--format is text with the fields {{topic}} {{partition}} {{offset}} {{timestamp}} {{key}} {{value}}
{{headers}} and the escapes \\t \\n.

JSON: one line per record,
{JSON_SHAPE}"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser = command(commands, name, summary, _DESCRIPTION, output=("text", "json"))
    parser.add_argument("topic", type=any_name, metavar="TOPIC")
    parser.add_argument("--group", type=valid_name, metavar="GROUP", help="read as a member of this group")
    parser.add_argument(
        "--group-protocol",
        choices=("classic", "consumer", "auto"),
        help="who shares out the group's partitions: classic (default), its members; consumer, the brokers "
        "(KIP-848); auto, the brokers where they can",
    )
    parser.add_argument(
        "--group-remote-assignor",
        type=valid_name,
        metavar="ASSIGNOR",
        help="how the brokers share them out, such as uniform or range",
    )
    parser.add_argument(
        "--isolation-level",
        choices=(READ_UNCOMMITTED, READ_COMMITTED),
        default=READ_UNCOMMITTED,
        help=f"whether to show records of open and aborted transactions: {READ_UNCOMMITTED} (default) or "
        f"{READ_COMMITTED}",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-beginning",
        dest="offset",
        action="store_const",
        const=EARLIEST,
        help="start at the oldest record; with --group only where no offset is committed",
    )
    start.add_argument(
        "--offset",
        type=_offset,
        metavar="OFFSET",
        help="start at this offset, or earliest, or latest (default)",
    )
    start.add_argument(
        "--timestamp",
        type=since_ms,
        metavar="TIME",
        help="start at the first record of this time or later: epoch ms or ISO 8601 (without a zone: local "
        "time)",
    )
    parser.add_argument(
        "--partition",
        type=number(0),
        action="append",
        metavar="N",
        help="read only this partition; may be repeated",
    )
    parser.add_argument("--max-messages", type=number(1), metavar="N", help="stop after this many records")
    parser.add_argument("--until-end", action="store_true", help="stop at the current end of the partitions")
    parser.add_argument(
        "--idle-timeout", type=seconds, metavar="SECONDS", help="stop when no record arrives for this long"
    )
    parser.add_argument(
        "--format", default="{value}", metavar="TEXT", help="how to print a record (default {value})"
    )
    parser.add_argument(
        "--null-marker", default="null", metavar="TEXT", help="how to print null (default null)"
    )
    parser.set_defaults(work=consume)


def _offset(text: str) -> int:
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text in named:
        return named[text]
    try:
        return number(0, _INT64_MAX)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes earliest, latest or an offset"
        ) from None


async def consume(cluster: Cluster, given: Namespace) -> int:
    """Print records until an option or the user stops it."""
    try:
        show = to_json if given.output == "json" else template(given.format, os.fsencode(given.null_marker))
    except NotARecord as error:
        raise Usage(f"--format: {error}") from None
    # Records on a terminal show progress themselves.
    hidden = sys.stdout is not None and sys.stdout.isatty()
    with Progress(given.prog, "record", total=given.max_messages, shown=not hidden) as progress:
        printed = _Printed(show, progress)
        if given.group is None:
            for option in ("group_protocol", "group_remote_assignor"):
                if getattr(given, option) is not None:
                    raise Usage(f"--{option.replace('_', '-')} is about members of a group: add --group")
            await _consume_alone(cluster, given, printed)
        else:
            await _consume_in_group(cluster, given, printed)
    return 0


class _Printed:
    """Prints records to standard output."""

    def __init__(self, show: Show, progress: Progress) -> None:
        self._show = show
        self.progress = progress

    async def print(self, records: list[Record]) -> None:
        """Write the records, then count them. Raises BrokenPipeError when the reader is gone."""
        if not records:
            streams.check_reader()
        else:
            text = b"".join([self._show(each) for each in records])
            await streams.write(text)
            self.progress.advance(len(records), len(text))


class _Limits:
    """When to stop."""

    def __init__(self, given: Namespace) -> None:
        self._left: int | None = given.max_messages
        self._idle_s = given.idle_timeout
        self.something_happened()

    def something_happened(self) -> None:
        self._idle_since = deadline(0)

    def something_will_happen(self, within_s: float) -> None:
        """Start the idle timeout when something happens, at the latest after `within_s` seconds."""
        self._idle_since = deadline(within_s)

    @property
    def reached(self) -> bool:
        return self.enough or (self._idle_s is not None and self.wait_s <= 0)

    @property
    def enough(self) -> bool:
        """Whether as many records as are wanted were taken."""
        return self._left == 0

    @property
    def wait_s(self) -> float:
        """How long to wait for the next records."""
        if self._idle_s is None:
            return _WAIT_S
        return float(min(_WAIT_S, self._idle_since + self._idle_s - deadline(0)))

    @property
    def wanted(self) -> int:
        """How many records to take next."""
        return _AT_ONCE if self._left is None else min(_AT_ONCE, self._left)

    def take(self, records: list[Record]) -> list[Record]:
        """Take as many of these records as are still wanted."""
        if records:
            self.something_happened()
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        return records


# --- alone --------------------------------------------------------------------------------------------------


async def _consume_alone(cluster: Cluster, given: Namespace, printed: _Printed) -> None:
    settings = FetchSettings(reset=FROM_EARLIEST, isolation_level=given.isolation_level)
    positions, ends = await _positions(cluster, given, int(settings.reads_committed))
    limits = _Limits(given)
    fetcher = Fetcher(cluster, settings)
    try:
        fetcher.set_assigned(positions)
        for where, offset in positions.items():
            fetcher.seek(where, Position(offset))
        while not limits.reached:
            if given.until_end:
                before_end = {each for each in fetcher.assigned if _next(fetcher, each) < ends[each]}
                if not before_end:
                    return
                if before_end != fetcher.assigned:
                    fetcher.set_assigned(before_end)
            batches = await fetcher.poll(limits.wanted, limits.wait_s)
            records = [record for batch in batches for record in batch.records]
            if given.until_end:
                records = [each for each in records if each.offset < ends[each.topic_partition]]
            await printed.print(limits.take(records))
            for error, since in fetcher.troubles.values():
                if deadline(-given.timeout) > since:
                    raise error
        if not limits.enough:
            _check_idle(given, fetcher, ends)
    finally:
        await fetcher.close()


def _check_idle(given: Namespace, fetcher: Fetcher, ends: dict[TopicPartition, int]) -> None:
    """Raise why no more records arrived, unless there were none to read."""
    for error, _ in fetcher.troubles.values():
        raise error
    for where in sorted(fetcher.assigned) if given.until_end else ():
        if (position := _next(fetcher, where)) < ends[where]:
            raise Failed(f"no record for {given.idle_timeout:g} s; {where} is at {position} of {ends[where]}")


def _next(fetcher: Fetcher, where: TopicPartition) -> int:
    position = fetcher.position(where)
    return -1 if position is None else position.offset


async def _positions(
    cluster: Cluster, given: Namespace, isolation_level: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The start offset and the current end of each partition. With read_committed, the end is the last stable
    offset."""
    until = deadline(given.timeout)
    there = await _partitions(cluster, given.topic, until)
    for partition in given.partition or []:
        if partition not in there:
            raise Usage(f"--partition: topic {given.topic} has no partition {partition}; it has {len(there)}")
    wanted = [TopicPartition(given.topic, each) for each in sorted(set(given.partition or there))]

    async def look_up(timestamp: int, otherwise: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(wanted, timestamp)
        found = await list_offsets(cluster, asked, until, isolation_level=isolation_level)
        offsets = found.raise_for_failures()
        return {where: otherwise[where] if each is None else each.offset for where, each in offsets.items()}

    starts, ends = await look_up(EARLIEST, {}), await look_up(LATEST, {})
    if given.timestamp is not None:
        return await look_up(given.timestamp, ends), ends
    if given.offset == EARLIEST:
        return starts, ends
    if given.offset in (None, LATEST):
        return dict(ends), ends
    for where in wanted:
        if not starts[where] <= given.offset <= ends[where]:
            raise Usage(
                f"--offset: {where} has no offset {given.offset}; its offsets are {starts[where]} to "
                f"{ends[where]}"
            )
    return dict.fromkeys(wanted, given.offset), ends


async def _partitions(cluster: Cluster, topic: str, until: float) -> list[int]:
    described = (await describe_topics(cluster, [topic], until)).raise_for_failures()[topic]
    return [each.partition for each in described.partitions]


# --- in a group ---------------------------------------------------------------------------------------------


async def _consume_in_group(cluster: Cluster, given: Namespace, printed: _Printed) -> None:
    from muster.client.consumer import Consumer, RebalanceListener

    by_name = given.offset in (None, EARLIEST, LATEST)
    if given.partition or given.timestamp is not None or given.until_end or not by_name:
        raise Usage(
            "--group determines where to read: it excludes --partition, --timestamp, --until-end and "
            "--offset N"
        )
    protocol: Literal["classic", "consumer", "auto"] = given.group_protocol or "classic"
    if given.group_remote_assignor is not None and protocol == "classic":
        raise Usage(
            "--group-remote-assignor: members of the classic protocol assign themselves; "
            "add --group-protocol consumer"
        )
    # A member waits for its topic and for brokers; the user of a command wants an error.
    await _partitions(cluster, given.topic, deadline(given.timeout))
    limits, patience = _Limits(given), _Patience(given, printed.progress)
    limits.something_will_happen(given.timeout)
    belongs = False

    class Announcing(RebalanceListener):
        def on_partitions_assigned(self, _: object, partitions: Iterable[TopicPartition]) -> None:
            nonlocal belongs
            belongs = True
            limits.something_happened()
            names = " ".join(str(each) for each in sorted(partitions)) or "nothing"
            printed.progress.erase()
            print(f"{given.prog}: group {given.group} assigned {names}", file=sys.stderr, flush=True)

    read_all = False
    try:
        async with Consumer(
            given.bootstrap,
            **given.client_options,
            topics=given.topic,
            listener=Announcing(),
            group_id=given.group,
            group_protocol=protocol,
            group_remote_assignor=given.group_remote_assignor,
            isolation_level=given.isolation_level,
            auto_offset_reset="earliest" if given.offset == EARLIEST else "latest",
            allow_auto_create_topics=False,
        ) as consumer:
            while not limits.reached:
                records = await consumer.get_many(limits.wanted, limits.wait_s)
                await printed.print(limits.take(records))
                patience.check(consumer.health())
            if not belongs:
                why = consumer.health().last_error or "the group has not formed"
                raise Failed(_unassigned(given, why))
            if not limits.enough:
                _check_idle_member(given, consumer.health())
            read_all = True
    except (ClientError, KafkaError) as error:
        if not read_all:
            raise
        printed.progress.erase()
        why = f"group {given.group}: not all offsets could be committed; some records will be read again"
        print(f"{given.prog}: {why}: {given.in_words(str(error))}", file=sys.stderr)


def _check_idle_member(given: Namespace, health: Health) -> None:
    """Raise why no more records arrived, unless there were none to read."""
    for trouble in health.troubles.values():
        raise Failed(trouble)
    if health.membership == "UNJOINED" and health.last_error:
        raise Failed(health.last_error)
    if health.membership in _OUTSIDE and not health.assignment:
        raise Failed(f"group {given.group} has not formed again, so nothing could be read")


class _Patience:
    """Limits how long to go on without a response: a consumer would go on forever."""

    def __init__(self, given: Namespace, progress: Progress) -> None:
        self._given = given
        self._timeout_s: float = given.timeout
        self._progress = progress
        self._since: float | None = None
        self._joins_since = self._fails_since = 0.0
        self._is_joining = self._has_said_so = False
        self._waits_at: float | None = None
        """The last look, if a JoinGroup or SyncGroup was in flight then."""

    def check(self, health: Health) -> None:
        """Raise Failed if partitions were unreadable, the coordinator unresponsive or joining refused for too
        long."""
        trouble = next(iter(health.troubles.values()), "")
        if health.membership == "STABLE" and health.heartbeat_overdue_s > self._timeout_s:
            raise Failed(health.last_error or "the group coordinator does not respond")
        self._check_joining(health)
        if not trouble:
            self._since = None
        elif self._since is None:
            self._since = deadline(0)
        elif deadline(-self._timeout_s) > self._since:
            raise Failed(trouble)

    def _check_joining(self, health: Health) -> None:
        """Joining may rightly take longer than the timeout, because of other members; failing to join not."""
        now, waits_at, self._waits_at = deadline(0), self._waits_at, None
        if health.membership not in _OUTSIDE:
            self._is_joining = self._has_said_so = False
            return
        if not self._is_joining:
            self._is_joining = True
            self._joins_since = self._fails_since = now
        if health.membership in _WAITING:
            self._waits_at = now
            if waits_at is not None:  # This wait is not held against a refusal that follows.
                self._fails_since += now - waits_at
        elif health.last_error and deadline(-self._timeout_s) > self._fails_since:
            raise Failed(_unassigned(self._given, health.last_error))
        if not self._has_said_so and deadline(-self._timeout_s) > self._joins_since:
            self._has_said_so = True
            self._progress.erase()
            why = f"group {self._given.group} has not formed within {self._timeout_s:g} s; still waiting"
            print(f"{self._given.prog}: {why}", file=sys.stderr, flush=True)


def _unassigned(given: Namespace, why: str) -> str:
    return f"group {given.group}: no assignment within {given.timeout:g} s: {why}"
