"""The contract of topics, nodes, the revision, producer ids, and what is fixed at creation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from muster.coordinator.storage.store import (
    Assignment,
    BrokerConfigsRow,
    Lease,
    LeaseKind,
    NodeIdTaken,
    NodeRow,
    Store,
    StoreConflict,
    TopicRow,
)
from muster.coordinator.storage.texts import assignments_of, assignments_text
from tests.storage.conftest import LEASE_COUNTS, Backend, StoreClock

ORDERS = TopicRow(UUID(int=1), "orders", 3, {"cleanup.policy": "compact"}, 1_700_000_000_000)
AUDIT = TopicRow(UUID(int=2), "audit", 1)
NODE = NodeRow(1, "127.0.0.1", 9092, None, 10_000, UUID(int=11))


# --- topics ---------------------------------------------------------------------------------------


async def test_topics_come_by_name(store: Store) -> None:
    assert await store.topics() == []
    await store.create_topic(ORDERS)
    await store.create_topic(AUDIT)
    assert await store.topics() == [AUDIT, ORDERS]


@pytest.mark.parametrize("rival", [AUDIT._replace(name="orders"), AUDIT._replace(topic_id=ORDERS.topic_id)])
async def test_a_name_and_an_id_belong_to_one_topic(store: Store, rival: TopicRow) -> None:
    await store.create_topic(ORDERS)
    with pytest.raises(StoreConflict, match="taken"):
        await store.create_topic(rival)
    assert await store.topics() == [ORDERS]


async def test_of_concurrent_creators_of_a_name_one_succeeds(store: Store) -> None:
    rivals = [AUDIT._replace(topic_id=UUID(int=n)) for n in range(2, 8)]
    results = await asyncio.gather(*map(store.create_topic, rivals), return_exceptions=True)
    assert results[0] is None
    assert all(isinstance(result, StoreConflict) for result in results[1:])
    assert await store.topics() == [rivals[0]]


async def test_a_topic_is_replaced_by_its_id(store: Store) -> None:
    await store.create_topic(ORDERS)
    grown = ORDERS._replace(partitions=6, configs={})
    await store.update_topic(grown, expected=ORDERS)
    assert await store.topics() == [grown]


async def test_a_change_computed_from_an_old_row_is_refused(store: Store) -> None:
    await store.create_topic(ORDERS)
    grown = ORDERS._replace(partitions=6)
    await store.update_topic(grown)
    with pytest.raises(StoreConflict, match="changed in the meantime"):
        await store.update_topic(ORDERS._replace(configs={}), expected=ORDERS)
    assert await store.topics() == [grown]


async def test_a_topic_cannot_be_renamed_to_anothers_name(store: Store) -> None:
    await store.create_topic(ORDERS)
    await store.create_topic(AUDIT)
    with pytest.raises(StoreConflict, match="taken"):
        await store.update_topic(AUDIT._replace(name="orders"))
    assert await store.topics() == [AUDIT, ORDERS]


async def test_an_unknown_topic_is_neither_changed_nor_deleted(store: Store) -> None:
    with pytest.raises(StoreConflict, match="no topic"):
        await store.update_topic(ORDERS)
    assert await store.delete_topic(ORDERS.topic_id) is False


async def test_a_deleted_topics_name_is_free(store: Store) -> None:
    await store.create_topic(ORDERS)
    assert await store.delete_topic(ORDERS.topic_id) is True
    reborn = ORDERS._replace(topic_id=UUID(int=9))
    await store.create_topic(reborn)
    assert await store.topics() == [reborn]


# --- replica lists ------------------------------------------------------------------------------------

LED = Lease(LeaseKind.DATA, 2)
MOVED = Assignment((2, 3), epoch_base=7, moved_from=LED, moved_epoch=4)
ASSIGNED = ORDERS._replace(assignments={0: Assignment((3, 1)), 2: MOVED})


async def test_assignments_are_kept_and_outlive_the_store_object(store: Store, backend: Backend) -> None:
    await store.create_topic(ASSIGNED)
    await store.create_topic(AUDIT)
    assert await store.topics() == [AUDIT, ASSIGNED]
    moved_back = Assignment((1,), 12, Lease(LeaseKind.REPLICAS, 1), 3)
    other = ASSIGNED._replace(assignments={**ASSIGNED.assignments, 1: moved_back})
    await store.update_topic(other, expected=ASSIGNED)
    with pytest.raises(StoreConflict, match="changed in the meantime"):
        await store.update_topic(ASSIGNED, expected=other._replace(assignments={}))
    await store.close()
    reopened = backend.store()
    await reopened.open()
    assert await reopened.topics() == [AUDIT, other]
    await reopened.close()


async def test_replica_lists_are_numbered_once_and_for_ever(store: Store, backend: Backend) -> None:
    assert await store.replica_lists() == {}
    before = await store.revision()
    await asyncio.gather(store.add_replica_lists([(3, 1), (1, 3)]), store.add_replica_lists([(1, 3)]))
    assert await store.revision() > before
    numbers = await store.replica_lists()
    assert sorted(numbers.values()) == [0, 1]
    before = await store.revision()
    await store.add_replica_lists([(3, 1)])
    assert await store.revision() == before
    with pytest.raises(StoreConflict, match="3 different replica lists; 2 have been used"):
        await store.add_replica_lists([(1,), (2,)])
    await store.add_replica_lists([(2,)])
    assert await store.replica_lists() == {**numbers, (2,): 2}
    (grant,) = await store.claim([Lease(LeaseKind.REPLICAS, 2)], 1, 60_000)
    assert grant is not None
    await store.close()
    reopened = backend.store()
    await reopened.open()
    assert await reopened.replica_lists() == {**numbers, (2,): 2}
    await reopened.close()


async def test_a_change_computed_from_an_epoch_that_is_over_is_refused(store: Store) -> None:
    """Whoever claims the lease after the change reads it."""
    await store.create_topic(ORDERS)
    (first,) = await store.claim([LED], 1, 60_000)
    assert first is not None
    await store.update_topic(ASSIGNED, expected=ORDERS, epochs={LED: first.epoch})
    assert await store.claim([LED], 1, 60_000) != [first]
    other = ASSIGNED._replace(partitions=9)
    with pytest.raises(StoreConflict, match="lease"):
        await store.update_topic(other, expected=ASSIGNED, epochs={LED: first.epoch})
    assert await store.topics() == [ASSIGNED]
    never = Lease(LeaseKind.DATA, 1)
    await store.update_topic(other, expected=ASSIGNED, epochs={LED: first.epoch + 1, never: 0})
    assert await store.topics() == [other]


async def test_a_change_and_a_claim_at_the_same_time_come_one_after_the_other(store: Store) -> None:
    await store.create_topic(ORDERS)
    (grant,) = await store.claim([LED], 1, 60_000)
    assert grant is not None
    for _ in range(20):
        (before,) = await store.topics()
        after = before._replace(partitions=before.partitions + 1)
        changing = store.update_topic(after, expected=before, epochs={LED: grant.epoch})
        refused, claimed = await asyncio.gather(
            changing, store.claim([LED], 1, 60_000), return_exceptions=True
        )
        assert isinstance(claimed, list)
        assert await store.topics() == [before if isinstance(refused, StoreConflict) else after]
        grant = claimed[0] or grant


def test_assignments_are_written_as_people_can_read_them() -> None:
    assert assignments_text({}) == ""
    text = assignments_text(ASSIGNED.assignments)
    assert text == (
        '[[3,1],null,{"replicas":[2,3],"epochBase":7,"movedFrom":["data",2,4]}]'  # rows of earlier versions
    )
    assert assignments_of(text) == ASSIGNED.assignments
    assert assignments_of("") == {}


# --- broker configs -------------------------------------------------------------------------------

EVERY_BROKER = BrokerConfigsRow("", {"log.retention.ms": "5"})
FIRST_BROKER = BrokerConfigsRow("1", {"log.cleanup.policy": "compact", "message.max.bytes": "9"})


async def test_broker_configs_come_by_broker_and_outlive_the_store_object(
    store: Store, backend: Backend
) -> None:
    assert await store.broker_configs() == []
    before = await store.revision()
    await store.update_broker_configs(FIRST_BROKER, expected={})
    await store.update_broker_configs(EVERY_BROKER, expected={})
    assert await store.revision() > before
    assert await store.broker_configs() == [EVERY_BROKER, FIRST_BROKER]
    await store.close()
    reopened = backend.store()
    await reopened.open()
    assert await reopened.broker_configs() == [EVERY_BROKER, FIRST_BROKER]
    await reopened.close()


async def test_broker_configs_are_replaced_and_an_empty_set_is_forgotten(store: Store) -> None:
    await store.update_broker_configs(FIRST_BROKER, expected={})
    other = FIRST_BROKER._replace(configs={"log.retention.ms": "7"})
    await store.update_broker_configs(other, expected=FIRST_BROKER.configs)
    assert await store.broker_configs() == [other]
    await store.update_broker_configs(other._replace(configs={}), expected=other.configs)
    assert await store.broker_configs() == []


async def test_a_change_of_broker_configs_computed_from_old_ones_is_refused(store: Store) -> None:
    await store.update_broker_configs(FIRST_BROKER, expected={})
    before = await store.revision()
    for expected in ({}, EVERY_BROKER.configs):
        with pytest.raises(StoreConflict, match="changed in the meantime"):
            await store.update_broker_configs(FIRST_BROKER._replace(configs={}), expected=expected)
    assert await store.broker_configs() == [FIRST_BROKER]
    assert await store.revision() == before


# --- nodes ----------------------------------------------------------------------------------------


async def test_nodes_are_listed_by_id_for_their_term(store: Store, clock: StoreClock) -> None:
    second = NodeRow(2, "::1", 9093, "rack-b", 20_000, UUID(int=12), drained=True)
    await store.register_node(second)
    await store.register_node(NODE)
    assert await store.nodes() == [NODE, second]
    clock.advance(NODE.term_ms - 1)
    assert await store.nodes() == [NODE, second]
    clock.advance(1)
    assert await store.nodes() == [second]
    await store.register_node(NODE)
    assert await store.nodes() == [NODE, second]


async def test_a_node_may_move_and_go(store: Store) -> None:
    await store.register_node(NODE)
    moved = replace(NODE, port=19092)
    await store.register_node(moved)
    assert await store.nodes() == [moved]
    await store.remove_node(1, NODE.incarnation)
    await store.remove_node(1, NODE.incarnation)
    assert await store.nodes() == []


async def test_a_node_says_how_long_ago_it_registered(store: Store, clock: StoreClock) -> None:
    await store.register_node(NODE)
    clock.advance(2_500)
    assert [node.age_ms for node in await store.nodes()] == [2_500]
    await store.register_node(replace(NODE, age_ms=77))
    assert [node.age_ms for node in await store.nodes()] == [0]


async def test_a_node_id_belongs_to_one_incarnation_for_its_term(store: Store, clock: StoreClock) -> None:
    await store.register_node(NODE)
    rival = replace(NODE, host="::1", port=9999, incarnation=UUID(int=22))
    clock.advance(NODE.term_ms - 1_500)
    before = await store.revision()
    with pytest.raises(NodeIdTaken, match=r"id 1 is in use by the broker at 127\.0\.0\.1:9092") as refusal:
        await store.register_node(rival)
    assert (refusal.value.holder, refusal.value.remaining_ms) == (NODE, 1_500)
    await store.remove_node(1, rival.incarnation)
    assert await store.nodes() == [NODE]
    assert await store.revision() == before
    clock.advance(1_500)
    await store.register_node(rival)
    with pytest.raises(NodeIdTaken) as refusal:
        await store.register_node(NODE)
    assert refusal.value.holder == rival
    assert await store.nodes() == [rival]
    await store.remove_node(1, NODE.incarnation)
    assert await store.nodes() == [rival]
    await store.remove_node(1, rival.incarnation)
    await store.register_node(NODE)
    assert await store.nodes() == [NODE]


async def test_draining_a_node_is_a_change(store: Store) -> None:
    await store.register_node(NODE)
    before = await store.revision()
    await store.register_node(replace(NODE, drained=True))
    assert await store.revision() > before
    assert await store.nodes() == [replace(NODE, drained=True)]


# --- revision -------------------------------------------------------------------------------------


async def test_the_revision_grows_with_every_change_and_tells_who_listens(
    store: Store, clock: StoreClock
) -> None:
    told: list[None] = []
    store.changed.append(lambda: told.append(None))
    (grant,) = await store.claim([Lease(LeaseKind.GROUP, 0)], 1, 10_000)
    assert grant
    assert told
    changes = {
        "create": lambda: store.create_topic(ORDERS),
        "update": lambda: store.update_topic(ORDERS._replace(partitions=4)),
        "delete": lambda: store.delete_topic(ORDERS.topic_id),
        "register": lambda: store.register_node(NODE),
        "move": lambda: store.register_node(replace(NODE, port=1)),
        "remove": lambda: store.remove_node(NODE.node_id, NODE.incarnation),
        "claim again": lambda: store.claim([Lease(LeaseKind.GROUP, 0)], 1, 10_000),
        "claim data": lambda: store.claim([Lease(LeaseKind.DATA, 0)], 1, 10_000),
    }
    for name, change in changes.items():
        before = await store.revision()
        told.clear()
        await change()
        assert await store.revision() > before, name
        assert told, name
    (held,) = (await store.holders(LeaseKind.GROUP)).values()
    before = await store.revision()
    await store.release([held])
    assert await store.revision() > before
    await store.register_node(NODE)
    clock.advance(NODE.term_ms)
    before = await store.revision()
    await store.register_node(NODE)
    assert await store.revision() > before, "a node that had run out is back"


async def test_what_changes_nothing_does_not_move_the_revision(store: Store) -> None:
    (grant,) = await store.claim([Lease(LeaseKind.GROUP, 0)], 1, 10_000)
    assert grant
    await store.announce([grant])
    await store.register_node(NODE)
    await store.create_topic(ORDERS)
    told: list[None] = []
    store.changed.append(lambda: told.append(None))
    before = await store.revision()
    await store.renew([grant], 10_000)
    await store.register_node(NODE)
    await store.claim([Lease(LeaseKind.GROUP, 0)], 2, 10_000)
    await store.release([grant._replace(epoch=7)])
    await store.remove_node(5, NODE.incarnation)
    await store.remove_node(NODE.node_id, UUID(int=99))
    await store.announce([grant])
    await store.delete_topic(AUDIT.topic_id)
    await store.allocate_producer_ids(10)
    with pytest.raises(StoreConflict):
        await store.create_topic(ORDERS)
    assert await store.revision() == before
    assert told == []


# --- the rest -------------------------------------------------------------------------------------


async def test_producer_ids_come_in_blocks_that_never_overlap(backend: Backend, store: Store) -> None:
    firsts = await asyncio.gather(*(store.allocate_producer_ids(1000) for _ in range(5)))
    assert firsts == [0, 1000, 2000, 3000, 4000]
    await store.close()
    again = backend.store()
    await again.open()
    assert await again.allocate_producer_ids(1) == 5000
    await again.close()


async def test_what_is_fixed_at_creation_and_what_is_written_survive_a_reopen(
    backend: Backend, store: Store
) -> None:
    counts = await store.counts()
    assert counts.leases == LEASE_COUNTS
    await store.create_topic(ORDERS)
    revision = await store.revision()
    await store.close()
    again = backend.store()
    await again.open()
    assert await again.counts() == counts
    assert await again.topics() == [ORDERS]
    assert await again.revision() >= revision
    await again.close()
