"""The clients of a broker that will be killed: what they do, and what of it goes into the history.

One `Clients` lives as long as a data directory and meets its broker again after each kill. Committers and
producers pipeline, so that something is always in flight; each has one connection, whose requests the broker
processes in order.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import IncompleteReadError
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.transactions import InitProducerIdRequest
from muster.protocol.record_batch import Record, build
from tests.faults.batches import Violation
from tests.faults.history import Commits, GroupLife, GroupState, Produced, Sent
from tests.support.wire import Wire

REPLY_S: Final = 60.0
SESSION_TIMEOUT_MS: Final = 1_800_000  # no session expires because the machine was slow
IN_FLIGHT: Final = 8
IDEMPOTENT_IN_FLIGHT: Final = 5  # more cannot be retried
NOW_MS: Final = 1_700_000_000_000
SMALL_TOPIC, FLUSHED_TOPIC = "small", "flushed"
PARTITIONS: Final = 3
GONE: Final = (ConnectionError, IncompleteReadError)


class Pipe(Wire):
    """A connection with its own deadline."""

    async def receive_bytes(self, deadline_s: float = REPLY_S) -> bytes:
        return await super().receive_bytes(deadline_s)

    @property
    def local_port(self) -> int:
        return int(self._writer.get_extra_info("sockname")[1])


class Committer:
    """Commits ever higher numbers, from outside any group or as its member."""

    def __init__(self, commits: Commits, member: tuple[str, int] = ("", -1)) -> None:
        self.commits = commits
        self.member = member

    async def run(self, wire: Pipe, acknowledge: Callable[[], None]) -> None:
        on_their_way: deque[int] = deque()
        while True:
            while len(on_their_way) < IN_FLIGHT:
                on_their_way.append(await self.send(wire))
            self.acknowledged(await wire.receive(), on_their_way.popleft())
            acknowledge()

    async def commit(self, wire: Pipe) -> None:
        """Send one commit and wait until it is acknowledged."""
        number = await self.send(wire)
        self.acknowledged(await wire.receive(), number)

    async def attempt(self, wire: Pipe) -> int:
        """Send one commit; returns its code. A refused one may have been written all the same."""
        number = await self.send(wire)
        reply = await wire.receive()
        (code,) = {each.error_code for topic in reply.topics for each in topic.partitions}
        if not code:
            self.acknowledged(reply, number)
        return int(code)

    async def send(self, wire: Pipe) -> int:
        commits = self.commits
        commits.sent += 1
        member_id, generation = self.member
        partitions = [
            OffsetCommitRequest.Partition(
                partition_index=each,
                committed_offset=commits.sent,
                committed_metadata=commits.metadata(commits.sent),
            )
            for each in commits.partitions
        ]
        request = OffsetCommitRequest(
            group_id=commits.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequest.Topic(name=commits.topic, partitions=partitions)],
        )
        number = commits.sent
        await wire.send(request, 8)
        return number

    def acknowledged(self, reply: Any, number: int) -> None:
        codes = {each.error_code for topic in reply.topics for each in topic.partitions}
        if codes != {0}:
            raise Violation(f"group {self.commits.group}: commit {number} is answered {codes}")
        self.commits.acknowledged = number


class Producing:
    """Produces numbered batches to one partition; an idempotent one is resumed after a kill by `retry`."""

    def __init__(self, produced: Produced, dice: random.Random) -> None:
        self.produced = produced
        self._dice = dice

    async def run(self, wire: Pipe, acknowledge: Callable[[], None]) -> None:
        on_their_way: deque[int] = deque()
        while True:
            most = IDEMPOTENT_IN_FLIGHT if self.produced.idempotent else IN_FLIGHT
            while len(on_their_way) < most:
                on_their_way.append(self._next())
                await self._send(wire, on_their_way[-1])
            self._acknowledged(await wire.receive(), on_their_way.popleft())
            acknowledge()

    async def produce(self, wire: Pipe) -> None:
        """Send one batch and wait until it is acknowledged."""
        number = self._next()
        await self._send(wire, number)
        self._acknowledged(await wire.receive(), number)

    async def attempt(self, wire: Pipe) -> tuple[int, str]:
        """Send the previously refused batch again, or the next one; returns the answer's code and message."""
        refused = [number for number, each in enumerate(self.produced.batches) if each.offset is None]
        number = refused[0] if refused else self._next()
        await self._send(wire, number)
        reply = await wire.receive()
        (part,) = reply.responses[0].partition_responses
        if not part.error_code:
            self._acknowledged(reply, number)
        return part.error_code, part.error_message or ""

    async def retry(self, wire: Pipe) -> None:
        """Send unacknowledged batches again, unchanged."""
        again = [number for number, each in enumerate(self.produced.batches) if each.offset is None]
        for number in again:
            await self._send(wire, number)
        for number in again:
            self._acknowledged(await wire.receive(), number)

    def _next(self) -> int:
        batches = self.produced.batches
        sequence = -1
        if self.produced.idempotent:
            sequence = batches[-1].sequence + batches[-1].records if batches else 0
        batches.append(Sent(self._dice.choice((1, 1, 1, 2, 5)), sequence))
        return len(batches) - 1

    async def _send(self, wire: Pipe, number: int) -> None:
        produced = self.produced
        sent = produced.batches[number]
        records = [
            Record(index, NOW_MS + number, None, produced.value(number, index))
            for index in range(sent.records)
        ]
        batch = build(
            records,
            codec=Codec.GZIP if number % 7 == 3 else Codec.NONE,
            producer_id=produced.producer_id,
            producer_epoch=0 if produced.idempotent else -1,
            base_sequence=sent.sequence,
        )
        data = ProduceRequest.TopicProduceData(
            name=produced.topic,
            partition_data=[ProduceRequest.PartitionProduceData(index=produced.partition, records=batch)],
        )
        await wire.send(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data]), 9)

    def _acknowledged(self, reply: Any, number: int) -> None:
        (part,) = reply.responses[0].partition_responses
        if part.error_code:
            why = f"{part.error_code} {part.error_message}"
            raise Violation(f"batch {number} of {self.produced.name} is answered {why}")
        self.produced.batches[number].offset = part.base_offset


