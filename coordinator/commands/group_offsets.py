"""`muster groups`: reset-offsets, delete-offsets."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.arguments import printable
from muster.coordinator.commands import output
from muster.coordinator.commands.options import any_name, command, duration_ms, number, since_ms
from muster.coordinator.commands.progress import Progress
from muster.coordinator.commands.reset_plan import Plan, read_plan
from muster.coordinator.commands.run import Usage, error_json, report_failures, require_names_or_all
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from muster.client.admin.answers import Outcomes
    from muster.client.admin.reset import ResetOffset, Target

_INT64_MAX = 2**63 - 1

_RESET = """\
The groups must have no members; missing ones are created. An offset out of a log's range becomes the nearest
one in it, except with --to-current. Without --execute nothing is changed.

JSON: [{"group_id": text, "topic": text, "partition": number, "committed_offset": number or null,
        "new_offset": number or null, "error": null or {"code": Kafka's name, "message": text}}]
CSV: lines "topic,partition,new offset", with the group first unless a single GROUP is given. --from-file and
Kafka's own tool read them."""

_DELETE = """\
Offsets of topics that the group's members subscribe to are kept.

JSON: [{"topic": text, "partition": number, "error": null or {"code": Kafka's name, "message": text}}]"""


def declare(below: Any) -> None:
    """Add the actions."""
    reset = command(
        below, "reset-offsets", "set the committed offsets of groups", _RESET, output=output.FORMATS
    )
    reset.add_argument("groups", type=any_name, metavar="GROUP", nargs="*")
    reset.add_argument("--all-groups", action="store_true", help="all consumer groups")
    scopes = reset.add_mutually_exclusive_group()
    _add_topic(scopes)
    scopes.add_argument("--all-topics", action="store_true", help="all partitions with a committed offset")
    targets = reset.add_mutually_exclusive_group(required=True)
    targets.add_argument("--to-earliest", action="store_true", help="the oldest record")
    targets.add_argument("--to-latest", action="store_true", help="the end of the log")
    targets.add_argument(
        "--to-current", action="store_true", help="the committed offset; the end where there is none"
    )
    targets.add_argument("--to-offset", type=number(0, _INT64_MAX), metavar="OFFSET")
    targets.add_argument(
        "--shift-by",
        type=number(-_INT64_MAX, _INT64_MAX),
        metavar="N",
        help="this many records forward, or back if negative",
    )
    targets.add_argument(
        "--to-datetime",
        type=_moment,
        metavar="TIME",
        help="the first record of this time or later, epoch ms or ISO 8601 (without a zone: UTC, as in "
        "Kafka's tool); else the end",
    )
    targets.add_argument(
        "--by-duration",
        type=_duration,
        metavar="DURATION",
        help="the first record no older than this, such as 90m, 7 days or PT1H30M; else the end",
    )
    targets.add_argument(
        "--from-file",
        type=_plan,
        metavar="FILE",
        help="the offsets in a CSV file, - for standard input",
    )
    reset.add_argument("--execute", action="store_true", help="do it instead of showing what would be done")
    reset.set_defaults(work=reset_offsets)

    delete = command(below, "delete-offsets", "delete committed offsets of topics", _DELETE)
    delete.add_argument("group", type=any_name, metavar="GROUP")
    _add_topic(delete, required=True)
    delete.set_defaults(work=delete_offsets)


def _add_topic(parser: Any, **more: Any) -> None:
    parser.add_argument(
        "--topic",
        type=_scope,
        action="append",
        metavar="TOPIC[:0,1]",
        help="this topic, or these partitions of it; may be repeated",
        **more,
    )


def _scope(text: str) -> tuple[str, list[int] | None]:
    name, colon, numbers = text.partition(":")
    if not name or (colon and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes TOPIC, or TOPIC:0,1")
    return any_name(name), [int(each) for each in numbers.split(",")] if colon else None


def _moment(text: str) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=since_ms(text, UTC))
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it is out of range") from None


def _duration(text: str) -> timedelta:
    return timedelta(milliseconds=duration_ms(text))


def _plan(path: str) -> Plan:
    try:
        if path == "-" and sys.stdin is None:
            raise ValueError("standard input is closed")
        file = sys.stdin.fileno() if path == "-" else path
        # Some editors and spreadsheets begin UTF-8 with a byte order mark.
        with open(file, encoding="utf-8-sig", newline="", closefd=path != "-") as lines:
            return read_plan(lines)
    except (OSError, ValueError) as error:  # also text that is not UTF-8
        why = error.strerror or error if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"{path}: {why}") from None


async def reset_offsets(cluster: Cluster, given: Namespace) -> int:
    """Set committed offsets, or show what would be set."""
    from muster.client.admin.answers import failure_of
    from muster.client.admin.groups import CONSUMER_PROTOCOL_TYPES, list_groups

    groups = _groups_of_reset(given)
    if given.all_groups:
        listed = await list_groups(cluster, deadline(given.timeout))
        groups = [each.group_id for each in listed if each.protocol_type in CONSUMER_PROTOCOL_TYPES]
    with_groups = len(given.groups) != 1  # as in Kafka's tool, however many groups there are
    failures: dict[str, KafkaError] = {}
    places: list[Place] = []
    until, answers = deadline(given.timeout), cluster.answers
    with Progress(given.prog, "group", total=len(groups)) as progress:
        for index, group in enumerate(groups):
            if cluster.answers > answers:  # Brokers that answer have the whole timeout for each group.
                until, answers = deadline(given.timeout), cluster.answers
            try:
                outcomes = await _reset(cluster, group, given, until)
            except (KafkaError, ClientError) as error:
                if len(groups) == 1:
                    raise
                failures[f"group {printable(group)}"] = failure_of(error)
                continue
            except asyncio.CancelledError:
                if given.execute and len(groups) > 1:
                    progress.erase()
                    if places:
                        _show(given, places, with_groups=with_groups)
                    report_failures(given, failures)
                    _say_where_it_ended(given, group, len(groups) - index - 1)
                raise
            finally:
                progress.advance()
            of_group = f"group {printable(group)}, " if with_groups else ""
            failures |= {of_group + name: error for name, error in _named(outcomes.failed).items()}
            places += [Place.of(group, where, outcome) for where, outcome in sorted(outcomes.items())]
    if places or not failures or given.output == "json":
        _show(given, places, with_groups=with_groups)
    _say_what_was_out_of_range(given, places)
    code = report_failures(given, failures)
    if code == 0 and not given.execute and given.output == "table":
        print("\nNothing was changed: use --execute to apply.")
    return code


def _say_where_it_ended(given: Namespace, group: str, left: int) -> None:
    more = f"; {left} more {'was' if left == 1 else 'were'} not" if left else ""
    print(f"{given.prog}: interrupted: group {printable(group)} may have been reset{more}", file=sys.stderr)


def _say_what_was_out_of_range(given: Namespace, places: list[Place]) -> None:
    plan: Plan | None = given.from_file
    for each in places:
        wanted = given.to_offset if plan is None else plan.of(each.group_id).get(each.where)
        if wanted is not None and each.new_offset not in (None, wanted):
            where = printable(str(each.where))
            print(
                f"{given.prog}: {where}: there is no offset {wanted}; it is {each.new_offset} instead",
                file=sys.stderr,
            )


class Place(NamedTuple):
    """The new offset of a group in a partition, or the error."""

    group_id: str
    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int | None
    error: KafkaError | None

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def of(cls, group_id: str, where: TopicPartition, outcome: ResetOffset | KafkaError) -> Place:
        if isinstance(outcome, KafkaError):
            return cls(group_id, *where, None, None, outcome)
        return cls(group_id, *where, outcome.before, outcome.after, None)


def _groups_of_reset(given: Namespace) -> list[str]:
    """The groups named as arguments or in the file. Raises Usage for options that conflict."""
    plan: Plan | None = given.from_file
    scoped = bool(given.topic or given.all_topics)
    if plan is None and not scoped:
        raise Usage("one of the arguments --topic --all-topics is required")
    if plan is not None and scoped:
        raise Usage("--from-file names the partitions, so it excludes --topic and --all-topics")
    named = [*given.groups, *(() if plan is None else plan.groups)]
    if plan is not None and plan.groups and (given.groups or given.all_groups):
        raise Usage("--from-file: its lines name the groups, so it excludes GROUP and --all-groups")
    require_names_or_all("GROUP", bool(named), "--all-groups", given.all_groups)
    return list(dict.fromkeys(named))


async def _reset(
    cluster: Cluster, group: str, given: Namespace, until: float
) -> Outcomes[TopicPartition, ResetOffset]:
    from muster.client.admin.reset import reset_group_offsets

    topics, partitions = _scopes(given)
    everything = given.all_topics or given.from_file is not None
    return await reset_group_offsets(
        cluster,
        group,
        _target(given, group),
        until,
        topics=None if everything else topics,
        partitions=None if everything else partitions,
        dry_run=not given.execute,
    )


def _show(given: Namespace, places: list[Place], *, with_groups: bool) -> None:
    if given.output == "json":
        print(output.document([each._asdict() | {"error": error_json(each.error)} for each in places]))
        return
    done = [each for each in places if each.error is None]
    if given.output == "csv":
        behind = 0 if with_groups else 1
        rows = [(each.group_id, each.topic, each.partition, each.new_offset)[behind:] for each in done]
        print(output.csv(rows), end="")
    elif done or not places:
        columns = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET")
        print(output.table(columns, [each[:-1] for each in done]))


async def delete_offsets(cluster: Cluster, given: Namespace) -> int:
    """Delete committed offsets."""
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
    """The whole topics, and the single partitions."""
    scopes = given.topic or []
    whole = [name for name, numbers in scopes if numbers is None]
    return whole, [TopicPartition(name, each) for name, numbers in scopes for each in numbers or ()]


def _target(given: Namespace, group: str) -> Target:
    from muster.client.admin.reset import At, By, Current, Earliest, Latest, Offset, PerPartition, Shift

    if given.from_file is not None:
        return PerPartition(given.from_file.of(group))
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
    """Failures by name. A missing topic is given as its partition -1."""
    return {where.topic if where.partition < 0 else str(where): error for where, error in failed.items()}
