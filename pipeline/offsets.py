"""The position of a stream: an offset for each partition, as Spark's checkpoint stores it; and how to divide
the range between two positions.

The text is that of Spark's own kafka source, `{"orders":{"0":23,"1":5}}`, with topics and partitions sorted,
so that equal offsets have equal texts. Each topic has one more entry, of the same shape:

    {"orders":{"0":23,"1":5},"orders#bGV0IHRoZXJlIGJlIGxpZ2":{"0":4,"1":4}}

Its name contains the topic id (KIP-516), which reveals that a topic was deleted and recreated; its numbers
are leader epochs (KIP-320), which reveal that a log was truncated. `#` cannot occur in a topic name. An epoch
is that of the leader that was queried, so the records before the offset have this epoch or an older one.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from muster.client.partitions import NO_LEADER_EPOCH, TopicPartition
from muster.pipeline.errors import PipelineError

_IDENTITY: Final = "#"

OffsetsJson = dict[str, dict[str, int]]


class Place(NamedTuple):
    """Where a partition is read next, and the epoch of the leader that was queried, -1 if it gave none."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class Offsets:
    """A place for each partition, and the ids of their topics, as far as brokers report them."""

    places: Mapping[TopicPartition, Place] = field(default_factory=dict)
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Ids of other topics are not stored, so they must not make equal positions differ.
        topics = {where.topic for where in self.places}
        ids = {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic in topics}
        object.__setattr__(self, "topic_ids", ids)

    def to_json(self) -> OffsetsJson:
        """The form that Spark stores; its order depends only on its contents."""
        told: OffsetsJson = {}
        for where in sorted(self.places):
            told.setdefault(where.topic, {})[str(where.partition)] = self.places[where].offset
        for topic in sorted(told):
            topic_id = self.topic_ids.get(topic)
            epochs = {
                str(where.partition): self.places[where].leader_epoch
                for where in sorted(self.places)
                if where.topic == topic and self.places[where].leader_epoch >= 0
            }
            if topic_id is not None or epochs:
                told[f"{topic}{_IDENTITY}{'' if topic_id is None else _text_of(topic_id)}"] = epochs
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Mapping[str, int]]) -> Offsets:
        """Read what `to_json` or Spark's kafka source wrote. Raises PipelineError for anything else."""
        places: dict[TopicPartition, Place] = {}
        epochs: dict[TopicPartition, int] = {}
        topic_ids: dict[str, uuid.UUID] = {}
        try:
            for name, numbers in told.items():
                topic, mark, topic_id = name.partition(_IDENTITY)
                if topic_id:
                    topic_ids[topic] = _id_of(topic_id)
                for partition, number in numbers.items():
                    where = TopicPartition(topic, int(partition))
                    if mark:
                        epochs[where] = int(number)
                    else:
                        places[where] = Place(int(number))
        except (AttributeError, TypeError, ValueError):
            raise PipelineError(f"these are no offsets of the format muster: {told!r}") from None
        return cls(
            {
                where: Place(place.offset, epochs.get(where, NO_LEADER_EPOCH))
                for where, place in places.items()
            },
            topic_ids,
        )


def _text_of(topic_id: uuid.UUID) -> str:
    """As Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _id_of(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class Range(NamedTuple):
    """The records of one partition that one task reads: `start` <= offset < `until`."""

    where: TopicPartition
    start: int
    until: int
    topic_id: uuid.UUID | None = None

    @property
    def size(self) -> int:
        """Number of offsets; some may have no record."""
        return self.until - self.start


def limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
    """The ends of a batch of about `offsets_max` offsets, shared in proportion to what each partition has. As
    in Spark's source, every nonempty partition contributes at least one, so that none waits for ever."""
    sizes = {where: max(0, end - starts.get(where, 0)) for where, end in ends.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(ends)
    chosen = {}
    for where, end in ends.items():
        share = max(1, offsets_max * sizes[where] // total)
        chosen[where] = starts.get(where, 0) + share if sizes[where] else end
    return chosen


def divided(ranges: Iterable[Range], parts_min: int | None) -> list[Range]:
    """The nonempty ranges, in order; if there are fewer than `parts_min`, large ones are split."""
    found = sorted((each for each in ranges if each.size > 0), key=lambda each: each[:3])
    if parts_min is None or len(found) >= parts_min:
        return found
    total = sum(each.size for each in found)
    parts: list[Range] = []
    for each in found:
        count = min(each.size, max(1, round(parts_min * each.size / total)))
        cuts = [each.start + each.size * index // count for index in range(count + 1)]
        parts += [each._replace(start=start, until=until) for start, until in pairwise(cuts)]
    return parts
