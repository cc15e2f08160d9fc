"""Members of consumer groups (KIP-848) on raw connections."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from muster.protocol.api import ApiKey
from muster.protocol.codec import decode
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.bench import load

VERSION: Final = 1
_REBALANCE_TIMEOUT_MS: Final = 300_000
_SECONDS_MAX: Final = 300.0
_LEAVE_EPOCH: Final = -1

Owned = dict[UUID, list[int]]


class ConsumerMember:
    """A member of a consumer group. Revokes and takes partitions as soon as it is told."""

    __slots__ = ("assigned", "epoch", "group_id", "link", "member_id", "topics")

    def __init__(self, link: load.Link, group_id: str, topics: Sequence[str]) -> None:
        self.link = link
        self.group_id = group_id
        self.topics = list(topics)
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.assigned: Owned = {}

    @property
    def partitions(self) -> int:
        return sum(map(len, self.assigned.values()))

    def request(self, *, tells_what_it_owns: bool = False) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: everything in the one that joins, afterwards what it owns if that changed."""
        if self.epoch == 0:
            return ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=0,
                rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
                subscribed_topic_names=self.topics,
                topic_partitions=[],
            )
        owned = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in self.assigned.items()
        ]
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topic_partitions=owned if tells_what_it_owns else None,
        )

    async def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=_LEAVE_EPOCH
        )
        answer = await self.link.call(request, VERSION)
        if answer.error_code:
            raise RuntimeError(f"{self.member_id} could not leave: {ErrorCode(answer.error_code).name}")

    def answered(self, frame: bytes) -> bool:
        """Take a heartbeat's response; whether the next one has to say what it owns."""
        _, offset = decode_response_header(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, frame)
        answer = decode(ConsumerGroupHeartbeatResponse, VERSION, frame, offset)
        if answer.error_code:
            raise RuntimeError(
                f"a heartbeat was refused: {ErrorCode(answer.error_code).name} {answer.error_message or ''}"
            )
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        self.assigned = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}
        return True


async def settled(members: Sequence[ConsumerMember], partitions: int, *, later_than: int) -> float:
    """Have every member heartbeat, one request in flight each, until all are at one epoch later than
    `later_than`, each has a partition, and together they have all `partitions`. Returns when that was, by
    `time.perf_counter`.

    Raises TimeoutError after 300 s, RuntimeError if a heartbeat is refused.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    epochs = {member.member_id: member.epoch for member in members}
    at_epoch: dict[int, int] = {}
    for epoch in epochs.values():
        at_epoch[epoch] = at_epoch.get(epoch, 0) + 1
    owned = sum(member.partitions for member in members)
    idle = sum(not member.partitions for member in members)
    busy = len(members)
    quiet = asyncio.Event()

    def drive(member: ConsumerMember) -> None:
        def on_frame(frame: bytes) -> None:
            nonlocal owned, idle, busy
            before = member.epoch, member.partitions
            try:
                told = member.answered(frame)
            except RuntimeError as error:
                if not done.done():
                    done.set_exception(error)
                told = False
            if member.epoch != before[0]:
                at_epoch[before[0]] -= 1
                at_epoch[member.epoch] = at_epoch.get(member.epoch, 0) + 1
            owned += member.partitions - before[1]
            idle += (not member.partitions) - (not before[1])
            newest = max(epoch for epoch, count in at_epoch.items() if count)
            over = newest > later_than and at_epoch[newest] == len(members)
            if over and owned == partitions and not idle and not done.done():
                done.set_result(time.perf_counter())
            if done.done():
                busy -= 1
                if not busy:
                    quiet.set()
                return
            send(told)

        def send(told: bool) -> None:
            request = member.request(tells_what_it_owns=told)
            member.link.write(encode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, 0, "bench", request))

        member.link.on_frame = on_frame
        send(False)

    for member in members:
        drive(member)
    async with asyncio.timeout(_SECONDS_MAX):
        settled_s = await done
        await quiet.wait()
    return settled_s
