"""All clients of one data directory, over the lives of its broker: begin, load, and check what is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.data import FetchRequest, ListOffsetsRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.faults import batches, checker
from tests.faults.batches import Batch, Violation
from tests.faults.checker import Committed, ObservedGroup
from tests.faults.history import Commits, GroupLife, GroupState, Produced
from tests.faults.load import (
    FLUSHED_TOPIC,
    GONE,
    PARTITIONS,
    REPLY_S,
    SMALL_TOPIC,
    Committer,
    Member,
    Pipe,
    Producing,
    SteadyGroup,
    producer_id,
    raise_unless_gone,
    syncing,
)

TOPICS = {
    SMALL_TOPIC: {"internal.segment.bytes": "4000"},  # so that kills also hit segment closing and sealing
    FLUSHED_TOPIC: {"flush.messages": "1", "internal.segment.bytes": "1000"},
}
_STARTING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Clients:
    """Create it for an empty directory, `begin`, and after each kill `settle` before the next `load`.

    `others` are topics, with their configs, that others use; they are only created.
    """

    def __init__(self, dice: random.Random, others: Mapping[str, dict[str, str]] | None = None) -> None:
        self._dice = dice
        self._others = others or {}
        self._lives = count(1)
        self.simple = [
            Committer(Commits("simple-0", SMALL_TOPIC, (0, 1, 2))),
            Committer(Commits("simple-1", FLUSHED_TOPIC, (0,))),
        ]
        self.steady = [SteadyGroup("steady-0"), SteadyGroup("steady-1")]
        self.members = [Member(f"restless-{number}", dice) for number in range(2)]
        self.producing: list[Producing] = []
        self.producer_ids: list[int] = []
        self.topics_created: set[str] = set()
        self.topics_sent: set[str] = set()

    # --- before the first kill ------------------------------------------------------------------------------

    async def begin(self, port: int) -> None:
        async with await Pipe.connect(port) as wire, await Pipe.connect(port) as other:
            await coordinators_loaded(wire, self._groups())
            for name, configs in (*TOPICS.items(), *self._others.items()):
                await self._create_topic(wire, name, configs)
            for group in self.steady:
                await group.form(wire, other)
            for each in self.members:
                await each.sync(wire, await each.join(wire))
            for number, (topic, partition) in enumerate(
                [(SMALL_TOPIC, 0), (SMALL_TOPIC, 1), (FLUSHED_TOPIC, 0)]
            ):
                self.producer_ids.append(await producer_id(wire))
                produced = Produced(f"idempotent-{number}", topic, partition, self.producer_ids[-1])
                self.producing.append(Producing(produced, self._dice))

    async def _create_topic(self, wire: Pipe, name: str, configs: dict[str, str]) -> None:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=PARTITIONS,
            replication_factor=1,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
                for key, value in configs.items()
            ],
        )
        self.topics_sent.add(name)
        (created,) = (await wire.call(CreateTopicsRequest(topics=[wanted]), 7)).topics
        if created.error_code:
            raise Violation(f"topic {name}: {created.error_code} {created.error_message}")
        self.topics_created.add(name)

    # --- until the kill -------------------------------------------------------------------------------------

    async def load(self, port: int, acknowledge: Callable[[], None], *, lightly: bool = False) -> None:
        """Keep the broker busy until it is gone, calling `acknowledge` for each answer. `lightly`: only a
        single committer works."""
        life = next(self._lives)
        self.producing += [
            Producing(Produced(f"plain-{number}-{life}", topic, partition), self._dice)
            for number, (topic, partition) in enumerate(
                [(SMALL_TOPIC, 0), (SMALL_TOPIC, 2), (FLUSHED_TOPIC, 0)]
            )
        ]
        working = [*self.committers(), *self.members, *self._still_producing()]
        if lightly:
            working = working[:1]
        async with AsyncExitStack() as opened:
            try:
                wires = [
                    await opened.enter_async_context(await Pipe.connect(port))
                    for _ in range(len(working) + 1)
                ]
            except GONE:
                return  # before all had connected
            ran = await asyncio.gather(
                self._admin(wires.pop(), life, acknowledge),
                *(each.run(wire, acknowledge) for each, wire in zip(working, wires, strict=True)),
                return_exceptions=True,
            )
        raise_unless_gone(ran)

    def _groups(self) -> list[str]:
        return [
            *(each.commits.group for each in self.simple),
            *(each.life.group for each in self.steady),
            *(each.life.group for each in self.members),
        ]

    def committers(self) -> list[Committer]:
        """The clients that only commit."""
        return [*self.simple, *(each for group in self.steady for each in group.committers)]

    def _still_producing(self) -> list[Producing]:
        return [each for each in self.producing if not each.produced.ended]

    async def _admin(self, wire: Pipe, life: int, acknowledge: Callable[[], None]) -> None:
        await self._create_topic(wire, f"topic-{life}", {})
        acknowledge()
        while True:
            self.producer_ids.append(await producer_id(wire))
            acknowledge()

    # --- after it -------------------------------------------------------------------------------------------

    @property
    def unacknowledged_commits(self) -> int:
        committers = [*self.committers(), *(each.committer for each in self.members)]
        return sum(each.commits.unacknowledged for each in committers)

    @property
    def unacknowledged_batches(self) -> int:
        return sum(each.produced.unacknowledged for each in self._still_producing())

    async def settle(self, port: int) -> int:
        """Check everything that is left, and let all clients go on from there; returns how many
        unacknowledged commits turned out to be written."""
        async with await Pipe.connect(port) as wire:
            told = await wire.call(MetadataRequest(topics=None), 12)
            listed = [topic.name for topic in told.topics if not topic.is_internal]
            checker.check_topics(self.topics_created, self.topics_sent, listed)
            self.topics_created.update(listed)
            self.producer_ids.append(await producer_id(wire))
            checker.check_producer_ids(self.producer_ids)
            await coordinators_loaded(wire, self._groups())
            written = 0
            for committer in [*self.committers(), *(each.committer for each in self.members)]:
                written += await _settle_commits(wire, committer.commits)
            for group in self.steady:
                await _check_group(wire, group.life)
            for each in self.members:
                each.settle(await _check_group(wire, each.life))
                generation = await each.join(wire)
                checker.check_next_generation(each.life, generation)
                await each.sync(wire, generation)
            for topic in TOPICS:
                for partition in range(PARTITIONS):
                    await self._settle_log(wire, topic, partition)
        return written

    async def _settle_log(self, wire: Pipe, topic: str, partition: int) -> None:
        place = f"{topic}-{partition}"
        here = [
            each
            for each in self.producing
            if (each.produced.topic, each.produced.partition) == (topic, partition)
        ]
        histories = [each.produced for each in here]
        found = await read_log(wire, topic, partition, 0)
        counts = checker.check_log(place, found, await end_offset(wire, topic, partition), histories)
        for each in here:
            if each.produced.idempotent:
                await each.retry(wire)
            else:
                each.produced.settle(counts[each.produced.name])
        found += await read_log(wire, topic, partition, found[-1].next_offset if found else 0)
        counts = checker.check_log(place, found, await end_offset(wire, topic, partition), histories)
        for produced in histories:
            if produced.idempotent:
                checker.check_sent_once(place, produced, counts[produced.name])
                produced.settle(counts[produced.name])


async def coordinators_loaded(wire: Pipe, groups: Sequence[str]) -> None:
    """Wait until every group's coordinator has loaded."""
    async with asyncio.timeout(REPLY_S):
        while True:
            described = (await wire.call(DescribeGroupsRequest(groups=list(groups)), 5)).groups
            if not any(each.error_code in _STARTING for each in described):
                return


