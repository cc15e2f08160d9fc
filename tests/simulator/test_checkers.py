"""Each checker on its own: what it accepts and what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest

from muster.coordinator.storage.store import Lease, LeaseKind
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.simulator.checkers import (
    Answered,
    CommitsKept,
    Disk,
    DurableFirst,
    Exchange,
    OneOwner,
    OnlyGrows,
    Violation,
)
from tests.simulator.expected import ExpectedCodes
from tests.simulator.member import Asked
from tests.simulator.store import Written
from tests.support import embedded

ORDERS_0 = ("orders", 0)


class FakeLink:
    """The parts of a link that the checkers look at."""

    address = ("broker-1", 9092)
    closed_by_broker = False
    loses_requests = False


class FakeNode:
    def __init__(self) -> None:
        self.now_s = 0.0

    def running_s(self) -> float:
        return self.now_s


def exchange(api_key: ApiKey, request: Message, link: Any = None) -> Exchange:
    return Exchange(Asked(api_key, 5, 1, request), link or cast(Any, FakeLink()), 0.0)


def written(key: Message, value: Message | None, version: int = 0) -> Written:
    encoded = None if value is None else encode_value(value, version)
    return Written(0.0, Lease(LeaseKind.GROUP, 0), 1, encode_key(key), encoded)


def committed(offset: int, metadata: str = "m") -> Written:
    key = OffsetCommitKey(group="g", topic="orders", partition=0)
    return written(key, OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=0), 4)


def classic(generation: int | None, *member_ids: str) -> Written:
    """A classic group's metadata; None: its tombstone."""
    if generation is None:
        return written(GroupMetadataKey(group="g"), None)
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=member_id,
            client_id="",
            client_host="",
            rebalance_timeout=0,
            session_timeout=0,
            subscription=b"",
            assignment=b"",
        )
        for member_id in member_ids
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=generation, protocol="range", leader=None, members=members
    )
    return written(GroupMetadataKey(group="g"), value, 3)


def consumer(epoch: int | None) -> Written:
    """A consumer group's metadata; None: its tombstone."""
    value = None if epoch is None else ConsumerGroupMetadataValue(epoch=epoch)
    return written(ConsumerGroupMetadataKey(group_id="g"), value)


def assignment(*partitions: int) -> bytes:
    return embedded.assignment({"orders": partitions})


def sync(member_id: str, generation_id: int, instance_id: str | None = None) -> Exchange:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        assignments=[],
    )
    return exchange(ApiKey.SYNC_GROUP, request)


def synced(*partitions: int, error_code: int = 0) -> SyncGroupResponse:
    return SyncGroupResponse(assignment=assignment(*partitions), error_code=error_code)


def commit(offset: int, metadata: str = "m") -> Exchange:
    partition = OffsetCommitRequest.Partition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    topic = OffsetCommitRequest.Topic(name="orders", partitions=[partition])
    request = OffsetCommitRequest(group_id="g", member_id="a", topics=[topic])
    return exchange(ApiKey.OFFSET_COMMIT, request)


def commit_answer(error_code: int = 0) -> OffsetCommitResponse:
    partition = OffsetCommitResponse.Partition(partition_index=0, error_code=error_code)
    return OffsetCommitResponse(topics=[OffsetCommitResponse.Topic(name="orders", partitions=[partition])])


