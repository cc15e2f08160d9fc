"""What a shard knows about topics: the same, whether it works out each change or is given it."""

from __future__ import annotations

import uuid
from random import Random

from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.topics import Topics, compared
from muster.protocol.types import ZERO_UUID
from tests.support.each import each

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def images(random: Random, count: int) -> list[TopicsImage]:
    """Topics come, go, grow, and are made anew between two images, or nothing changes."""
    made: list[TopicsImage] = []
    topics: dict[str, tuple[uuid.UUID, int]] = {}
    for _ in range(count):
        for name in random.sample("abcde", random.randrange(4)):
            topic_id, partitions = topics.get(name, (ZERO_UUID, 0))
            if partitions and random.random() < 0.4:
                del topics[name]
            elif partitions and random.random() < 0.5:
                topics[name] = topic_id, partitions + 1
            else:
                topics[name] = uuid.UUID(int=random.getrandbits(64)), random.randrange(1, 4)
        live = {name: topic_id for name, (topic_id, _) in topics.items()}
        made.append(TopicsImage(live=live, partitions={name: count for name, (_, count) in topics.items()}))
    return made


def state(topics: Topics) -> tuple[object, ...]:
    return topics.ids, topics.names, topics.partitions, topics.version, topics.added


@each("seed", range(20))
def test_what_was_worked_out_for_all_is_what_each_would_find(seed: int) -> None:
    """Also for a shard that missed some images, or is loaded when there have been several."""
    random = Random(seed)
    plain = images(random, 12)
    given = list(plain)
    for at in range(1, len(plain)):
        given[at] = compared(plain[at], given[at - 1])
        assert given[at].since is not None
    for taken in (range(12), range(5, 12), sorted(random.sample(range(12), 6))):
        by_itself, told = Topics(), Topics()
        for at in taken:
            assert told.take(given[at]) == by_itself.take(plain[at]), f"{seed=} {at=} of {taken}"
            assert state(told) == state(by_itself)


@each("image", [TopicsImage(), TopicsImage(live={"a": A}), TopicsImage(partitions={"a": 1})])
def test_an_image_that_does_not_list_all_is_compared_with_none(image: TopicsImage) -> None:
    full = TopicsImage(live={"a": A}, partitions={"a": 1})
    assert compared(image, full) is image
    assert compared(full, image) is full
    assert compared(full, None) is full


def test_a_topic_is_known_by_its_id_or_by_its_name_alone() -> None:
    topics = Topics()
    assert not topics.is_listed
    topics.take(TopicsImage(live={"a": A}, partitions={"a": 1}))
    assert topics.is_listed
    assert [topics.has(*each) for each in (("a", A), ("a", uuid.UUID(int=1)), ("a", ZERO_UUID))] == [True] * 3
    assert [topics.has(*each) for each in (("a", B), ("b", A), ("b", ZERO_UUID))] == [False] * 3
