"""The views of `muster groups describe`: the data read for a group, and its tables, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.client.admin.groups import GroupDescription, MemberDescription
from muster.client.admin.offsets import GroupOffsets, list_group_offsets
from muster.client.network.cluster import Cluster
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.coordinator.commands.group_reads import log_ends, of_groups
from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.names import Names
from muster.protocol.errors import ErrorCode, KafkaError


class Position(NamedTuple):
    """A group's position in a partition; None for what is unknown."""

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


class Description(NamedTuple):
    """Groups, and why the positions of other groups, and the log ends of some partitions, are unknown."""

    groups: list[Described]
    failures: Mapping[str, KafkaError]


class View(NamedTuple):
    """Columns and rows of a table. Columns are named as in the JSON, if they appear there."""

    columns: Sequence[str]
    rows: list[Sequence[object]]

    def without(self, column: str) -> View:
        """The view without this column, if it has it."""
        kept = [index for index, name in enumerate(self.columns) if name != column]
        return View(
            [self.columns[each] for each in kept], [[row[each] for each in kept] for row in self.rows]
        )


def names_of(group: GroupDescription) -> Names:
    """The short names of its members."""
    return Names(members_of(group))


def members_of(group: GroupDescription) -> list[Member]:
    """The members in the form that explanations use."""
    return [
        Member(each.member_id, each.client_id, each.host.lstrip("/"), each.group_instance_id)
        for each in group.members
    ]


# --- data ---------------------------------------------------------------------------------------------------


async def describe(
    cluster: Cluster, groups: Mapping[str, GroupDescription], until: float, *, positions: bool
) -> Description:
    """Describe groups, with their positions if `positions`. That a topic was deleted is no failure. Raises
    ClientError and KafkaError if no group's positions are known."""
    if not positions or not groups:
        return Description([Described(group, []) for group in groups.values()], {})
    outcomes = await of_groups(list_group_offsets, cluster, groups, until)
    committed, failures = outcomes.succeeded, failures_of_groups(outcomes.failed)
    if not committed:
        outcomes.raise_for_failures()
    assigned = {
        name: {where: member for member in group.members for where in member.assignment or []}
        for name, group in groups.items()
    }
    wanted = {name: sorted({*offsets, *assigned[name]}) for name, offsets in committed.items()}
    ends, unknown = await log_ends(cluster, {where for each in wanted.values() for where in each}, until)
    deleted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    failures |= {str(where): error for where, error in unknown.items() if error.code != deleted}
    described = [
        Described(groups[name], _positions(wanted[name], offsets, ends, assigned[name]))
        for name, offsets in committed.items()
    ]
    return Description(described, failures)


def failures_of_groups(failed: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Failures by what they are about, for error messages."""
    return {f"group {name}": error for name, error in failed.items()}


def _positions(
    wanted: Sequence[TopicPartition],
    committed: GroupOffsets,
    ends: Mapping[TopicPartition, int],
    assigned: Mapping[TopicPartition, MemberDescription],
) -> list[Position]:
    return [_position(each, committed.get(each), ends.get(each), assigned.get(each)) for each in wanted]


def _position(
    where: TopicPartition,
    committed: OffsetAndMetadata | None,
    end: int | None,
    member: MemberDescription | None,
) -> Position:
    offset = None if committed is None else committed.offset
    # Negative if the log was truncated or recreated after the commit; Kafka's tool shows that too.
    lag = None if offset is None or end is None else end - offset
    metadata = None if committed is None else committed.metadata
    return Position(where.topic, where.partition, offset, end, lag, metadata, member)


# --- output -------------------------------------------------------------------------------------------------


def as_json(described: Described) -> dict[str, Any]:
    """A group in the JSON of every view."""
    group, names = described.group, names_of(described.group)
    return {
        "group_id": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "type": group.group_type,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "coordinator": {
            "node_id": group.coordinator.node_id,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "members": [
            each._asdict()
            | {"name": names.short(each.member_id)}
            | {"assignment": _partitions(each.assignment), "target": _partitions(each.target)}
            for each in group.members
        ],
        "offsets": [
            {name: value for name, value in each._asdict().items() if name != "member"}
            | {"member_id": each.member and each.member.member_id}
            for each in described.positions
        ],
    }


def _partitions(assignment: Sequence[TopicPartition] | None) -> list[dict[str, Any]] | None:
    return None if assignment is None else [each._asdict() for each in assignment]


def offsets_view(described: Sequence[Described], verbose: bool) -> View:
    """Positions; `verbose` adds the metadata of the commits."""
    columns = ["group_id", "topic", "partition", "committed_offset", "log_end_offset", "lag"]
    columns += ["name", "member_id", "host", "client_id", *(["metadata"] if verbose else [])]
    rows: list[Sequence[object]] = []
    for group, positions in described:
        names = names_of(group)
        for each in positions:
            member = each.member
            who: list[str | None] = [None] * 4
            if member is not None:
                who = [names.short(member.member_id), member.member_id, member.host, member.client_id]
            metadata = [each.metadata] if verbose else []
            rows.append([group.group_id, *each[:5], *who, *metadata])
    return View(columns, rows)


def members_view(described: Sequence[Described], verbose: bool) -> View:
    """Members and their number of partitions; `verbose` lists the partitions and, for consumer groups, epochs
    and targets."""
    columns = ["group_id", "name", "member_id", "group_instance_id", "host", "client_id", "partitions"]
    rows: list[Sequence[object]] = []
    for group, _ in described:
        names = names_of(group)
        for member in sorted(group.members):
            count = None if member.assignment is None else len(member.assignment)
            which = [member.assignment, member.protocol, member.epoch, member.target] if verbose else []
            who = [names.short(member.member_id), *member[:2], member.host, member.client_id]
            rows.append([group.group_id, *who, count, *which])
    return View([*columns, "assignment", "protocol", "epoch", "target"] if verbose else columns, rows)


def state_view(described: Sequence[Described], verbose: bool) -> View:
    """States of groups; `verbose` adds their types."""
    columns = ["group_id", "coordinator", "assignor", "state", "members"]
    rows: list[Sequence[object]] = []
    for group, _ in described:
        at = f"{group.coordinator.address} ({group.coordinator.node_id})"
        types = [group.group_type, group.protocol_type, group.epoch, group.target_epoch] if verbose else []
        rows.append([group.group_id, at, group.assignor, group.state, len(group.members), *types])
    more = ["type", "protocol_type", "epoch", "target_epoch"] if verbose else []
    return View([*columns, *more], rows)


VIEWS: Final = {"offsets": offsets_view, "members": members_view, "state": state_view}

HEADINGS: Final = {
    "group_id": "GROUP",
    "committed_offset": "COMMITTED",
    "log_end_offset": "LOG END",
    "name": "MEMBER",
    "member_id": "MEMBER ID",
    "group_instance_id": "INSTANCE",
    "client_id": "CLIENT",
    "protocol_type": "PROTOCOL",
    "target_epoch": "TARGET EPOCH",
}
"""Table headings that differ from the column's name."""


def headings(columns: Sequence[str]) -> list[str]:
    """The table headings of the columns."""
    return [HEADINGS.get(each, each.upper()) for each in columns]
