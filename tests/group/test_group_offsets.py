"""OffsetFetch responses concatenated from what each offset keeps, compared with responses built from objects:
the same bytes in every version, from the compiled codec and from the reference."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

from muster.coordinator.group import records
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.offsets import FetchOffsets, fetch
from muster.protocol import codec, reference
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.types import ZERO_UUID
from tests.support.each import each

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
GROUP = "orders"
TOPICS = ("clicks", "orders", "größe")
METADATA = ("", "a", "ä", "x" * 126, "x" * 127, "x" * 128, "😀" * 40, "x" * 20_000)
NUMBERS = (0, 1, 2, 127, 128, 2**31 - 1)
VERSIONS = range(versions(ApiKey.OFFSET_FETCH).first, versions(ApiKey.OFFSET_FETCH).last + 1)


class Twins:
    """Hard state, and next to it what the group should hold."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.hard = HardState()
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.pending: set[tuple[int, TopicPartition]] = set()

    def change(self) -> None:
        random = self.random
        topic, number = partition = random.choice(TOPICS), random.choice(NUMBERS)
        producer = random.randrange(3)
        committed = CommittedOffset(
            random.choice((0, 1, random.randrange(2**63), 2**63 - 1)),
            random.choice((-1, 0, random.randrange(2**31))),
            random.choice(METADATA),
            random.randrange(2**40),
            -1,
            # Usually all offsets of a topic have the same id.
            random.choice((A, A, A, A, B, ZERO_UUID)),
        )
        match random.randrange(8):
            case 0 | 1 | 2 | 3:
                self.hard.apply(records.offset_commit(GROUP, topic, number, committed))
                self.offsets.setdefault(topic, {})[number] = committed
            case 4 | 5:
                self.hard.apply(records.offset_tombstone(GROUP, topic, number))
                self.offsets.get(topic, {}).pop(number, None)
                if not self.offsets.get(topic):
                    self.offsets.pop(topic, None)
            case 6:
                self.hard.apply(records.pending_offset(producer, GROUP, partition, committed))
                self.pending.add((producer, partition))
            case _:
                self.hard.apply(records.pending_offset_tombstone(producer, GROUP, partition))
                self.pending.discard((producer, partition))

    def asked(self) -> FetchOffsets:
        random = self.random
        topics = None
        if random.randrange(5):
            topics = [
                OffsetFetchRequest.Topics(
                    name=random.choice((*TOPICS, "unknown")),
                    topic_id=random.choice((ZERO_UUID, A, B)),
                    # Some of them twice.
                    partition_indexes=random.choices((*NUMBERS, 5), k=random.choice((0, 1, 5, 40, 130))),
                )
                for _ in range(random.randrange(5))
            ]
        return FetchOffsets(GROUP, topics, require_stable=random.random() < 0.5)

    def expected(self, asked: FetchOffsets) -> Iterator[tuple[str, uuid.UUID, list[dict[str, Any]]]]:
        if asked.topics is None:
            for name, numbers in self.offsets.items():
                yield name, ZERO_UUID, [self._partition(asked, name, ZERO_UUID, each) for each in numbers]
            return
        for topic in asked.topics:
            told = [self._partition(asked, topic.name, topic.topic_id, n) for n in topic.partition_indexes]
            yield topic.name, topic.topic_id, told

    def _partition(self, asked: FetchOffsets, name: str, topic_id: uuid.UUID, number: int) -> dict[str, Any]:
        committed = self.offsets.get(name, {}).get(number)
        code = ErrorCode.NONE
        if committed is not None and len({committed.topic_id, topic_id} - {ZERO_UUID}) == 2:
            committed = None
        if asked.require_stable and any(each == (name, number) for _, each in self.pending):
            committed, code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
        return {
            "partition_index": number,
            "committed_offset": -1 if committed is None else committed.offset,
            "committed_leader_epoch": -1 if committed is None else committed.leader_epoch,
            "metadata": "" if committed is None else committed.metadata,
            "error_code": code,
        }


def responses(told: list[tuple[str, uuid.UUID, Any]], version: int) -> OffsetFetchResponse:
    """The response of a version with these topics; their partitions have the form that its message takes."""
    if version < 8:
        topics = [OffsetFetchResponse.Topic(name=name, partitions=parts) for name, _, parts in told]
        return OffsetFetchResponse(topics=topics)
    of_group = [
        OffsetFetchResponse.Topics(name=name, topic_id=topic_id, partitions=parts)
        for name, topic_id, parts in told
    ]
    return OffsetFetchResponse(groups=[OffsetFetchResponse.Group(group_id=GROUP, topics=of_group)])


@each("seed", range(8))
def test_the_twins_agree_in_every_version(seed: int) -> None:
    random = Random(seed)
    twins = Twins(random)
    for _ in range(10):
        for _ in range(random.randrange(12)):
            twins.change()
        flat = {(topic, number): each for topic, of in twins.offsets.items() for number, each in of.items()}
        assert twins.hard.offsets.get(GROUP, {}) == flat
        asked = twins.asked()
        plain = list(twins.expected(asked))
        for version in VERSIONS:
            # Fetched again, since elements that have been looked at are objects.
            joined = [
                (topic.name, topic.topic_id, topic.partitions) for topic in fetch(asked, twins.hard).topics
            ]
            element = OffsetFetchResponse.Partition if version < 8 else OffsetFetchResponse.Partitions
            objects = [
                (name, topic_id, [element(**part) for part in parts]) for name, topic_id, parts in plain
            ]
            where = f"seed {seed}, v{version}, {asked}"
            expected = reference.encode(responses(objects, version), version)
            assert codec.encode(responses(joined, version), version) == expected, where
            assert codec.encode(responses(objects, version), version) == expected, where
            assert reference.encode(responses(joined, version), version) == expected, where
            # By now they are objects, and the objects count.
            assert codec.encode(responses(joined, version), version) == expected, where
