"""`muster transactions`: find-hanging, abort."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from muster.client.admin import hanging as hanging_calls
from muster.client.admin import topics as topic_calls
from muster.client.admin import transactions as transaction_calls
from muster.client.admin.answers import Outcomes, failure_of
from muster.client.admin.hanging import HangingTransaction, HeldBack, Verdict
from muster.client.admin.replicas import ProducerState, describe_producers
from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.arguments import printable
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands import output
from muster.coordinator.commands.options import any_name, command, duration_ms, number
from muster.coordinator.commands.run import Failed, Usage, report_failures
from muster.coordinator.journal.explain.names import duration
from muster.protocol.errors import ErrorCode, KafkaError

_INT64_MAX: Final = 2**63 - 1
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_NAMED_MAX: Final = 5  # transactions named in an error

_COLUMNS: Final = (
    *("TOPIC", "PARTITION", "START OFFSET", "PRODUCER ID", "EPOCH"),
    *("SINCE", "OPEN FOR", "WHY"),
)
_HELD_BACK_COLUMNS: Final = ("TOPIC", "PARTITION", "GROUP", "COMMITTED", "STOPS AT", "LAG", "SINCE")

_FIND: Final = """\
A transaction hangs on a partition if no coordinator will ever end it there: none knows its producer id, or
the transaction of the one that does is not about the partition. Consumers that read only committed records
(isolation.level read_committed) stop at it. The groups that stand there, or have yet to come there, are
listed; whether they read only committed records is for their members to know. In __consumer_offsets, groups
whose offsets it commits wait for them, and read nothing: those are not listed.

You need to be allowed to describe all transactional ids: one that you may not describe looks as if it were
hanging. Groups that you may not describe are left out.

JSON: [{"topic": text, "partition": number, "producer_id": number, "producer_epoch": number,
        "coordinator_epoch": number or null, "transactional_id": text or null, "start_offset": number,
        "start_timestamp": epoch ms or null, "last_timestamp": epoch ms, "why": text,
        "last_stable_offset": number, "log_end_offset": number,
        "held_back": [{"group_id": text, "committed_offset": number, "lag": number}]}]"""

_ABORT: Final = """\
  muster transactions abort --topic orders --partition 0 --start-offset 12 --execute

For a transaction that find-hanging has found. One that its coordinator still has is refused without --force,
since it would be aborted on this partition and perhaps committed on others. Without --execute nothing is
changed.

