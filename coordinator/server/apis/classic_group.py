"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: passed on to the shard of the group, which answers when the
group does."""

from __future__ import annotations

from typing import Final, TypeVar

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.api import Api, Parts, Repeated
from muster.coordinator.server.names import Names
from muster.coordinator.server.needs import Needs, group
from muster.coordinator.server.refusal import Refusal, listing
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

T = TypeVar("T")

_GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""The subscription of a member, or the assignments of all members of a group. Kafka could not store a
sixteenth of this: a group's members have to fit into one record of its offsets topic, a megabyte."""
_NULL_PROTOCOL_FROM: Final = 7
_LEAVE_OF_MEMBERS_FROM: Final = 3


def join_group(
    broker: Broker, request: JoinGroupRequest, context: RequestContext, answered: Answered
) -> object:
    """Parked until the group's join phase is over."""

    def joined(answer: object) -> None:
        answered(_joined(answer, context))

    answer = broker.runtime.call_at_once(request.group_id, Shard.join, request, context, joined)
    return _joined(answer, context)


def _joined(answer: T, context: RequestContext) -> T:
    """A JoinGroup's answer as its version can encode it: before v7, a missing protocol is not null."""
    if (
        isinstance(answer, JoinGroupResponse)
        and answer.protocol_name is None
        and context.api_version < _NULL_PROTOCOL_FROM
    ):
        answer.protocol_name = ""
    return answer


def sync_group(
    broker: Broker, request: SyncGroupRequest, context: RequestContext, answered: Answered
) -> object:
    """Parked until the leader has sent the assignment."""
    return broker.runtime.call_at_once(request.group_id, Shard.sync, request, context, answered)


def heartbeat(
    broker: Broker, request: HeartbeatRequest, context: RequestContext, answered: Answered
) -> object:
    """A sign of life; REBALANCE_IN_PROGRESS asks the member to join again."""
    return broker.runtime.call_at_once(request.group_id, Shard.heartbeat, request, context, answered)


def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext, answered: Answered
) -> object:
    """One member up to v2, any number from v3 on."""
    return broker.runtime.call_at_once(request.group_id, Shard.leave, request, context, answered)


_NAMES: Final = Names(group="group_id", members=True)
_NEEDS: Final = Needs((group(Operation.READ),))
_CODES_OF_LEAVING_MEMBERS: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})

APIS: Final = (
    # MEMBER_ID_REQUIRED and the refusals of known members carry a member id; those come from the core as
    # responses.
    Api(
        ApiKey.JOIN_GROUP,
        join_group,
        needs=_NEEDS,
        names=_NAMES,
        refuse=Refusal(mirrored=("member_id",)),
        size_max=_GROUP_BYTES_MAX,
    ),
    Api(ApiKey.SYNC_GROUP, sync_group, needs=_NEEDS, names=_NAMES, size_max=_GROUP_BYTES_MAX),
    Api(
        ApiKey.HEARTBEAT,
        heartbeat,
        needs=_NEEDS,
        names=_NAMES,
        instant=True,
        repeats=lambda request, version, message: Repeated(),
    ),
    Api(
        ApiKey.LEAVE_GROUP,
        leave_group,
        needs=_NEEDS,
        names=_NAMES,
        parts=Parts(
            _CODES_OF_LEAVING_MEMBERS.__contains__,
            listing("members", "members"),
            since=_LEAVE_OF_MEMBERS_FROM,
        ),
    ),
)
