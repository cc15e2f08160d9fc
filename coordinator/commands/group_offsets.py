"""`muster groups`: reset-offsets, delete-offsets."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.commands import output
from muster.coordinator.commands.options import command, number, timestamp_ms
from muster.coordinator.commands.run import error_json, report_failures
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from muster.client.admin.reset import Target

_INT64_MAX = 2**63 - 1

_RESET = """\
The group must have no members; one that does not exist comes to be. An offset that a log does not have
becomes the nearest that it has, except with --to-current. Without --execute nothing is changed.

JSON: [{"topic": text, "partition": number, "committed_offset": number or null,
        "new_offset": number or null, "error": null or {"code": Kafka's name, "message": text}}]"""

_DELETE = """\
The offsets of a topic that members of the group subscribe to stay.

JSON: [{"topic": text, "partition": number, "error": null or {"code": Kafka's name, "message": text}}]"""


def declare(below: Any) -> None:
    """Add the actions."""
    reset = command(below, "reset-offsets", "put a group elsewhere in its topics", _RESET)
    reset.add_argument("group", metavar="GROUP")
    scopes = reset.add_mutually_exclusive_group(required=True)
    _add_topic(scopes)
    scopes.add_argument(
        "--all-topics", action="store_true", help="all partitions for which an offset is committed"
    )
    targets = reset.add_mutually_exclusive_group(required=True)
    targets.add_argument("--to-earliest", action="store_true", help="the oldest record")
    targets.add_argument("--to-latest", action="store_true", help="the end of the log")
    targets.add_argument(
        "--to-current", action="store_true", help="where it is; the end where nothing is committed"
    )
    targets.add_argument("--to-offset", type=number(0, _INT64_MAX), metavar="OFFSET")
    targets.add_argument(
        "--shift-by",
        type=number(-_INT64_MAX, _INT64_MAX),
        metavar="N",
        help="so many records on, or back if below 0",
    )
    targets.add_argument(
        "--to-datetime",
        type=_moment,
        metavar="TIME",
        help="the first record as young as this, epoch ms or ISO 8601; else the end",
    )
    targets.add_argument(
        "--by-duration",
        type=_duration,
        metavar="DURATION",
        help="the first record not older than this, such as PT1H30M or P7D; else the end",
    )
    reset.add_argument("--execute", action="store_true", help="do it, instead of showing what would be done")
    reset.set_defaults(work=reset_offsets)

    delete = command(below, "delete-offsets", "forget what a group has committed for topics", _DELETE)
    delete.add_argument("group", metavar="GROUP")
    _add_topic(delete, required=True)
    delete.set_defaults(work=delete_offsets)


def _add_topic(parser: Any, **more: Any) -> None:
    parser.add_argument(
        "--topic",
        type=_scope,
        action="append",
        metavar="TOPIC[:0,1]",
        help="this topic, or these of its partitions; may be repeated",
        **more,
    )


def _scope(text: str) -> tuple[str, list[int] | None]:
    name, colon, numbers = text.partition(":")
    if not name or (colon and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes TOPIC, or TOPIC:0,1")
    return name, [int(each) for each in numbers.split(",")] if colon else None


def _moment(text: str) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms(text))
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it lies too far away") from None


def _duration(text: str) -> timedelta:
    from muster.client.consume.settings import parse_reset

    try:
        strategy = parse_reset(f"by_duration:{text}")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes an ISO 8601 duration of days and less, such as PT1H30M or P7D"
        ) from None
    assert strategy is not None
    return timedelta(milliseconds=strategy.duration_ms)


async def reset_offsets(cluster: Cluster, given: Namespace) -> int:
    """Put a group elsewhere, or show where that would be."""
    from muster.client.admin.reset import ResetOffset, reset_group_offsets

    topics, partitions = _scopes(given)
    outcomes = await reset_group_offsets(
        cluster,
        given.group,
        _target(given),
        deadline(given.timeout),
        topics=None if given.all_topics else topics,
        partitions=None if given.all_topics else partitions,
        dry_run=not given.execute,
    )
    places = [
        (*where, each.before, each.after) if isinstance(each, ResetOffset) else (*where, None, None)
        for where, each in sorted(outcomes.items())
    ]
    if given.output == "json":
        columns = ("topic", "partition", "committed_offset", "new_offset")
        errors = [error_json(outcomes.failed.get(TopicPartition(*place[:2]))) for place in places]
        shown = [dict(zip(columns, place, strict=True)) for place in places]
        print(output.document([each | {"error": error} for each, error in zip(shown, errors, strict=True)]))
    else:
        rows = [(given.group, *place) for place in places if place[-1] is not None]
        print(output.table(("GROUP", "TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET"), rows))
    code = report_failures(given, _named(outcomes.failed))
    if code == 0 and not given.execute and given.output != "json":
        print("\nNothing is changed yet: --execute does it.")
    return code


async def delete_offsets(cluster: Cluster, given: Namespace) -> int:
    """Forget committed offsets."""
    from muster.client.admin.offsets import delete_group_offsets
    from muster.client.admin.topics import describe_topics

    until = deadline(given.timeout)
    topics, partitions = _scopes(given)
    described = (await describe_topics(cluster, topics, until)).raise_for_failures()
    partitions += [
        TopicPartition(name, each.partition) for name, topic in described.items() for each in topic.partitions
    ]
    outcomes = await delete_group_offsets(cluster, given.group, partitions, until)
    if given.output == "json":
        shown = [each._asdict() | {"error": error_json(error)} for each, error in sorted(outcomes.items())]
        print(output.document(shown))
    else:
        for where in sorted(outcomes.succeeded):
            print(f"{where} deleted")
    return report_failures(given, _named(outcomes.failed))


def _scopes(given: Namespace) -> tuple[list[str], list[TopicPartition]]:
    """Whole topics, and single partitions."""
    scopes = given.topic or []
    whole = [name for name, numbers in scopes if numbers is None]
    return whole, [TopicPartition(name, each) for name, numbers in scopes for each in numbers or ()]


def _target(given: Namespace) -> Target:
    from muster.client.admin.reset import At, By, Current, Earliest, Latest, Offset, Shift

    if given.to_earliest:
        return Earliest()
    if given.to_latest:
        return Latest()
    if given.to_current:
        return Current()
    if given.to_offset is not None:
        return Offset(given.to_offset)
    if given.shift_by is not None:
        return Shift(given.shift_by)
    return By(given.by_duration) if given.to_datetime is None else At(given.to_datetime)


def _named(failed: Mapping[TopicPartition, KafkaError]) -> dict[str, KafkaError]:
    """A topic that is not there stands as its partition -1."""
    return {where.topic if where.partition < 0 else str(where): error for where, error in failed.items()}
