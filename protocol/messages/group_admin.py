"""Groups seen from outside: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.protocol.elements import Form
from muster.protocol.message import VERSION_MAX, Message, Struct, Versions, field, request, response, struct
from muster.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED
from muster.protocol.types import Array, Boolean, Bytes, Int16, Int32, String


@request(16, versions="0-5", flexible="3+")
class ListGroupsRequest(Message):
    """ListGroups v0-5: v1-2 no change here, v3 flexible, v4 filter by state (KIP-518), v5 filter by type
    (KIP-848).

    An empty filter matches everything; comparison ignores case.
    """

    states_filter: list[str] = field(Array(String), "4+", default_factory=list)
    types_filter: list[str] = field(Array(String), "5+", default_factory=list)


@response(16, versions="0-5", flexible="3+")
class ListGroupsResponse(Message):
    """ListGroups v0-5: v1 throttle time, v2 throttling after the reply, v3 flexible, v4 state (KIP-518), v5
    type (KIP-848)."""

    @struct
    class ListedGroup(Struct):
        group_id: str = field(String, "0+")
        protocol_type: str = field(String, "0+")
        group_state: str = field(String, "4+", default="", ignorable=True)
        group_type: str = field(String, "5+", default="", ignorable=True)

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    groups: list[ListedGroup] = field(Array(ListedGroup), "0+")


@request(15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Message):
    """DescribeGroups v0-6: v1-2 no change here, v3 authorized operations (KIP-430), v4 no change here, v5
    flexible, v6 no change here."""

    groups: list[str] = field(Array(String), "0+")
    include_authorized_operations: bool = field(Boolean, "3+", default=False)


@response(15, versions="0-6", flexible="5+")
class DescribeGroupsResponse(Message):
    """DescribeGroups v0-6: v1 throttle time, v2 throttling after the reply, v3 authorized operations
    (KIP-430), v4 group instance id (KIP-345), v5 flexible, v6 error message, and GROUP_ID_NOT_FOUND for a
    group that does not exist (before, it is described as Dead without an error; KIP-1043).

    `protocol_data` is the selected protocol, and `member_metadata` what the member sent for it; both are
    empty unless the group is Stable.
    """

    @struct
    class DescribedGroup(Struct):
        @struct
        class DescribedGroupMember(Struct):
            member_id: str = field(String, "0+")
            group_instance_id: str | None = field(String, "4+", nullable="4+", default=None, ignorable=True)
            client_id: str = field(String, "0+")
            client_host: str = field(String, "0+")
            member_metadata: bytes = field(Bytes, "0+")
            member_assignment: bytes = field(Bytes, "0+")

        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "6+", nullable="6+", default=None)
        group_id: str = field(String, "0+")
        group_state: str = field(String, "0+")
        protocol_type: str = field(String, "0+")
        protocol_data: str = field(String, "0+")
        members: Sequence[DescribedGroupMember] = field(Array(DescribedGroupMember, encoded=True), "0+")
        authorized_operations: int = field(Int32, "3+", default=AUTHORIZED_OPERATIONS_OMITTED)

    DescribedGroupMember: TypeAlias = DescribedGroup.DescribedGroupMember  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    groups: list[DescribedGroup] = field(Array(DescribedGroup), "0+")


DESCRIBED_MEMBER: Final = Form(DescribeGroupsResponse.DescribedGroupMember, Versions(5, VERSION_MAX), 5)
"""The form of members since v5."""


@request(42, versions="0-3", flexible="2+")
class DeleteGroupsRequest(Message):
    """DeleteGroups v0-3 (KIP-229): v1 no change here, v2 flexible, v3 no change here."""

    groups_names: list[str] = field(Array(String), "0+")


@response(42, versions="0-3", flexible="2+")
class DeleteGroupsResponse(Message):
    """DeleteGroups v0-3 (KIP-229): v1 throttling after the reply, v2 flexible, v3 error message per group;
    GROUP_DELETION_FAILED possible."""

    @struct
    class DeletableGroupResult(Struct):
        group_id: str = field(String, "0+")
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "3+", nullable="3+", default=None, ignorable=True)

    throttle_time_ms: int = field(Int32, "0+", default=0)
    results: list[DeletableGroupResult] = field(Array(DeletableGroupResult), "0+")