class Member:
    """A group of one whose member never rests: it rejoins, and sometimes leaves."""

    def __init__(self, group: str, dice: random.Random) -> None:
        self.life = GroupLife(group, GroupState(0, ()))
        self.member_id = ""
        self.committer = Committer(Commits(group, SMALL_TOPIC, (0, 1)))
        self._dice = dice

    async def run(self, wire: Pipe, acknowledge: Callable[[], None]) -> None:
        while True:
            generation = await self.join(wire)
            await self.sync(wire, generation)
            acknowledge()
            on_their_way = [
                await self.committer.send(wire) for _ in range(self._dice.randrange(2 * IN_FLIGHT))
            ]
            for number in on_their_way:
                self.committer.acknowledged(await wire.receive(), number)
                acknowledge()
            if self._dice.random() < 0.3:
                await self.leave(wire)
                acknowledge()

    async def join(self, wire: Pipe) -> int:
        """Join; returns the generation, which only a sync makes durable."""
        reply = await wire.call(joining(self.life.group, self.member_id), 5)
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            reply = await wire.call(joining(self.life.group, reply.member_id), 5)
        _expect_none(self.life.group, "JoinGroup", reply.error_code)
        self.member_id = reply.member_id
        return int(reply.generation_id)

    async def sync(self, wire: Pipe, generation: int) -> None:
        life, member = self.life, self.member_id
        assignment = f"{life.group} {generation} of {member}".encode()
        life.under_way = GroupState(generation, ((member, assignment),))
        reply = await wire.call(syncing(life.group, member, generation, {member: assignment}), 3)
        _expect_none(life.group, "SyncGroup", reply.error_code)
        life.durable, life.under_way = life.under_way, None
        self.committer.member = member, generation

    async def leave(self, wire: Pipe) -> None:
        life = self.life
        life.under_way = GroupState(life.durable.generation + 1, ())
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        reply = await wire.call(LeaveGroupRequest(group_id=life.group, members=[identity]), 4)
        _expect_none(life.group, "LeaveGroup", reply.error_code)
        life.durable, life.under_way, self.member_id = life.under_way, None, ""

    def settle(self, now: GroupState) -> None:
        """After a kill, the group was found in this state."""
        self.life.durable, self.life.under_way = now, None
        self.member_id = now.members[0][0] if now.members else ""


class SteadyGroup:
    """Two members, one of them static, that join once and stay through every kill."""

    def __init__(self, group: str) -> None:
        self.life = GroupLife(group, GroupState(0, ()))
        self.committers = [
            Committer(Commits(group, SMALL_TOPIC, (0,))),
            Committer(Commits(group, FLUSHED_TOPIC, (1, 2))),
        ]

    async def form(self, one: Pipe, other: Pipe) -> None:
        """Use two connections, since a JoinGroup is parked until both have joined."""
        group = self.life.group
        told = await one.call(joining(group, ""), 5)
        first = await one.call(joining(group, told.member_id), 5)
        alone = {first.member_id: b"alone"}
        await one.call(syncing(group, first.member_id, first.generation_id, alone), 3)
        await other.send(joining(group, "", f"{group}-static"), 5)
        beat = HeartbeatRequest(group_id=group, generation_id=first.generation_id, member_id=first.member_id)
        async with asyncio.timeout(REPLY_S):
            while (await one.call(beat, 4)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                pass  # the other's JoinGroup is in flight
        again = await one.call(joining(group, first.member_id), 5)
        second = await other.receive()
        generation = again.generation_id
        assigned = {each.member_id: f"{group} {each.member_id}".encode() for each in (again, second)}
        # The leader hands out the assignments, and the other member's SyncGroup waits for that.
        for wire, joined in ((one, again), (other, second)):
            mine = assigned if joined.leader == joined.member_id else {}
            await wire.send(syncing(group, joined.member_id, generation, mine), 3)
        for wire in (one, other):
            _expect_none(group, "SyncGroup", (await wire.receive()).error_code)
        self.life.durable = GroupState(generation, tuple(assigned.items()))
        for committer, member in zip(self.committers, assigned, strict=True):
            committer.member = member, generation


def raise_unless_gone(ran: Iterable[object]) -> None:
    """Raise any error of clients other than lost connections, since the broker is gone."""
    for each in ran:
        if isinstance(each, BaseException) and not isinstance(each, GONE):
            raise each


async def producer_id(wire: Pipe) -> int:
    reply = await wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    _expect_none("", "InitProducerId", reply.error_code)
    return int(reply.producer_id)


def joining(group: str, member_id: str, instance: str | None = None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


def syncing(group: str, member_id: str, generation: int, assigned: Mapping[str, bytes]) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        assignments=[
            SyncGroupRequest.Assignment(member_id=member, assignment=assignment)
            for member, assignment in assigned.items()
        ],
    )


def _expect_none(group: str, request: str, code: int) -> None:
    if code:
        raise Violation(f"group {group}: {request} is answered {code}")