async def _settle_commits(wire: Pipe, commits: Commits) -> int:
    if not commits.sent:
        return 0
    topic = OffsetFetchRequest.Topic(name=commits.topic, partition_indexes=list(commits.partitions))
    reply = await wire.call(OffsetFetchRequest(group_id=commits.group, topics=[topic]), 5)
    found = {
        each.partition_index: Committed(each.committed_offset, each.metadata)
        for each in reply.topics[0].partitions
    }
    if reply.error_code or any(each.error_code for each in reply.topics[0].partitions):
        raise Violation(f"group {commits.group}: its offsets cannot be fetched: {reply}")
    if not commits.acknowledged and {each.offset for each in found.values()} == {-1}:
        commits.settle(0)
        return 0
    number = checker.check_commits(commits, found)
    written = number - max(commits.acknowledged, commits.first_of_life - 1)
    commits.settle(number)
    return max(written, 0)


async def _check_group(wire: Pipe, life: GroupLife) -> GroupState:
    (described,) = (await wire.call(DescribeGroupsRequest(groups=[life.group]), 5)).groups
    observed = ObservedGroup(
        described.group_state, {each.member_id: each.member_assignment for each in described.members}, {}, {}
    )
    asked = {
        (member, state.generation + step)
        for state in life.possible
        for member, _ in state.members
        for step in (-1, 0, 1)
    }
    for member, generation in sorted(asked):
        beat = HeartbeatRequest(group_id=life.group, generation_id=generation, member_id=member)
        observed.heartbeats[member, generation] = (await wire.call(beat, 3)).error_code
    now = checker.check_group(life, observed)
    for member, _ in now.members:
        reply = await wire.call(syncing(life.group, member, now.generation, {}), 3)
        observed.syncs[member, now.generation] = reply.error_code, reply.assignment
    return checker.check_group(life, observed)


async def end_offset(wire: Pipe, topic: str, partition: int, *, committed: bool = False) -> int:
    """The log end offset; `committed`: for readers of committed records, the last stable offset."""
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])],
    )
    (answer,) = (await wire.call(request, 4)).topics[0].partitions
    if answer.error_code:
        raise Violation(f"{topic}-{partition}: its end cannot be asked for: {answer.error_code}")
    return int(answer.offset)


async def read_log(wire: Pipe, topic: str, partition: int, offset: int) -> list[Batch]:
    """Every batch from `offset` to the end."""
    found: list[Batch] = []
    while True:
        part = await fetch(wire, topic, partition, offset)
        if part.error_code:
            raise Violation(f"{topic}-{partition}: offset {offset} cannot be fetched: {part.error_code}")
        if not part.records:
            return found
        found += batches.read(part.records, f"{topic}-{partition}")
        offset = found[-1].next_offset


async def fetch(
    wire: Pipe,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int = 1 << 20,
    committed: bool = False,
) -> Any:
    """One partition's answer to a Fetch that does not wait; `committed`: with read_committed isolation."""
    wanted = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=int(committed),
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return (await wire.call(request, 11)).responses[0].partitions[0]