JSON: {"topic": text, "partition": number, "producer_id": number, "producer_epoch": number,
       "coordinator_epoch": number or null, "start_offset": number, "aborted": true or false}"""


def declare(below: Any) -> None:
    """Add the actions."""
    find = command(below, "find-hanging", "find transactions that hang, and whom they hold back", _FIND)
    scopes = find.add_mutually_exclusive_group()
    scopes.add_argument("--broker", type=number(0), metavar="ID", help="only partitions that this one leads")
    scopes.add_argument("--topic", type=any_name, metavar="TOPIC", help="only in this topic")
    find.add_argument("--partition", type=number(0), metavar="N", help="only in this partition of --topic")
    find.add_argument(
        "--longer-than",
        type=duration_ms,
        metavar="DURATION",
        help="only those whose producer has written nothing for this long (default: the brokers' "
        f"{hanging_calls.MAX_TIMEOUT} and 5 minutes)",
    )
    find.set_defaults(work=find_hanging)

    abort = command(below, "abort", "end a hanging transaction on a partition", _ABORT)
    abort.add_argument("--topic", type=any_name, required=True, metavar="TOPIC")
    abort.add_argument("--partition", required=True, type=number(0), metavar="N")
    which = abort.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--start-offset", type=number(0, _INT64_MAX), metavar="OFFSET", help="that begins at this offset"
    )
    which.add_argument(
        "--producer-id", type=number(0, _INT64_MAX), metavar="ID", help="that this producer id has open"
    )
    abort.add_argument("--force", action="store_true", help="also if its coordinator still has it")
    abort.add_argument("--execute", action="store_true", help="do it instead of showing what would be done")
    abort.set_defaults(work=abort_transaction)


# --- find-hanging -------------------------------------------------------------------------------------------


async def find_hanging(cluster: Cluster, given: Namespace) -> int:
    """Show hanging transactions, and the groups that they hold back."""
    if given.partition is not None and given.topic is None:
        raise Usage("--partition: it takes a --topic, too")
    until = deadline(given.timeout)
    try:
        outcomes = await hanging_calls.find_hanging_transactions(
            cluster, until, partitions=await _scope(cluster, given, until), longer_than_ms=given.longer_than
        )
    except KafkaError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED or given.longer_than is not None:
            raise
        raise Failed(
            f"you may not read the brokers' {hanging_calls.MAX_TIMEOUT}: say --longer-than, such as 20m"
        ) from None
    hanging = [each for found in outcomes.succeeded.values() for each in found]
    partitions = sorted({each.partition for each in hanging})
    held: Outcomes[TopicPartition, HeldBack]
    try:
        held = await hanging_calls.find_held_back_groups(cluster, partitions, until)
    except (KafkaError, ClientError) as error:
        held = Outcomes(dict.fromkeys(partitions, failure_of(error)))
    if given.output == "json":
        print(output.document([_hanging_json(each, held.succeeded.get(each.partition)) for each in hanging]))
    elif hanging:
        _print_hanging(hanging, held)
    elif not outcomes.failed:
        print("no hanging transactions")
    failures = outcomes.failed | held.failed
    return report_failures(given, {str(where): error for where, error in sorted(failures.items())})


async def _scope(cluster: Cluster, given: Namespace, until: float) -> list[TopicPartition] | None:
    """The partitions to look at; None for all."""
    if given.topic is None and given.broker is None:
        return None
    if given.topic is not None:
        if given.partition is not None:
            return [TopicPartition(given.topic, given.partition)]
        topics = (await topic_calls.describe_topics(cluster, [given.topic], until)).raise_for_failures()
        return [TopicPartition(given.topic, each.partition) for each in topics[given.topic].partitions]
    listed = await topic_calls.list_topics(cluster, until, include_internal=True)
    nodes = sorted(cluster.image.nodes)
    if given.broker not in nodes:
        raise Failed(f"--broker: there is no broker {given.broker}; there are {', '.join(map(str, nodes))}")
    return [
        TopicPartition(topic.name, each.partition)
        for topic in listed
        for each in topic.partitions
        if each.leader == given.broker
    ]


def _hanging_json(each: HangingTransaction, held: HeldBack | None) -> dict[str, Any]:
    return {
        **each.partition._asdict(),
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator_epoch": each.coordinator_epoch,
        "transactional_id": each.transactional_id,
        "start_offset": each.start_offset,
        "start_timestamp": each.start_timestamp,
        "last_timestamp": each.last_timestamp,
        "why": each.why,
        "last_stable_offset": None if held is None else held.last_stable_offset,
        "log_end_offset": None if held is None else held.log_end_offset,
        "held_back": [] if held is None else [group._asdict() for group in held.groups],
    }


def _print_hanging(hanging: list[HangingTransaction], held: Outcomes[TopicPartition, HeldBack]) -> None:
    now_ms = wall_ms()
    rows = [
        [
            *each.partition,
            each.start_offset,
            each.producer_id,
            each.producer_epoch,
            output.local_time(_since(each)),
            duration(now_ms - _since(each)),
            each.why,
        ]
        for each in hanging
    ]
    print(output.table(_COLUMNS, rows))
    first = {each.partition: each for each in reversed(hanging)}
    held_rows = [
        [
            *where,
            group.group_id,
            group.committed_offset,
            told.last_stable_offset,
            group.lag,
            output.local_time(_since(first[where])),
        ]
        for where, told in held.succeeded.items()
        for group in told.groups
    ]
    in_offsets = any(where.topic == _OFFSETS_TOPIC for where in first)
    if held_rows:
        print("\nHeld back, if they read only committed records:\n")
        print(output.table(_HELD_BACK_COLUMNS, held_rows))
    elif not held.failed and not in_offsets:
        print("\nNo group is held back.")
    if in_offsets:
        print(f"\nThe groups whose offsets one in {_OFFSETS_TOPIC} commits wait for them.")
    which, where = ("it" if len(hanging) == 1 else "the first one"), hanging[0].partition
    named = f"--topic {where.topic} --partition {where.partition} --start-offset {hanging[0].start_offset}"
    print(f"\nTo end {which}: muster transactions abort {named}")


def _since(each: HangingTransaction) -> int:
    """The time of its first record, or of its last if the first cannot be read."""
    return each.last_timestamp if each.start_timestamp is None else each.start_timestamp


# --- abort --------------------------------------------------------------------------------------------------


async def abort_transaction(cluster: Cluster, given: Namespace) -> int:
    """Abort a transaction on a partition, or show which one would be aborted."""
    until = deadline(given.timeout)
    where = TopicPartition(given.topic, given.partition)
    producers = (await describe_producers(cluster, [where], until)).raise_for_failures()[where]
    found = _chosen(where, hanging_calls.open_transactions(producers), given)
    verdict = (await hanging_calls.judge(cluster, {where: [found]}, until))[where, found.producer_id]
    if isinstance(verdict, KafkaError):
        raise verdict
    _check_hangs(verdict, forced=given.force)
    if given.execute:
        await _check_still_open(cluster, where, found, until)
        await transaction_calls.abort_transaction(
            cluster,
            where,
            found.producer_id,
            found.producer_epoch,
            until,
            coordinator_epoch=found.coordinator_epoch,
        )
    if given.output == "json":
        shown = {
            **where._asdict(),
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "coordinator_epoch": found.coordinator_epoch,
            "start_offset": found.transaction_start_offset,
            "aborted": given.execute,
        }
        print(output.document(shown))
        return 0
    done = "aborted" if given.execute else verdict.why or "its coordinator still has it"
    print(printable(f"{where}, {_words(found)}: {done}"))
    if not given.execute:
        print("\nNothing was changed: use --execute to abort it.")
    return 0


def _chosen(where: TopicPartition, there: list[ProducerState], given: Namespace) -> ProducerState:
    for each in there:
        if given.producer_id == each.producer_id or given.start_offset == each.transaction_start_offset:
            return each
    meant = (
        f"that begins at offset {given.start_offset}"
        if given.producer_id is None
        else f"of producer id {given.producer_id}"
    )
    named = "; ".join(_words(each) for each in there[:_NAMED_MAX])
    more = f" and {len(there) - _NAMED_MAX} more" if len(there) > _NAMED_MAX else ""
    instead = f"those open are: {named}{more}" if there else "none is open there"
    raise Failed(f"{where} has no transaction {meant}; {instead}")


def _words(state: ProducerState) -> str:
    return (
        f"producer id {state.producer_id}, epoch {state.producer_epoch}, "
        f"from offset {state.transaction_start_offset} on"
    )


async def _check_still_open(
    cluster: Cluster, where: TopicPartition, found: ProducerState, until: float
) -> None:
    """Markers may have been written while the coordinators were asked, and the next transaction of the same
    producer may be open by now: an abort would end that one."""
    producers = (await describe_producers(cluster, [where], until)).raise_for_failures()[where]
    if _identity(found) not in map(_identity, producers):
        raise Failed(f"{where}, {_words(found)}: it has ended meanwhile; nothing was changed")


def _identity(state: ProducerState) -> tuple[int, int, int | None]:
    return state.producer_id, state.producer_epoch, state.transaction_start_offset


def _check_hangs(verdict: Verdict, *, forced: bool) -> None:
    if verdict.why is None and not forced:
        raise Failed(
            f"it does not hang: the coordinator of {verdict.transactional_id} still has it, and ends it on "
            "all of its partitions, at the latest after its timeout (muster transactions describe shows it); "
            "--force aborts it on this partition alone"
        )
