"""`muster groups`: list, describe, delete, remove-members (and what `group_offsets` has)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.client.admin import groups as group_calls
from muster.client.admin import offsets as offset_calls
from muster.client.admin.groups import GroupDescription, MemberDescription
from muster.client.admin.offsets import GroupOffsets
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.coordinator.commands import group_offsets, output
from muster.coordinator.commands.options import actions, command
from muster.coordinator.commands.run import Usage, report_outcomes
from muster.protocol.errors import ErrorCode

_LIST_JSON = """\
JSON: [{"group_id": text, "type": text, "protocol_type": text, "state": text}], by group id"""

_DESCRIBE_JSON = """\
JSON: the same in every view,
  [{"group_id": text, "state": text, "protocol_type": text, "assignor": text,
    "coordinator": {"node_id": number, "host": text, "port": number},
    "members": [{"member_id": text, "group_instance_id": text or null, "client_id": text, "host": text,
                 "assignment": [{"topic": text, "partition": number}] or null}],
    "offsets": [{"topic": text, "partition": number, "committed_offset": number or null,
                 "log_end_offset": number or null, "lag": number or null, "metadata": text or null,
                 "member_id": text or null}]}]
An assignment is null when its bytes are not those of consumers."""

_DELETE_JSON = """\
JSON: [{"group_id": text, "error": null or {"code": Kafka's name, "message": text}}]"""

_REMOVE_JSON = """\
Members that still run join again.

JSON: [{"member": text, "error": null or {"code": Kafka's name, "message": text}}]"""


class Position(NamedTuple):
    """How far a group is in a partition; None for what is not known."""

    topic: str
    partition: int
    committed_offset: int | None
    log_end_offset: int | None
    lag: int | None
    metadata: str | None
    member: MemberDescription | None


class Described(NamedTuple):
    """A group and its positions."""

    group: GroupDescription
    positions: list[Position]


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list groups", _LIST_JSON)
    listing.add_argument(
        "--state", action="append", default=[], metavar="STATE", help="only these; may be repeated"
    )
    listing.add_argument(
        "--type", action="append", default=[], metavar="TYPE", help="only these; may be repeated"
    )
    listing.set_defaults(work=list_groups)

    describe = command(
        below,
        "describe",
        "show how far groups are, who their members are, or their state",
        "LAG is what is between the committed offset and the end of the log.\n\n" + _DESCRIBE_JSON,
    )
    describe.add_argument("groups", metavar="GROUP", nargs="+")
    views = describe.add_mutually_exclusive_group()
    for view, meaning in (
        ("offsets", "committed offset, log end and lag of each partition (the default)"),
        ("members", "the members and what they are assigned"),
        ("state", "coordinator, assignor, state and number of members"),
    ):
        views.add_argument(f"--{view}", dest="view", action="store_const", const=view, help=meaning)
    describe.set_defaults(work=describe_groups, view="offsets")

    delete = command(below, "delete", "delete groups without members, with their offsets", _DELETE_JSON)
    delete.add_argument("groups", metavar="GROUP", nargs="+")
    delete.set_defaults(work=delete_groups)

    group_offsets.declare(below)

    remove = command(below, "remove-members", "remove members from a group", _REMOVE_JSON)
    remove.add_argument("group", metavar="GROUP")
    remove.add_argument("--member", action="append", metavar="ID", help="this member id; may be repeated")
    remove.add_argument(
        "--instance", action="append", metavar="ID", help="this group instance id; may be repeated"
    )
    remove.add_argument("--all", action="store_true", help="all members")
    remove.add_argument("--reason", default=group_calls.REASON, metavar="TEXT", help="for the broker's log")
    remove.set_defaults(work=remove_members)


async def list_groups(cluster: Cluster, given: Namespace) -> int:
    """Show every group on a line."""
    groups = await group_calls.list_groups(
        cluster, deadline(given.timeout), states=given.state, types=given.type
    )
    if given.output == "json":
        shown = [
            {
                "group_id": each.group_id,
                "type": each.group_type,
                "protocol_type": each.protocol_type,
                "state": each.state,
            }
            for each in groups
        ]
        print(output.document(shown))
    else:
        print(output.table(("GROUP", "TYPE", "PROTOCOL", "STATE"), groups))
    return 0


async def describe_groups(cluster: Cluster, given: Namespace) -> int:
    """Show groups in the view asked for."""
    until = deadline(given.timeout)
    groups = (await group_calls.describe_groups(cluster, given.groups, until)).raise_for_failures()
    offsets: Mapping[str, GroupOffsets] = {}
    if given.output == "json" or given.view == "offsets":
        offsets = (await offset_calls.list_group_offsets(cluster, groups, until)).raise_for_failures()
    described = [await _described(cluster, group, offsets.get(name), until) for name, group in groups.items()]
    if given.output == "json":
        print(output.document([_json(each) for each in described]))
        return 0
    view = {"offsets": _offsets_table, "members": _members_table, "state": _state_table}[given.view]
    print(view(described))
    return 0


async def delete_groups(cluster: Cluster, given: Namespace) -> int:
    """Delete groups."""
    outcomes = await group_calls.delete_groups(cluster, given.groups, deadline(given.timeout))
    return report_outcomes(given, outcomes, "group_id", "deleted")


async def remove_members(cluster: Cluster, given: Namespace) -> int:
    """Remove members; those that still run join again."""
    if given.all == bool(given.member or given.instance):
        raise Usage("it takes --member and --instance, or --all")
    outcomes = await group_calls.remove_members(
        cluster,
        given.group,
        deadline(given.timeout),
        member_ids=None if given.all else given.member or [],
        instance_ids=None if given.all else given.instance or [],
        reason=given.reason,
    )
    return report_outcomes(given, outcomes, "member", "removed")


# --- what is known of a group -------------------------------------------------------------------------------


async def _described(
    cluster: Cluster, group: GroupDescription, committed: GroupOffsets | None, until: float
) -> Described:
    """`committed` is None where positions are not asked for."""
    if committed is None:
        return Described(group, [])
    assigned = {where: member for member in group.members for where in member.assignment or []}
    ends = await _ends(cluster, {*committed, *assigned}, until)
    return Described(
        group,
        [
            _position(where, committed.get(where), ends.get(where), assigned.get(where))
            for where in sorted({*committed, *assigned})
        ],
    )


async def _ends(cluster: Cluster, partitions: set[TopicPartition], until: float) -> dict[TopicPartition, int]:
    """Where the logs end; of a topic that is gone nothing is known, its offsets are shown all the same."""
    found = await offset_calls.list_offsets(cluster, dict.fromkeys(partitions, offset_calls.LATEST), until)
    for error in found.failed.values():
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
    return {where: end.offset for where, end in found.succeeded.items() if end is not None}


def _position(
    where: TopicPartition,
    committed: OffsetAndMetadata | None,
    end: int | None,
    member: MemberDescription | None,
) -> Position:
    offset = None if committed is None else committed.offset
    # Below zero when the log was cut or made anew after the commit; Kafka's tool shows that as well.
    lag = None if offset is None or end is None else end - offset
    return Position(
        where.topic,
        where.partition,
        offset,
        end,
        lag,
        None if committed is None else committed.metadata,
        member,
    )


# --- views --------------------------------------------------------------------------------------------------


def _json(described: Described) -> dict[str, Any]:
    group = described.group
    return {
        "group_id": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": {
            "node_id": group.coordinator.node_id,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "members": [
            each._asdict()
            | {"assignment": None if each.assignment is None else [tp._asdict() for tp in each.assignment]}
            for each in group.members
        ],
        "offsets": [
            {name: value for name, value in each._asdict().items() if name != "member"}
            | {"member_id": each.member and each.member.member_id}
            for each in described.positions
        ],
    }


def _offsets_table(described: list[Described]) -> str:
    columns = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "LOG END", "LAG", "MEMBER", "HOST", "CLIENT")
    return output.table(
        columns,
        [
            (
                each.group.group_id,
                position.topic,
                position.partition,
                position.committed_offset,
                position.log_end_offset,
                position.lag,
                position.member and position.member.member_id,
                position.member and position.member.host,
                position.member and position.member.client_id,
            )
            for each in described
            for position in each.positions
        ],
    )


def _members_table(described: list[Described]) -> str:
    columns = ("GROUP", "MEMBER", "INSTANCE", "HOST", "CLIENT", "PARTITIONS", "ASSIGNMENT")
    return output.table(
        columns,
        [
            (
                each.group.group_id,
                member.member_id,
                member.group_instance_id,
                member.host,
                member.client_id,
                None if member.assignment is None else len(member.assignment),
                member.assignment,
            )
            for each in described
            for member in sorted(each.group.members)
        ],
    )


def _state_table(described: list[Described]) -> str:
    return output.table(
        ("GROUP", "COORDINATOR", "ASSIGNOR", "STATE", "MEMBERS"),
        [
            (
                each.group.group_id,
                f"{each.group.coordinator.address} ({each.group.coordinator.node_id})",
                each.group.assignor,
                each.group.state,
                len(each.group.members),
            )
            for each in described
        ],
    )
