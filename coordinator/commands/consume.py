"""`muster consume`: records of a topic on standard output."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from muster.client import admin
from muster.client.cluster import Cluster
from muster.client.connection import deadline
from muster.client.fetcher import MAX_WAIT_MS, Fetched, Fetcher
from muster.client.group_consumer import GroupConsumer
from muster.client.membership import Membership
from muster.client.partitions import TopicPartition
from muster.coordinator.commands import streams
from muster.coordinator.commands.options import command, number, seconds, timestamp_ms
from muster.coordinator.commands.records import JSON_SHAPE, NotARecord, template, to_json
from muster.coordinator.commands.run import Usage

_INT64_MAX: Final = 2**63 - 1
_WAIT_S: Final = MAX_WAIT_MS / 1000

_DESCRIPTION: Final = f"""\
Without --group it reads all partitions from their end on and commits nothing; with it, it shares the topic
with the group's other members, begins at the committed offsets and commits what was printed. Records of a
partition come in order. It runs until Ctrl-C unless an option says when to end.

--format takes text with {{topic}} {{partition}} {{offset}} {{timestamp}} {{key}} {{value}} {{headers}} in it,
and \\t \\n.

JSON: a line per record,
{JSON_SHAPE}"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser = command(commands, name, summary, _DESCRIPTION, output=("text", "json"))
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--group", metavar="GROUP", help="read as a member of this group")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-beginning",
        dest="offset",
        action="store_const",
        const=admin.EARLIEST,
        help="begin with the oldest record; with --group where no offset is committed",
    )
    start.add_argument(
        "--offset",
        type=_offset,
        metavar="OFFSET",
        help="begin at this offset, or earliest, or latest (default)",
    )
    start.add_argument(
        "--timestamp",
        type=timestamp_ms,
        metavar="TIME",
        help="begin with the first record as young as this: epoch ms or ISO 8601",
    )
    parser.add_argument(
        "--partition",
        type=number(0),
        action="append",
        metavar="N",
        help="read only this one; may be repeated",
    )
    parser.add_argument("--max-messages", type=number(1), metavar="N", help="end after so many records")
    parser.add_argument("--until-end", action="store_true", help="end where the partitions end now")
    parser.add_argument(
        "--idle-timeout", type=seconds, metavar="SECONDS", help="end when no record comes for so long"
    )
    parser.add_argument(
        "--format", default="{value}", metavar="TEXT", help="how to show a record (default {value})"
    )
    parser.add_argument(
        "--null-marker", default="null", metavar="TEXT", help="how to show null (default null)"
    )
    parser.set_defaults(work=consume)


def _offset(text: str) -> int:
    named = {"earliest": admin.EARLIEST, "latest": admin.LATEST}
    if text in named:
        return named[text]
    try:
        return number(0, _INT64_MAX)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes earliest, latest or an offset"
        ) from None


async def consume(cluster: Cluster, given: Namespace) -> int:
    """Print records until an option, or the user, says that it is enough."""
    try:
        show = to_json if given.output == "json" else template(given.format, os.fsencode(given.null_marker))
    except NotARecord as error:
        raise Usage(f"--format: {error}") from None
    if given.group is None:
        await _consume_alone(cluster, given, show)
    else:
        await _consume_in_group(cluster, given, show)
    return 0


class _Limits:
    """When it is enough."""

    def __init__(self, given: Namespace) -> None:
        self._left = given.max_messages
        self._idle_s = given.idle_timeout
        self.something_happened()

    def something_happened(self) -> None:
        self._idle_since = deadline(0)

    @property
    def reached(self) -> bool:
        return self._left == 0 or (self._idle_s is not None and self.wait_s <= 0)

    @property
    def wait_s(self) -> float:
        """How long to wait for the next records."""
        if self._idle_s is None:
            return _WAIT_S
        return float(min(_WAIT_S, self._idle_since + self._idle_s - deadline(0)))

    def take(self, records: list[Fetched]) -> list[Fetched]:
        """As many of these as are wanted."""
        if records:
            self.something_happened()
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        return records


# --- alone --------------------------------------------------------------------------------------------------


async def _consume_alone(cluster: Cluster, given: Namespace, show: Callable[[Fetched], bytes]) -> None:
    positions, ends = await _positions(cluster, given)
    limits = _Limits(given)
    fetcher = Fetcher(cluster, patience_s=given.timeout, reset=admin.EARLIEST)
    fetcher.assign(positions)
    try:
        while not limits.reached:
            if given.until_end:
                fetcher.stop([where for where, at in fetcher.positions.items() if at >= ends[where]])
                if not fetcher.positions:
                    return
            records = await fetcher.poll(limits.wait_s)
            if given.until_end:
                records = [each for each in records if each.offset < ends[each.where]]
            await _print(limits.take(records), show)
    finally:
        await fetcher.close()


async def _positions(
    cluster: Cluster, given: Namespace
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to begin in each partition, and where each ends now."""
    until = deadline(given.timeout)
    (topic,) = await admin.topics(cluster, until, [given.topic])
    there = [each.partition for each in topic.partitions]
    for partition in given.partition or []:
        if partition not in there:
            raise Usage(f"--partition: topic {given.topic} has no partition {partition}; it has {len(there)}")
    wanted = [TopicPartition(given.topic, each) for each in sorted(set(given.partition or there))]
    starts = await admin.list_offsets(cluster, dict.fromkeys(wanted, admin.EARLIEST), until)
    ends = await admin.list_offsets(cluster, dict.fromkeys(wanted, admin.LATEST), until)
    if given.timestamp is not None:
        found = await admin.list_offsets(cluster, dict.fromkeys(wanted, given.timestamp), until)
        return {where: offset if offset >= 0 else ends[where] for where, offset in found.items()}, ends
    if given.offset == admin.EARLIEST:
        return starts, ends
    if given.offset in (None, admin.LATEST):
        return dict(ends), ends
    for where in wanted:
        if not starts[where] <= given.offset <= ends[where]:
            raise Usage(
                f"--offset: {where} has no offset {given.offset}; it has {starts[where]} to {ends[where]}"
            )
    return dict.fromkeys(wanted, given.offset), ends


# --- in a group ---------------------------------------------------------------------------------------------


async def _consume_in_group(cluster: Cluster, given: Namespace, show: Callable[[Fetched], bytes]) -> None:
    by_name = given.offset in (None, admin.EARLIEST, admin.LATEST)
    if given.partition or given.timestamp is not None or given.until_end or not by_name:
        raise Usage(
            "--group decides where to read: without --partition, --timestamp, --until-end, --offset N"
        )
    limits = _Limits(given)

    def assigned(partitions: frozenset[TopicPartition]) -> None:
        limits.something_happened()
        names = " ".join(str(each) for each in sorted(partitions)) or "nothing"
        print(f"{given.prog}: group {given.group} assigned {names}", file=sys.stderr, flush=True)

    reset = admin.LATEST if given.offset is None else given.offset
    consumer = GroupConsumer(
        cluster,
        Membership(given.group, [given.topic]),
        reset=reset,
        patience_s=given.timeout,
        on_assigned=assigned,
    )
    try:
        while not limits.reached:
            records = limits.take(await consumer.poll(limits.wait_s))
            await _print(records, show)
            consumer.handled(records)
    finally:
        if not await consumer.close():
            why = f"group {given.group}: not all offsets could be committed, some records will be read again"
            print(f"{given.prog}: {why}", file=sys.stderr)


async def _print(records: list[Fetched], show: Callable[[Fetched], bytes]) -> None:
    if records:
        await streams.write(b"".join(show(each) for each in records))
