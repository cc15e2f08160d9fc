"""A simulated consumer: finds its coordinator, joins, syncs, heartbeats, fetches and commits offsets, over
the wire.

It treats each error code as stock clients do, and never lets an offset go back through the client's own
fault: a position starts at the committed offset and only grows, and after a broken connection the member
waits until nothing it sent before can still be in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from muster.protocol.api import ApiKey, response_class
from muster.protocol.codec import decode
from muster.protocol.embedded import (
    decode_assignment,
    decode_subscription,
)
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.simulator.network import Address, Disconnected, Link, Network
from tests.support.embedded import assignment, by_topic, subscription

TOPICS = {"orders": 4, "audit": 2}
"""Initial partition count of each topic."""
PASSING_TOPICS = {"audit-a": 2, "audit-b": 1, "trail-a": 1}
"""Topics that are created and deleted during a run: how many partitions each gets."""
UNDER_WAY_MAX_S = 0.6
"""Longer than a message can be in flight in the simulated network."""

NO_TOPICS = subscription([], 0)
REQUEST_TIMEOUT_S = 10.0

Partition = tuple[str, int]


class Versions(NamedTuple):
    """The API versions of one generation of clients."""

    join: int
    sync: int
    heartbeat: int
    leave: int
    commit: int
    fetch: int
    find: int
    metadata: int


GENERATIONS = (
    Versions(2, 1, 1, 1, 3, 2, 1, 4),
    Versions(5, 3, 3, 3, 7, 5, 2, 7),
    Versions(9, 5, 4, 5, 9, 8, 4, 12),
)


class Asked(NamedTuple):
    """One request as it is sent."""

    api_key: ApiKey
    version: int
    correlation_id: int
    request: Any
    client: str = ""
    """The client id, unique to a process here."""


class Client:
    """Exchanges requests and replies over links, calling `asking` with each request."""

    def __init__(
        self,
        name: str,
        network: Network,
        asking: Callable[[Link, Asked], None],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._network = network
        self._asking = asking
        self._correlation_ids = count(1)
        self._timeout_s = timeout_s

    async def connect(self, address: Address) -> Link:
        return await self._network.connect(address, "10.0.0.1")

    async def ask(
        self, link: Link, api_key: ApiKey, version: int, request: Message, *, more_s: float = 0.0
    ) -> Any:
        """The response. Raises Disconnected, also when none arrives in time; `more_s` is how long the request
        takes by nature.
        """
        if not link.open:
            raise Disconnected
        asked = Asked(api_key, version, next(self._correlation_ids), request, self.name)
        frame = self._frame(link, asked)
        reply = await link.exchange(frame, self._timeout_s + more_s)
        correlation_id, offset = decode_response_header(api_key, version, reply)
        assert correlation_id == asked.correlation_id, "a reply to another request"
        return decode(response_class(api_key), version, reply, offset)

    def tell(self, link: Link, api_key: ApiKey, version: int, request: Message) -> None:
        """Send without waiting for the reply."""
        link.send(self._frame(link, Asked(api_key, version, next(self._correlation_ids), request, self.name)))

    def _frame(self, link: Link, asked: Asked) -> bytes:
        self._asking(link, asked)
        return encode_request(asked.api_key, asked.version, asked.correlation_id, self.name, asked.request)

    async def find_coordinator(
        self, group_id: str, addresses: list[Address], version: int = 4, *, key_type: int = 0
    ) -> Address | None:
        """The coordinator of a group (or, with key type 1, of a transactional id) as the first of `addresses`
        to answer reports it; None if it reports none.
        """
        for address in addresses:
            try:
                link = await self.connect(address)
                if version >= 4:
                    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[group_id])
                    response = await self.ask(link, ApiKey.FIND_COORDINATOR, version, request)
                    found = response.coordinators[0]
                else:
                    found = await self.ask(
                        link, ApiKey.FIND_COORDINATOR, version, FindCoordinatorRequest(key=group_id)
                    )
                link.close()
            except Disconnected:
                continue
            return (found.host, found.port) if found.error_code == 0 else None
        return None


class Moved(Exception):
    """The coordinator is elsewhere or unavailable: find it again."""


class Rejoin(Exception):
    """The group rebalances, or this member is no longer part of it."""


_ELSEWHERE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Member:
    """One consumer that speaks the classic protocol. Its task ends when it left, was fenced, or crashed."""

    speaks = "classic"
    regex: str | None = None
    """The regular expression it subscribes with, besides topic names."""

    def __init__(
        self,
        client: Client,
        group_id: str,
        rng: random.Random,
        brokers: list[Address],
        *,
        instance_id: str | None,
        topics: frozenset[str],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self.name = client.name
        self.group_id = group_id
        self.instance_id = instance_id
        self.topics = topics
        self.generation_id = -1
        self.member_id = ""
        self.owned: frozenset[Partition] | None = None
        """What it owns in its generation; None while it has no assignment."""
        self.commits = 0
        """Acknowledged commits in this generation."""
        self.over = False
        self._client = client
        self._rng = rng
        self._brokers = brokers
        # Static members need the versions that carry an instance id.
        self._versions = rng.choice(GENERATIONS if instance_id is None else GENERATIONS[1:])
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._positions: dict[Partition, int] = {}
        self._joined_topics = topics  # the subscription it sent to the group
        self.link: Link | None = None
        """The link to its coordinator, if it has one."""
        self._led: dict[str, int] | None = None
        """The partition counts it last assigned from, if it leads."""
        self._last_link_ended_s = -UNDER_WAY_MAX_S
        self._stalled_until_s = 0.0
        self._commit_numbers = count(1)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        owned = "joining" if self.owned is None else sorted(self.owned)
        return f"<Member {self.name} of {self.group_id} generation={self.generation_id} {owned}>"

    def wants(self, topic: str) -> bool:
        return topic in self.topics

    @property
    def watches(self) -> bool:
        """Whether it leads and watches the topics of its group. A returning static leader does not if it
        joins in a version that cannot tell it to skip the assignment; then nobody does (the reason for
        KIP-814)."""
        return self._led is not None

    # --- what happens to it -----------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def stall(self, seconds: float) -> None:
        """Do nothing for a while, like a process in a long garbage collection."""
        self._stalled_until_s = asyncio.get_running_loop().time() + seconds

    def subscribe(self, topics: frozenset[str], regex: str | None = None) -> None:
        """Change the subscription; it rejoins at its next heartbeat."""
        self.topics = topics

    def cut(self, *, silently: bool = False) -> None:
        """Break its connection, so that it opens another; `silently`: while the broker keeps the old one."""
        if self.link is not None:
            if silently:
                self.link.vanish()
            else:
                self.link.close()

    def crash(self, *, silently: bool) -> None:
        """Die; `silently`: the broker does not even notice that the connection is gone."""
        if self.link is not None:
            if silently:
                self.link.vanish()
            else:
                self.link.close()
        self._end()

    def leave(self) -> None:
        """Send LeaveGroup and go without waiting for the answer. Static members leave silently."""
        if self.link is not None:
            if self.link.open and self.member_id and self.instance_id is None:
                self._client.tell(self.link, ApiKey.LEAVE_GROUP, self._versions.leave, self._leave_request())
            self.link.close()
        self._end()

    def _leave_request(self) -> LeaveGroupRequest:
        if self._versions.leave < 3:
            return LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        return LeaveGroupRequest(group_id=self.group_id, members=[identity])

    def _end(self) -> None:
        self.over = True
        self.owned = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    # --- its life ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.over:
            try:
                await self._find_and_connect()
                while not self.over:
                    if self._is_in:
                        await self._consume()
                    else:
                        await self._join()
            except (Disconnected, Moved):
                if self.link is not None:
                    self.link.close()
                self.link = None
                self._last_link_ended_s = asyncio.get_running_loop().time()
                await asyncio.sleep(self._rng.uniform(0.05, 0.3))
            except Rejoin:
                self.owned = None

    @property
    def _is_in(self) -> bool:
        return self.owned is not None

    async def _find_and_connect(self) -> None:
        brokers = self._rng.sample(self._brokers, len(self._brokers))
        address = await self._client.find_coordinator(self.group_id, brokers, self._versions.find)
        if address is None:
            raise Moved
        self.link = await self._client.connect(address)

    async def _ask(self, api_key: ApiKey, version: int, request: Message) -> Any:
        await self._wait_out_stall()
        assert self.link is not None
        # As long as the Java client waits for a JoinGroup; others wait as long for a SyncGroup too.
        parked = api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
        more_s = self._rebalance_timeout_ms / 1000 if parked else 0
        response = await self._client.ask(self.link, api_key, version, request, more_s=more_s)
        await self._wait_out_stall()
        return response

    async def _wait_out_stall(self) -> None:
        left_s = self._stalled_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def _react(self, code: int) -> None:
        """Raise what an error code calls for; unexpected codes are left to the checkers."""
        match code:
            case ErrorCode.NONE:
                return
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id, self.generation_id = "", -1
                raise Rejoin
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                raise Rejoin
            case ErrorCode.FENCED_INSTANCE_ID:  # another process has this instance id now
                self._end()
                raise Rejoin
            case _ if code in _ELSEWHERE:
                raise Moved
        raise Moved

    async def _join(self) -> None:
        """JoinGroup and SyncGroup, then fetch the committed offsets of the assignment."""
        self._joined_topics = self.topics
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequest.Protocol(name="range", metadata=subscription(sorted(self.topics), 0))
            ],
        )
        joined = await self._ask(ApiKey.JOIN_GROUP, self._versions.join, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return
        self._react(joined.error_code)
        former_generation_id = self.generation_id
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        partitions_now = await self._count_partitions() if leads else {}
        if former_generation_id not in (-1, self.generation_id) and self._rng.random() < 0.15:
            await self._commit_out_of_turn(former_generation_id)
        if joined.leader == joined.member_id and self._rng.random() < 0.1:
            await self._commit_before_its_assignment()
        sync = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer" if self._versions.sync >= 5 else None,
            protocol_name="range" if self._versions.sync >= 5 else None,
            assignments=_assign(joined.members, partitions_now) if leads else [],
        )
        # A leader that has to keep the assignment does not know how many partitions it covers.
        self._led = partitions_now if leads else {} if joined.skip_assignment else None
        synced = await self._ask(ApiKey.SYNC_GROUP, self._versions.sync, sync)
        self._react(synced.error_code)
        partitions = [
            (topic.topic, partition)
            for topic in decode_assignment(synced.assignment).assigned_partitions
            for partition in topic.partitions
        ]
        self._positions = await self._committed(partitions)
        self.commits = 0
        self.owned = frozenset(partitions)

    async def _committed(self, partitions: list[Partition]) -> dict[Partition, int]:
        """OffsetFetch; a consumer begins at 0 where nothing is committed."""
        if not partitions:
            return {}
        asked = by_topic(sorted(partitions))
        version = self._versions.fetch
        if version >= 8:
            group = OffsetFetchRequest.Group(
                group_id=self.group_id,
                topics=[
                    OffsetFetchRequest.Topics(name=name, partition_indexes=indexes)
                    for name, indexes in asked.items()
                ],
            )
            request = OffsetFetchRequest(groups=[group], require_stable=True)
        else:
            topics = [
                OffsetFetchRequest.Topic(name=name, partition_indexes=indexes)
                for name, indexes in asked.items()
            ]
            request = OffsetFetchRequest(group_id=self.group_id, topics=topics)
        response = await self._ask(ApiKey.OFFSET_FETCH, version, request)
        fetched = response.groups[0] if version >= 8 else response
        self._react(fetched.error_code)
        return {
            (topic.name, each.partition_index): max(each.committed_offset, 0)
            for topic in fetched.topics
            for each in topic.partitions
        }

    async def _consume(self) -> None:
        """One round of a consumer that owns its partitions."""
        await asyncio.sleep(self._rng.uniform(0.3, 1.5))
        if self._rng.random() < 0.5:
            await self._commit()
        heartbeat = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        beat = await self._ask(ApiKey.HEARTBEAT, self._versions.heartbeat, heartbeat)
        if beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS and self._rng.random() < 0.7:
            await self._commit()  # as clients do before they give their partitions away
        self._react(beat.error_code)
        if self.topics != self._joined_topics:
            raise Rejoin
        if self._led is not None and self._rng.random() < 0.3 and await self._count_partitions() != self._led:
            raise Rejoin  # a topic has grown

    async def _count_partitions(self) -> dict[str, int]:
        """The coordinator's partition count for each topic."""
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=topic) for topic in TOPICS], allow_auto_topic_creation=False
        )
        response = await self._ask(ApiKey.METADATA, self._versions.metadata, request)
        return {topic.name: len(topic.partitions) for topic in response.topics}

    async def _commit(self) -> None:
        if not self._positions or self._may_be_under_way():
            return
        for partition in self._positions:
            self._positions[partition] += self._rng.randint(1, 5)
        request = self._commit_request(self.generation_id)
        response = await self._ask(ApiKey.OFFSET_COMMIT, self._versions.commit, request)
        answers = [each.error_code for topic in response.topics for each in topic.partitions]
        for code in answers:
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # it does not know yet that the topic grew
                self._react(code)
        if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION not in answers:
            self.commits += 1

    def _may_be_under_way(self) -> bool:
        """Whether something it sent over its last connection may still arrive."""
        return asyncio.get_running_loop().time() - self._last_link_ended_s < UNDER_WAY_MAX_S

    async def _commit_out_of_turn(self, generation_id: int) -> None:
        """Commit its positions under a generation in which it currently has no assignment. For its former
        one, as if in flight when the rebalance began, this may not be accepted, since others may have gone on
        from there.
        """
        if self._positions:
            await self._ask(ApiKey.OFFSET_COMMIT, self._versions.commit, self._commit_request(generation_id))

    async def _commit_before_its_assignment(self) -> None:
        """Commit under a generation it leads but has not assigned. This is refused, except when the next
        rebalance has begun: Kafka then accepts any commit of the generation. So it commits what is already
        committed, which does no harm."""
        if self._positions:
            self._positions = await self._committed(list(self._positions))
            await self._commit_out_of_turn(self.generation_id)

    def _commit_request(self, generation_id: int) -> OffsetCommitRequest:
        metadata = f"{self.name}#{next(self._commit_numbers)}"
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[
                OffsetCommitRequest.Topic(
                    name=name,
                    partitions=[
                        OffsetCommitRequest.Partition(
                            partition_index=index,
                            committed_offset=self._positions[name, index],
                            committed_metadata=metadata,
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic(sorted(self._positions)).items()
            ],
        )


def _assign(members: list[Any], partitions_now: dict[str, int]) -> list[SyncGroupRequest.Assignment]:
    """Round robin per topic over its subscribed members."""
    owned: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    for topic, partitions in partitions_now.items():
        subscribed = [
            member.member_id for member in members if topic in decode_subscription(member.metadata).topics
        ]
        for partition in range(partitions if subscribed else 0):
            owned[subscribed[partition % len(subscribed)]].append((topic, partition))
    return [
        SyncGroupRequest.Assignment(
            member_id=member_id,
            assignment=assignment(by_topic(sorted(partitions))),
        )
        for member_id, partitions in owned.items()
    ]
