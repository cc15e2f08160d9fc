"""State kept in memory, copied and put back."""

from __future__ import annotations

from uuid import uuid4

from muster.coordinator.storage.files import MemoryFolder
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, BrokerConfigsRow, Lease, LeaseKind, Outcome, TopicRow

LEASE = Lease(LeaseKind.GROUP, 7)


async def claimed(store: MemoryStore) -> int:
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    return grant.epoch


async def test_an_image_is_of_its_moment_and_can_be_put_back_again_and_again() -> None:
    store = MemoryStore()
    await store.open()
    epoch = await claimed(store)
    topic = TopicRow(uuid4(), "orders", 3, {}, 0)
    await store.create_topic(topic)
    await store.update_broker_configs(BrokerConfigsRow("1", {"a": "b"}), expected={})
    await store.append([Append(LEASE, epoch, [(b"k", b"1")])])
    image, before, revision = store.image(), await store.load(LEASE), await store.revision()

    for _ in range(2):
        await store.append([Append(LEASE, epoch, [(b"k", b"2"), (b"l", b"3")])])
        await store.delete_topic(topic.topic_id)
        await store.update_broker_configs(BrokerConfigsRow("1", {}), expected={"a": "b"})
        store.restore(image)
        assert await store.load(LEASE) == before
        assert await store.topics() == [topic]
        assert [row.configs for row in await store.broker_configs()] == [{"a": "b"}]
        assert await store.revision() > revision


async def test_what_came_into_a_lease_that_had_nothing_goes_but_for_its_epoch() -> None:
    store = MemoryStore()
    await store.open()
    image = store.image()
    epoch = await claimed(store)
    await store.append([Append(LEASE, epoch, [(b"k", b"v")])])
    store.restore(image)
    assert await store.load(LEASE) == []
    assert await store.append([Append(LEASE, epoch, [(b"k", b"v")])]) == [Outcome.WRITTEN]


async def test_epochs_and_ids_that_were_given_out_are_not_put_back() -> None:
    store = MemoryStore()
    await store.open()
    first = await claimed(store)
    image = store.image()
    epoch = await claimed(store)
    given = await store.allocate_producer_ids(10)
    told: list[None] = []
    store.changed.append(lambda: told.append(None))
    store.restore(image)
    assert told
    assert await store.append([Append(LEASE, first, [(b"k", b"v")])]) == [Outcome.FENCED]
    assert await store.append([Append(LEASE, epoch, [(b"k", b"v")])]) == [Outcome.WRITTEN]
    assert await store.allocate_producer_ids(10) == given + 10


def test_a_copy_of_a_folder_is_of_its_moment() -> None:
    folder = MemoryFolder()
    log = folder.folder("t").folder("0").open("log", create=True)
    log.append([b"one"])
    copy = folder.copy()
    log.append([b"two"])
    folder.folder("u").open("log", create=True).append([b"x"])

    for _ in range(2):
        folder.become(copy)
        assert folder.names() == ["t"]
        put_back = folder.folder("t").folder("0").open("log")
        assert put_back.read(0, 10) == b"one"
        put_back.append([b"three"])
    assert log.read(0, 10) == b"onetwo"  # whoever has it open keeps the old contents
