"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Bytes, Int16, Int32, String


@request(11, versions="0-9", flexible="6+")
class JoinGroupRequest(Message):
    """JoinGroup v0-9: v1 rebalance timeout (v0 uses the session timeout for both), v2-3 throttling, v4
    MEMBER_ID_REQUIRED answers a first join (KIP-394), v5 group instance id (KIP-345), v6 flexible, v7 no
    change here, v8 reason (KIP-800), v9 no change here.

    `protocols` is ordered by the member's preference. `metadata` is opaque to the coordinator; for the
    protocol type "consumer" it is a ConsumerProtocolSubscription (see `muster.protocol.embedded`).
    """

    @struct
    class Protocol(Struct):
        name: str = field(String, "0+")
        metadata: bytes = field(Bytes, "0+")

    group_id: str = field(String, "0+")
    session_timeout_ms: int = field(Int32, "0+")
    rebalance_timeout_ms: int = field(Int32, "1+", default=-1, ignorable=True)
    member_id: str = field(String, "0+")
    group_instance_id: str | None = field(String, "5+", nullable="5+", default=None)
    protocol_type: str = field(String, "0+")
    protocols: list[Protocol] = field(Array(Protocol), "0+")
    reason: str | None = field(String, "8+", nullable="8+", default=None, ignorable=True)


@response(11, versions="0-9", flexible="6+")
class JoinGroupResponse(Message):
    """JoinGroup v0-9: v2 throttle time, v3 throttling after the reply, v4 MEMBER_ID_REQUIRED carries the id
    to rejoin with (KIP-394), v5 members' instance ids (KIP-345), v6 flexible, v7 protocol type, and a
    protocol name that may be null (KIP-559; before v7 a missing name is sent as ""), v8 no change here, v9
    skip_assignment for a static leader that returns (KIP-814).

    `members` is filled only for the leader; everybody else gets an empty list.
    """

    @struct
    class Member(Struct):
        member_id: str = field(String, "0+")
        group_instance_id: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
        metadata: bytes = field(Bytes, "0+")

    throttle_time_ms: int = field(Int32, "2+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    generation_id: int = field(Int32, "0+", default=-1)
    protocol_type: str | None = field(String, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(String, "0+", nullable="7+")
    leader: str = field(String, "0+")
    skip_assignment: bool = field(Boolean, "9+", default=False)
    member_id: str = field(String, "0+")
    members: list[Member] = field(Array(Member), "0+")


@request(14, versions="0-5", flexible="4+")
class SyncGroupRequest(Message):
    """SyncGroup v0-5: v1-2 throttling, v3 group instance id (KIP-345), v4 flexible, v5 protocol type and
    name, checked against the group's (KIP-559).

    `assignments` comes from the leader; members that only wait for theirs send an empty list.
    """

    @struct
    class Assignment(Struct):
        member_id: str = field(String, "0+")
        assignment: bytes = field(Bytes, "0+")

    group_id: str = field(String, "0+")
    generation_id: int = field(Int32, "0+")
    member_id: str = field(String, "0+")
    group_instance_id: str | None = field(String, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
    assignments: list[Assignment] = field(Array(Assignment), "0+")


@response(14, versions="0-5", flexible="4+")
class SyncGroupResponse(Message):
    """SyncGroup v0-5: v1 throttle time, v2 throttling after the reply, v3 no change here, v4 flexible,
    v5 protocol type and name (KIP-559).

    `assignment` is what the leader gave this member; zero bytes if the leader left it out.
    """

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    protocol_type: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(Bytes, "0+")


@request(12, versions="0-4", flexible="4+")
class HeartbeatRequest(Message):
    """Heartbeat v0-4: v1-2 throttling, v3 group instance id, so that a fenced static member learns of it
    (KIP-345), v4 flexible."""

    group_id: str = field(String, "0+")
    generation_id: int = field(Int32, "0+")
    member_id: str = field(String, "0+")
    group_instance_id: str | None = field(String, "3+", nullable="3+", default=None)


@response(12, versions="0-4", flexible="4+")
class HeartbeatResponse(Message):
    """Heartbeat v0-4: v1 throttle time, v2 throttling after the reply, v3 FENCED_INSTANCE_ID possible
    (KIP-345), v4 flexible."""

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)


@request(13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Message):
    """LeaveGroup v0-5: v1-2 throttling, v3 several members in one request, named by member id or by instance
    id, in place of the single `member_id` (KIP-345), v4 flexible, v5 reason (KIP-800)."""

    @struct
    class MemberIdentity(Struct):
        member_id: str = field(String, "3+")
        group_instance_id: str | None = field(String, "3+", nullable="3+", default=None)
        reason: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)

    group_id: str = field(String, "0+")
    member_id: str = field(String, "0-2", default="")
    members: list[MemberIdentity] = field(Array(MemberIdentity), "3+", default_factory=list)


@response(13, versions="0-5", flexible="4+")
class LeaveGroupResponse(Message):
    """LeaveGroup v0-5: v1 throttle time, v2 throttling after the reply, v3 an outcome per member (before, the
    one member's error is the top-level error), v4 flexible, v5 no change here."""

    @struct
    class MemberResponse(Struct):
        member_id: str = field(String, "3+")
        group_instance_id: str | None = field(String, "3+", nullable="3+")
        error_code: int = field(Int16, "3+", default=0)

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    members: list[MemberResponse] = field(Array(MemberResponse), "3+", default_factory=list)