def fetch() -> Exchange:
    return exchange(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g"))


def fetch_answer(offset: int, metadata: str = "m") -> OffsetFetchResponse:
    partition = OffsetFetchResponse.Partition(partition_index=0, committed_offset=offset, metadata=metadata)
    return OffsetFetchResponse(topics=[OffsetFetchResponse.Topic(name="orders", partitions=[partition])])


@pytest.fixture
def disk() -> Disk:
    return Disk()


# --- one owner ------------------------------------------------------------------------------------


def test_each_partition_may_have_an_owner_in_each_generation(disk: Disk) -> None:
    checker = OneOwner(disk)
    checker.replied(sync("a", 1), synced(0, 1))
    checker.replied(sync("b", 1), synced(2))
    checker.replied(sync("a", 1), synced(0, 1))  # asked again
    checker.replied(sync("b", 2), synced(0, 1, 2))
    checker.replied(sync("c", 2), synced(0, error_code=ErrorCode.UNKNOWN_MEMBER_ID))


def test_two_owners_in_one_generation(disk: Disk) -> None:
    checker = OneOwner(disk)
    checker.replied(sync("a", 1), synced(0, 1))
    with pytest.raises(Violation, match="orders-1 has two owners"):
        checker.replied(sync("b", 1), synced(1, 2))


def test_two_assignments_for_one_owner(disk: Disk) -> None:
    checker = OneOwner(disk)
    checker.replied(sync("a", 1), synced(0))
    with pytest.raises(Violation, match="two assignments"):
        checker.replied(sync("a", 1), synced(0, 1))


def test_a_static_member_passes_its_partitions_on(disk: Disk) -> None:
    checker = OneOwner(disk)
    checker.replied(sync("a-1", 1, "a"), synced(0))
    checker.replied(sync("a-2", 1, "a"), synced(0))


def test_a_group_that_was_removed_counts_anew(disk: Disk) -> None:
    checker = OneOwner(disk)
    checker.replied(sync("a", 1), synced(0))
    disk.written(written(GroupMetadataKey(group="g"), None))
    checker.replied(sync("b", 1), synced(0))


@pytest.mark.parametrize("members", [("a",), ()])
def test_a_group_that_was_a_consumer_group_for_a_while_goes_on_counting(
    disk: Disk, members: tuple[str, ...]
) -> None:
    checker = OneOwner(disk)
    disk.written(classic(3, *members))
    checker.replied(sync("a", 3), synced(0))
    for each in (classic(None), consumer(3), consumer(None), classic(3)):
        disk.written(each)
    with pytest.raises(Violation, match="two owners"):
        checker.replied(sync("b", 3), synced(0))


@pytest.mark.parametrize("kept", [True, False])
def test_a_group_that_was_a_consumer_group_for_a_while_may_encode_its_assignments_anew(
    disk: Disk, kept: bool
) -> None:
    checker = OneOwner(disk)
    disk.written(classic(3, "a"))
    checker.replied(sync("a", 3), SyncGroupResponse(assignment=assignment(0, 1) + b"its leader's"))
    for each in (classic(None), consumer(3), consumer(None), classic(3)):
        disk.written(each)
    with nullcontext() if kept else pytest.raises(Violation, match="two assignments"):
        checker.replied(sync("a", 3), synced(0, 1) if kept else synced(0))


def test_a_consumer_group_that_was_removed_counts_anew(disk: Disk) -> None:
    checker = OneOwner(disk)
    disk.written(classic(1, "a"))
    checker.replied(sync("a", 1), synced(0))
    for each in (classic(None), consumer(1), consumer(4), consumer(None), classic(0), classic(1, "b")):
        disk.written(each)
    checker.replied(sync("b", 1), synced(0))


# --- commits kept ---------------------------------------------------------------------------------


def test_commits_that_grow_and_are_told(disk: Disk) -> None:
    checker = CommitsKept(disk)
    for offset in (3, 5, 5):
        key = disk.written(committed(offset))
        assert key == ("g", ORDERS_0)
        checker.written(key)
        checker.replied(commit(offset), commit_answer())
    asked = fetch()
    checker.asked(asked)
    checker.replied(asked, fetch_answer(5))
    checker.finished()


def test_a_commit_that_goes_back(disk: Disk) -> None:
    checker = CommitsKept(disk)
    disk.written(committed(5))
    disk.written(committed(4))
    with pytest.raises(Violation, match="went back"):
        checker.written(("g", ORDERS_0))


def test_a_fetch_that_forgets_what_was_acknowledged_before_it_was_sent(disk: Disk) -> None:
    checker = CommitsKept(disk)
    early = fetch()
    checker.asked(early)
    checker.replied(commit(7), commit_answer())
    checker.replied(early, fetch_answer(-1))
    late = fetch()
    checker.asked(late)
    with pytest.raises(Violation, match="7 was acknowledged before"):
        checker.replied(late, fetch_answer(6))


def test_an_acknowledged_commit_that_is_not_there_in_the_end(disk: Disk) -> None:
    checker = CommitsKept(disk)
    disk.written(committed(7))
    checker.replied(commit(8), commit_answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    checker.replied(commit(7), commit_answer())
    checker.finished()
    checker.replied(commit(9), commit_answer())
    with pytest.raises(Violation, match="9 was acknowledged"):
        checker.finished()


# --- durable first --------------------------------------------------------------------------------


def test_a_commit_is_acknowledged_when_it_is_on_the_disk(disk: Disk) -> None:
    checker = DurableFirst(disk)
    checker.replied(commit(5), commit_answer(ErrorCode.REBALANCE_IN_PROGRESS))
    with pytest.raises(Violation, match="acknowledged before it was durable"):
        checker.replied(commit(5), commit_answer())
    disk.written(committed(5, "another's"))
    with pytest.raises(Violation, match="acknowledged before it was durable"):
        checker.replied(commit(5), commit_answer())
    disk.written(committed(5))
    checker.replied(commit(5), commit_answer())


def test_an_offset_is_told_when_it_is_on_the_disk(disk: Disk) -> None:
    checker = DurableFirst(disk)
    checker.replied(fetch(), fetch_answer(-1, ""))
    with pytest.raises(Violation, match="told before it was durable"):
        checker.replied(fetch(), fetch_answer(5))
    disk.written(committed(5))
    checker.replied(fetch(), fetch_answer(5))


def test_an_assignment_is_handed_out_when_it_is_on_the_disk(disk: Disk) -> None:
    checker = DurableFirst(disk)
    member = GroupMetadataValue.MemberMetadata(
        member_id="a",
        client_id="",
        client_host="",
        session_timeout=1,
        subscription=b"",
        assignment=assignment(0),
    )
    stored = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="p", leader="a", members=[member]
    )
    with pytest.raises(Violation, match="before it was durable"):
        checker.replied(sync("a", 1), synced(0))
    disk.written(written(GroupMetadataKey(group="g"), stored, 3))
    checker.replied(sync("a", 1), synced(0))
    with pytest.raises(Violation, match="before it was durable"):
        checker.replied(sync("a", 2), synced(0))


# --- answered -------------------------------------------------------------------------------------


class Watch:
    """An `Answered` on a node whose time is moved by the test."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.link: Any = FakeLink()
        self.due: list[Callable[[], None]] = []
        nodes = {FakeLink.address: cast(Any, self.node)}
        self.checker = Answered(lambda _, check: self.due.append(check), nodes)
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="a")
        self.exchange = exchange(ApiKey.HEARTBEAT, request, self.link)
        self.checker.asked(self.exchange)

    def look(self) -> None:
        due, self.due = self.due, []
        for check in due:
            check()


def heartbeat(generation_id: int) -> Exchange:
    request = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id="a")
    return exchange(ApiKey.HEARTBEAT, request)


def test_a_member_of_an_old_generation_is_told(disk: Disk) -> None:
    checker = OnlyGrows(disk)
    checker.replied(sync("a", 3), synced(0))
    checker.replied(heartbeat(2), HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    checker.replied(heartbeat(3), HeartbeatResponse())
    with pytest.raises(Violation, match="a member of 2 is not told"):
        checker.replied(heartbeat(2), HeartbeatResponse())


def test_a_member_of_a_generation_before_the_group_was_a_consumer_group_is_told(disk: Disk) -> None:
    checker = OnlyGrows(disk)
    disk.written(classic(3, "a"))
    checker.replied(sync("a", 3), synced(0))
    for each in (classic(None), consumer(4)):
        disk.written(each)
    checker.replied(heartbeat(3), HeartbeatResponse())  # an epoch of its own
    for each in (consumer(None), classic(4, "a")):
        disk.written(each)
    checker.replied(heartbeat(4), HeartbeatResponse())
    with pytest.raises(Violation, match="generation 4 was synced, and a member of 3 is not told"):
        checker.replied(heartbeat(3), HeartbeatResponse())


def test_a_commit_of_an_old_generation_counts_from_when_it_was_durable(disk: Disk) -> None:
    checker = OnlyGrows(disk)
    in_time, too_late = commit(5), commit(6)
    for each in (in_time, too_late):
        each.request.generation_id_or_member_epoch = 2

    def becomes_durable(record: Written) -> None:
        partition = disk.written(record)
        assert partition is not None
        checker.committed(partition)

    becomes_durable(committed(5))
    checker.replied(sync("a", 3), synced(0))
    checker.replied(in_time, commit_answer())  # a broker was paused, and acknowledges late
    becomes_durable(committed(6))
    with pytest.raises(Violation, match="a member of 2 is not told"):
        checker.replied(too_late, commit_answer())


def test_a_broker_that_loads_the_group_knows_no_generation(disk: Disk) -> None:
    checker = OnlyGrows(disk)
    checker.replied(sync("a", 3), synced(0))
    while_loading = heartbeat(2)
    while_loading.while_loading = True
    checker.replied(while_loading, HeartbeatResponse())
    with pytest.raises(Violation, match="a member of 2 is not told"):
        checker.replied(sync("a", 2), synced(0))


def test_a_request_that_is_neither_answered_nor_closed() -> None:
    watch = Watch()
    watch.node.now_s = 7.9  # the node was paused for a while: the deadline counts its running time
    watch.look()
    watch.node.now_s = 8.1
    with pytest.raises(Violation, match="neither answered nor closed"):
        watch.look()


@pytest.mark.parametrize("ending", ["answered", "closed"])
def test_a_request_that_is_answered_or_whose_connection_is_closed(ending: str) -> None:
    watch = Watch()
    if ending == "answered":
        watch.checker.replied(watch.exchange, HeartbeatResponse())
    else:
        watch.checker.closed(watch.link)
    watch.node.now_s = 100
    watch.look()


# --- codes ----------------------------------------------------------------------------------------


def test_a_code_that_no_member_expects_however_deep() -> None:
    checker = ExpectedCodes()
    checker.replied(commit(1), commit_answer(ErrorCode.REBALANCE_IN_PROGRESS))
    with pytest.raises(Violation, match="UNKNOWN_SERVER_ERROR"):
        checker.replied(commit(1), commit_answer(ErrorCode.UNKNOWN_SERVER_ERROR))
