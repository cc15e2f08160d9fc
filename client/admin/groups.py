"""Groups: list, describe, delete, remove members."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from muster.client.admin.answers import Outcomes, of_coordinator, of_coordinators, refused
from muster.client.admin.cluster import Node
from muster.client.errors import ClientError, refusal
from muster.client.network.cluster import Cluster
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
)

REASON: Final = "removed by an administrator"

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Group types."""
CONSUMER_PROTOCOL_TYPES: Final = frozenset({"", "consumer"})
"""Protocol types of groups of consumers; "" is that of a group that only has offsets."""

_SPEAKS_CLASSIC: Final = 0
"""ConsumerGroupDescribe's member type for members of the classic protocol; before v1 there is none."""
_NAMED_MAX: Final = 5  # members named in an error


class GroupListing(NamedTuple):
    """A group as ListGroups returns it; the type is "" from brokers before Kafka 3.8, the state from those
    before 2.6."""

    group_id: str
    group_type: str
    protocol_type: str
    state: str


class MemberDescription(NamedTuple):
    """A member. `assignment` is None if its bytes are not a consumer assignment.

    `protocol` is "classic" or "consumer" (KIP-848). In a consumer group, which may have members of both,
    `epoch` is the epoch that the member has reached, and `target` its target assignment; in other groups they
    are None.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition] | None
    protocol: str = CLASSIC
    epoch: int | None = None
    target: list[TopicPartition] | None = None


class GroupDescription(NamedTuple):
    """A group, of type "classic" or "consumer" (KIP-848). `assignor` is the selected protocol, "" unless the
    group is stable. `epoch` is that of a consumer group, and `target_epoch` the one that its members' targets
    were computed for; in classic groups they are None."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[MemberDescription]
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def member_names(self) -> str:
        """The number of members and the names of the first few, in words."""
        count = "1 member" if len(self.members) == 1 else f"{len(self.members)} members"
        shown = [
            f"{each.group_instance_id or each.client_id or each.member_id} at {each.host.removeprefix('/')}"
            for each in self.members[:_NAMED_MAX]
        ]
        more = len(self.members) - len(shown)
        return f"{count} ({', '.join(shown)}{f' and {more} more' if more else ''})" if shown else count


