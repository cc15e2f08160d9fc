"""A simulated member of the consumer protocol (KIP-848), which speaks ConsumerGroupHeartbeat.

It tells its coordinator everything when it joins and after a broken connection, and later only what has
changed. It gives up revoked partitions, at once or slowly, before it reports so; and after it has given them
up it sometimes commits for them once more, which the broker may not accept. It is as careful with positions
as `Member`.
"""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from typing import Final, NamedTuple

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.simulator.member import Client, Member, Moved, Partition, Rejoin, Versions
from tests.simulator.network import Address
from tests.support.embedded import by_topic

Place = tuple[uuid.UUID, int]
"""A partition as named in heartbeats."""

_GENERATIONS: Final = (Versions(9, 5, 4, 5, 9, 9, 4, 12), Versions(9, 5, 4, 5, 10, 10, 6, 13))
JOINING: Final = 0
LEFT: Final = -1
LEFT_FOR_A_WHILE: Final = -2
_PATIENCE_S: Final = 15.0
"""How long it tries to get a group instance id that another member holds: longer than a session."""


class _Told(NamedTuple):
    """What the coordinator was last told."""

    topics: frozenset[str]
    regex: str | None
    has: frozenset[Place]


class EpochMember(Member):
    """One consumer. To the run it behaves like `Member`; `generation_id` is its member epoch."""

    speaks = "consumer"

    def __init__(
        self,
        client: Client,
        group_id: str,
        rng: random.Random,
        brokers: list[Address],
        *,
        instance_id: str | None,
        topics: frozenset[str],
        regex: str | None,
        rebalance_timeout_ms: int,
    ) -> None:
        super().__init__(
            client,
            group_id,
            rng,
            brokers,
            instance_id=instance_id,
            topics=topics,
            session_timeout_ms=0,  # up to the broker
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        self.regex = regex
        self.generation_id = JOINING
        self._versions = rng.choice(_GENERATIONS)
        # The first version has no regular expressions, and its members get their ids from the broker.
        self._version = 0 if regex is None and rng.random() < 0.2 else 1
        self._assignor = rng.choice([None, None, "uniform", "range"])
        self._goal: frozenset[Place] = frozenset()
        self._has: frozenset[Place] = frozenset()
        self._told: _Told | None = None
        self._names: dict[uuid.UUID, str] = {}
        self._revoked_at_s: float | None = None
        """When it will have given up the partitions it has to revoke."""
        self._given_up: dict[Partition, int] = {}
        self._given_up_epoch = 0
        self._refused_since_s: float | None = None
        if self._version:
            self.member_id = self._new_id()

    def __repr__(self) -> str:
        owned = "on its way" if self.owned is None else sorted(self.owned)
        return f"<EpochMember {self.name} of {self.group_id} epoch={self.generation_id} {owned}>"

    @property
    def watches(self) -> bool:
        return True

    def wants(self, topic: str) -> bool:
        return topic in self.topics or (
            self.regex is not None and re.fullmatch(self.regex, topic) is not None
        )

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    @property
    def _is_in(self) -> bool:
        return self.generation_id > JOINING

    # --- what happens to it -------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], regex: str | None = None) -> None:
        """Change the subscription; its next heartbeat reports it."""
        self.topics, self.regex = topics, regex if self._version else None

    def leave(self) -> None:
        """Leave without waiting for the answer. A static member usually leaves temporarily, now and then for
        good, and sometimes without sending anything."""
        if self.link is not None:
            luck = self._rng.random()
            epoch = LEFT if self.instance_id is None or luck < 0.2 else LEFT_FOR_A_WHILE
            if self.link.open and self._is_in and not (self.instance_id is not None and luck > 0.9):
                request = ConsumerGroupHeartbeatRequest(
                    group_id=self.group_id,
                    member_id=self.member_id,
                    member_epoch=epoch,
                    instance_id=self.instance_id,
                )
                self._client.tell(self.link, ApiKey.CONSUMER_GROUP_HEARTBEAT, self._version, request)
            self.link.close()
        self._end()

    # --- its life -----------------------------------------------------------------------------------------

    async def _join(self) -> None:
        self._has = self._goal = frozenset()
        self._told = self._revoked_at_s = None
        self._positions = {}
        await self._beat()
        self._refused_since_s = None
        if self.generation_id <= self._given_up_epoch:
            self._given_up = {}

    async def _consume(self) -> None:
        """One round: approach the target assignment, commit, and heartbeat."""
        await asyncio.sleep(self._rng.uniform(0.3, 1.2))
        await self._reconcile()
        if self._rng.random() < 0.5:
            await self._commit()
        former_epoch = self.generation_id
        await self._beat()
        if self.generation_id != former_epoch and self._rng.random() < 0.3:
            await self._commit_late(former_epoch)
        settled = self._told is not None and self._told.has == self._has == self._goal
        self.owned = frozenset(map(self._named, self._has)) if settled else None

    async def _beat(self) -> None:
        told = _Told(self.topics, self.regex, self._has)
        known = self._told if self._rng.random() < 0.9 else None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.generation_id,
            instance_id=self.instance_id,
        )
        if known is None:
            request.rebalance_timeout_ms = self._rebalance_timeout_ms
            request.server_assignor = self._assignor
        if known is None or known.topics != told.topics:
            request.subscribed_topic_names = sorted(told.topics)
        if self._version and (known is None or known.regex != told.regex):
            request.subscribed_topic_regex = told.regex or ""
        if known is None or known.has != told.has:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in _by_topic_id(told.has).items()
            ]
        self._told = None  # until it is answered
        response: ConsumerGroupHeartbeatResponse = await self._ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, self._version, request
        )
        self._react(response.error_code)
        self._told = told
        assert response.member_id is not None
        self.member_id, self.generation_id = response.member_id, response.member_epoch
        if response.assignment is not None:
            self._goal = frozenset(
                (topic.topic_id, number)
                for topic in response.assignment.topic_partitions
                for number in topic.partitions
            )

    def _react(self, code: int) -> None:
        match code:
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.GROUP_ID_NOT_FOUND:
                self._fall_out()
                raise Rejoin
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                now_s = asyncio.get_running_loop().time()
                if self._refused_since_s is None:
                    self._refused_since_s = now_s
                if now_s - self._refused_since_s > _PATIENCE_S:
                    self._end()
                    raise Rejoin
                raise Moved  # looks for the coordinator again, after a pause
        super()._react(code)

    def _fall_out(self) -> None:
        """It is no longer a member and owns nothing."""
        if self._positions:
            self._given_up, self._given_up_epoch = self._positions, self.generation_id
        self.generation_id, self.owned, self._told = JOINING, None, None
        self._has = self._goal = frozenset()
        self._positions = {}
        if not self._version:
            self.member_id = ""

    # --- what it owns -------------------------------------------------------------------------------------

    def _named(self, place: Place) -> Partition:
        topic_id, number = place
        return self._names[topic_id], number

    async def _reconcile(self) -> None:
        """Revoke first, which may take a while, then take new partitions."""
        now_s = asyncio.get_running_loop().time()
        leaving = self._has - self._goal
        if leaving:
            if self._revoked_at_s is None:
                if self._rng.random() < 0.7:
                    await self._commit()
                slow_s = self._rng.choice([0, 0, 0, 0, 0.5, 4, 15]) * self._rng.uniform(0.5, 1.5)
                self._revoked_at_s = now_s + slow_s
            if now_s < self._revoked_at_s:
                return
            self._given_up = {
                part: self._positions[part] for part in map(self._named, leaving) if part in self._positions
            }
            self._given_up_epoch = self.generation_id
            self._has -= leaving
        self._revoked_at_s = None
        coming = self._goal - self._has
        if coming and not self._may_be_under_way() and await self._learn_names():
            positions = await self._committed([self._named(each) for each in sorted(coming)])
            if positions is not None:
                self._has |= coming
                self._positions |= positions
        has = {self._named(each) for each in self._has}
        self._positions = {part: at for part, at in self._positions.items() if part in has}

    async def _learn_names(self) -> bool:
        """Whether it knows the names of the topics in its target assignment."""
        if any(topic_id not in self._names for topic_id, _ in self._goal):
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            response = await self._ask(ApiKey.METADATA, self._versions.metadata, request)
            self._names |= {topic.topic_id: topic.name for topic in response.topics}
        return all(topic_id in self._names for topic_id, _ in self._goal)

    async def _committed(self, partitions: list[Partition]) -> dict[Partition, int] | None:  # type: ignore[override]
        """None if it has to heartbeat first to learn more."""
        ids = {self._names[topic_id]: topic_id for topic_id, _ in self._goal}
        group = OffsetFetchRequest.Group(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.generation_id,
            topics=[
                OffsetFetchRequest.Topics(name=name, topic_id=ids[name], partition_indexes=indexes)
                for name, indexes in by_topic(partitions).items()
            ],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        response = await self._ask(ApiKey.OFFSET_FETCH, self._versions.fetch, request)
        fetched = response.groups[0]
        if fetched.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH):
            return None
        super()._react(fetched.error_code)
        if any(each.error_code for topic in fetched.topics for each in topic.partitions):
            return None  # the broker does not know the topic yet, or not yet of its end
        return {
            (topic.name or self._names[topic.topic_id], each.partition_index): max(each.committed_offset, 0)
            for topic in fetched.topics
            for each in topic.partitions
        }

    # --- commits ------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        if not self._positions or self._may_be_under_way():
            return
        for partition in self._positions:
            self._positions[partition] += self._rng.randint(1, 5)
        codes = await self._send_commit(self._positions, self.generation_id)
        if set(codes) == {ErrorCode.NONE} and self.owned == self._positions.keys():
            self.commits += 1

    async def _commit_late(self, former_epoch: int) -> None:
        """Commit under an epoch that is over: for what it still owns, which may be accepted, or for what it
        gave up, which may not."""
        gone = {part: at for part, at in self._given_up.items() if part not in self._positions}
        if gone and self._given_up_epoch < self.generation_id and self._rng.random() < 0.7:
            await self._send_commit(gone, self._given_up_epoch)
        elif self._positions and JOINING < former_epoch < self.generation_id:
            await self._send_commit(self._positions, former_epoch)

    async def _send_commit(self, positions: dict[Partition, int], epoch: int) -> list[int]:
        """The error code of each partition. Errors about its membership are left to heartbeats."""
        request = self._commit_request(epoch, positions)
        response = await self._ask(ApiKey.OFFSET_COMMIT, self._versions.commit, request)
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        for code in codes:
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                raise Moved
        return codes

    def _commit_request(self, epoch: int, positions: dict[Partition, int]) -> OffsetCommitRequest:  # type: ignore[override]
        ids = {name: topic_id for topic_id, name in self._names.items()}
        metadata = f"{self.name}#{next(self._commit_numbers)}"
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[
                OffsetCommitRequest.Topic(
                    name=name,
                    topic_id=ids[name],
                    partitions=[
                        OffsetCommitRequest.Partition(
                            partition_index=index,
                            committed_offset=positions[name, index],
                            committed_metadata=metadata,
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic(sorted(positions)).items()
            ],
        )


def _by_topic_id(places: frozenset[Place]) -> dict[uuid.UUID, list[int]]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(places):
        topics.setdefault(topic_id, []).append(number)
    return topics