async def list_groups(
    cluster: Cluster, until: float, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupListing]:
    """The groups of all brokers by id; optionally only those in one of these states and of one of these
    types."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    async def attempt() -> list[GroupListing]:
        groups = set()
        for node, response in (await cluster.call_all(request, until)).items():
            if response.error_code:
                raise refusal(response.error_code, about=f"broker {node}")
            groups |= {
                GroupListing(each.group_id, each.group_type, each.protocol_type, each.group_state)
                for each in response.groups
            }
        return sorted(groups)

    return await cluster.retrying(attempt, until)


async def describe_groups(
    cluster: Cluster, group_ids: Iterable[str], until: float
) -> Outcomes[str, GroupDescription]:
    """Describe groups and their members. A group that does not exist gets KafkaError(GROUP_ID_NOT_FOUND)."""

    async def ask(node: int, wanted: list[str]) -> dict[str, GroupDescription | KafkaError]:
        connection = await cluster.connection(node, until)
        # The metadata may no longer list the node once it has answered.
        coordinator = Node(node, connection.address.host, connection.address.port, None)
        response = await cluster.call(DescribeGroupsRequest(groups=wanted), until, node=node)
        found = {each.group_id: _described(coordinator, each) for each in response.groups}
        missing = [
            name
            for name, each in found.items()
            if isinstance(each, KafkaError) and each.code == ErrorCode.GROUP_ID_NOT_FOUND
        ]
        if not missing:
            return found
        if ApiKey.CONSUMER_GROUP_DESCRIBE in connection.versions:
            asked = ConsumerGroupDescribeRequest(group_ids=missing, include_authorized_operations=False)
            response = await cluster.call(asked, until, node=node)
            found |= {
                each.group_id: _described_consumers(coordinator, each)
                for each in response.groups
                if each.error_code != ErrorCode.UNSUPPORTED_VERSION  # the consumer protocol is switched off
            }
        return found

    return await of_coordinators(cluster, group_ids, ask, until, api="DescribeGroups")


def _described(
    coordinator: Node, told: DescribeGroupsResponse.DescribedGroup
) -> GroupDescription | KafkaError:
    if told.error_code:
        return refusal(told.error_code, told.error_message, about=f"group {told.group_id}")
    if told.group_state == "Dead":  # how brokers before DescribeGroups v6 report it
        return refusal(ErrorCode.GROUP_ID_NOT_FOUND, about=f"group {told.group_id}")
    return GroupDescription(
        told.group_id,
        CLASSIC,
        told.group_state,
        told.protocol_type,
        told.protocol_data,
        coordinator,
        [_member(each) for each in told.members],
    )


def _member(told: DescribeGroupsResponse.DescribedGroup.DescribedGroupMember) -> MemberDescription:
    assignment: list[TopicPartition] | None = None
    try:
        assigned = decode_assignment(told.member_assignment).assigned_partitions
    except DecodeError:
        if not told.member_assignment:
            assignment = []
    else:
        assignment = sorted(
            TopicPartition(each.topic, partition) for each in assigned for partition in each.partitions
        )
    return MemberDescription(
        told.member_id, told.group_instance_id, told.client_id, told.client_host, assignment
    )


def _described_consumers(
    coordinator: Node, told: ConsumerGroupDescribeResponse.DescribedGroup
) -> GroupDescription | KafkaError:
    if told.error_code:
        return refusal(told.error_code, told.error_message, about=f"group {told.group_id}")
    return GroupDescription(
        told.group_id,
        CONSUMER,
        told.group_state,
        "consumer",
        told.assignor_name if told.group_state == "Stable" else "",
        coordinator,
        [
            MemberDescription(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                _assigned(each.assignment),
                CLASSIC if each.member_type == _SPEAKS_CLASSIC else CONSUMER,
                each.member_epoch,
                _assigned(each.target_assignment),
            )
            for each in told.members
        ],
        told.group_epoch,
        told.assignment_epoch,
    )


def _assigned(told: ConsumerGroupDescribeResponse.DescribedGroup.Member.Assignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, partition)
        for topic in told.topic_partitions
        for partition in topic.partitions
    )


async def delete_groups(cluster: Cluster, group_ids: Iterable[str], until: float) -> Outcomes[str, None]:
    """Delete groups without members, and their offsets. The failure of a group that has members names
    them."""

    async def ask(node: int, wanted: list[str]) -> dict[str, KafkaError | None]:
        response = await cluster.call(DeleteGroupsRequest(groups_names=wanted), until, node=node)
        return {each.group_id: refused(each.error_code, each.error_message) for each in response.results}

    outcomes = await of_coordinators(cluster, group_ids, ask, until, api="DeleteGroups", repeatable=False)
    active = [name for name, each in outcomes.failed.items() if each.code == ErrorCode.NON_EMPTY_GROUP]
    if active:
        with suppress(ClientError, KafkaError):  # then the broker's message must do
            for name, group in (await describe_groups(cluster, active, until)).succeeded.items():
                outcomes[name] = KafkaError(ErrorCode.NON_EMPTY_GROUP, f"the group has {group.member_names}")
    return outcomes


async def remove_members(
    cluster: Cluster,
    group_id: str,
    until: float,
    *,
    member_ids: Iterable[str] | None = None,
    instance_ids: Iterable[str] | None = None,
    reason: str = REASON,
) -> Outcomes[str, None]:
    """Remove these members of a classic group, by member id or group instance id; without either, all of
    them. The outcomes are keyed by those ids. Members still running rejoin."""
    leaving = {
        each: LeaveGroupRequest.MemberIdentity(member_id=each, reason=reason) for each in member_ids or ()
    }
    leaving |= {
        each: LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=each, reason=reason)
        for each in instance_ids or ()
    }
    if member_ids is None and instance_ids is None:
        described = (await describe_groups(cluster, [group_id], until)).raise_for_failures()[group_id]
        leaving = {
            each.member_id: LeaveGroupRequest.MemberIdentity(
                member_id=each.member_id, group_instance_id=each.group_instance_id, reason=reason
            )
            for each in described.members
        }

    async def ask(node: int, wanted: list[str]) -> dict[str, KafkaError | None]:
        request = LeaveGroupRequest(group_id=group_id, members=[leaving[each] for each in wanted])
        response = await cluster.call(request, until, node=node)
        if response.error_code:
            raise refusal(response.error_code, about=f"group {group_id}")
        outcomes: dict[str, KafkaError | None] = {}
        for told in response.members:
            by_id = told.member_id in leaving
            name = told.member_id if by_id else told.group_instance_id or ""
            about = f"group {group_id}, {'member' if by_id else 'group instance id'} {name}"
            outcomes[name] = refused(told.error_code, about=about)
        return outcomes

    return await of_coordinator(cluster, group_id, leaving, ask, until, api="LeaveGroup", repeatable=False)
