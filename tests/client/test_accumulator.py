"""Records that wait to be sent: what goes out when, in what order, and under which numbers.

The last test plays seeded chaos against a model of a broker and checks the log: every acknowledged record is
in it once, in order, whatever was lost, refused, split, expired or moved to another leader.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.produce.accumulator import (
    NEVER,
    PRODUCER_EPOCH_MAX,
    Accumulator,
    Batch,
    Due,
    PartitionQueue,
    ProducerIdentity,
    TopicQueues,
)
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import NO_SEQUENCE, batches, records
from tests.client.scripted import Log
from tests.support.each import each

OOPS = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def accumulator(partitions: int = 1, **settings: Any) -> tuple[Accumulator, TopicQueues]:
    """With topic t, all partitions led by node 0, and a producer id."""
    made = Accumulator(**{"linger_s": 1.0, "batch_size_bytes": 200, **settings})
    if made.identity is None:
        made.identified(ProducerIdentity(7, 0))
    topic = made.topics["t"] = TopicQueues("t", partitions)
    for queue in topic.queues:
        queue.leader = 0
    return made, topic


def put(made: Accumulator, queue: PartitionQueue, *tickets: int, now: float = 0.0, size: int = 10) -> None:
    for ticket in tickets:
        add(made, queue, 1_000 + ticket, None, b"%d" % ticket + b"." * size, (), ticket, now=now)


def add(made: Accumulator, queue: PartitionQueue, *record: Any, now: float = 0.0) -> None:
    """Add a record as the producer does."""
    timestamp_ms, key, value, headers, ticket = record
    if not made.add(queue, timestamp_ms, key, value, headers, ticket, made.batch_size_bytes):
        made.begin(queue, timestamp_ms, key, value, headers, ticket, now)


def add_keyless(
    made: Accumulator, topic: TopicQueues, value: bytes, ticket: int, *, now: float = 0.0
) -> None:
    if not made.add(topic.sticky, 0, None, value, (), ticket, topic.size_bytes_max):
        made.begin_keyless(topic, 0, value, (), ticket, now)


def sent(due: Due) -> list[list[list[int]]]:
    """The tickets of each batch of each request."""
    return [[batch.tickets for batch in request.batches] for request in due.requests]


def acknowledge(made: Accumulator, due: Due) -> None:
    for request in due.requests:
        made.arrived(request.node)
        for batch in request.batches:
            made.acknowledged(batch)


# --- when ---------------------------------------------------------------------------------------------------


def test_a_batch_lingers_for_company() -> None:
    made, topic = accumulator()
    put(made, topic.queues[0], 1, now=10.0)
    put(made, topic.queues[0], 2, now=10.9)
    early = made.due(10.9)
    assert early.requests == []
    assert early.ask_again_at == 11.0
    assert sent(made.due(11.0)) == [[[1, 2]]]


def test_a_full_batch_goes_at_once_and_the_next_one_lingers() -> None:
    made, topic = accumulator()
    put(made, topic.queues[0], 1, 2, 3, size=80, now=10.0)
    due = made.due(10.0)
    assert sent(due) == [[[1]]]  # two of these and a header exceed 200 bytes
    acknowledge(made, due)
    due = made.due(10.0)
    assert sent(due) == [[[2]]]
    acknowledge(made, due)
    assert made.due(10.0).requests == []
    assert sent(made.due(11.0)) == [[[3]]]


def test_what_somebody_awaits_goes_as_soon_as_its_node_has_nothing_else() -> None:
    made, topic = accumulator(2)
    put(made, topic.queues[0], 1, now=10.0)
    assert made.hurry(topic.queues[0])
    due = made.due(10.0)
    assert sent(due) == [[[1]]]
    put(made, topic.queues[1], 2, now=10.0)
    put(made, topic.queues[1], 3, now=10.0)
    assert made.hurry(topic.queues[1])
    assert not made.hurry(topic.queues[1]), "that was known"
    assert made.due(10.0).requests == []
    acknowledge(made, due)
    assert sent(made.due(10.0)) == [[[2, 3]]]


def test_nothing_goes_without_a_leader_or_an_id() -> None:
    made, topic = accumulator(2)
    put(made, topic.queues[0], 1)
    topic.queues[0].leader = None
    due = made.due(5.0)
    assert (due.requests, due.leaderless) == ([], [topic.queues[0]])
    topic.queues[0].leader = 0
    made.identity = None
    assert made.due(5.0) == Due([], NEVER, [], [])


def test_requests_have_their_size_and_their_number() -> None:
    """Two partitions fit a request; a node gets two requests at a time."""
    made, topic = accumulator(6, request_bytes_max=350, max_in_flight=2)
    for queue in topic.queues:
        put(made, queue, queue.where.partition, size=80)
    first = made.due(5.0)
    assert sent(first) == [[[0], [1]], [[2], [3]]]
    assert made.due(5.0).requests == []
    made.arrived(0)
    assert sent(made.due(5.0)) == [[[4], [5]]]


def test_a_broker_that_asks_for_a_pause_gets_it() -> None:
    made, topic = accumulator()
    put(made, topic.queues[0], 1)
    due = made.due(5.0)
    made.arrived(0, muted_until=9.0)
    made.acknowledged(due.requests[0].batches[0])
    put(made, topic.queues[0], 2, now=5.0)
    due = made.due(6.5)
    assert (due.requests, due.ask_again_at) == ([], 9.0)
    assert sent(made.due(9.0)) == [[[2]]]


# --- records ------------------------------------------------------------------------------------------------


def test_a_record_beyond_the_size_of_a_request_is_refused_and_leaves_nothing() -> None:
    made, topic = accumulator(request_bytes_max=500)
    put(made, topic.queues[0], 1)
    before = made.size_bytes
    with pytest.raises(KafkaError, match=r"takes 57\d bytes, max_request_size is 500") as refused:
        put(made, topic.queues[0], 2, size=500)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    put(made, topic.queues[0], 3)
    assert made.size_bytes > before
    assert sent(made.due(5.0)) == [[[1, 3]]]


def test_what_is_settled_leaves_the_buffer() -> None:
    made, topic = accumulator(2)
    put(made, topic.queues[0], 1, 2)
    put(made, topic.queues[1], 3)
    assert made.size_bytes == sum(batch.size_bytes for batch in made.unsettled()) > 0
    acknowledge(made, made.due(5.0))
    assert made.size_bytes == 0
    assert made.is_idle


def test_keyless_records_go_to_each_partition_in_equal_shares() -> None:
    made, topic = accumulator(4, batch_size_bytes=1_000)
    for ticket in range(400):
        add_keyless(made, topic, b"x" * (ticket * 7 % 90), ticket)
    shares = [sum(batch.size_bytes for batch in queue.batches) for queue in topic.queues]
    assert sum(shares) == made.size_bytes
    assert max(shares) - min(shares) <= 2 * 1_000, shares
    batched = [len(queue.batches) for queue in topic.queues]
    assert sum(batched) < 40, "they stay together"


def test_a_topic_that_has_fewer_partitions_than_before_keeps_those_with_records() -> None:
    made, topic = accumulator(4, idempotent=False)
    topic.sticky = topic.queues[3]
    put(made, topic.queues[1], 1)
    topic.resize(1)
    assert len(topic.queues) == 2
    assert topic.sticky is topic.queues[0]
    acknowledge(made, made.due(5.0))
    topic.resize(1)
    assert len(topic.queues) == 1


def test_a_partition_that_one_broker_did_not_know_of_goes_on_counting() -> None:
    """A number used twice would be taken for a repeat, and its record lost."""
    made, topic = accumulator(3)
    put(made, topic.queues[2], 1)
    acknowledge(made, made.due(5.0))
    topic.resize(1)
    topic.resize(3)
    put(made, topic.queues[2], 2)
    (request,) = made.due(10.0).requests
    assert [batch.sequence for batch in request.batches] == [1]


def test_a_partition_that_is_gone_gets_no_more_records() -> None:
    """It stays for the records it has, which may take their whole time to fail."""
    made, topic = accumulator(4)
    topic.sticky = topic.queues[1]
    put(made, topic.queues[3], 1)
    topic.resize(1)
    assert (topic.count, len(topic.queues)) == (1, 4)
    for ticket in range(20):
        add_keyless(made, topic, b"x" * 90, ticket)
    assert [len(queue.batches) > 0 for queue in topic.queues] == [True, False, False, True]
    assert topic.sticky is topic.queues[0]
    topic.resize(3)
    assert (topic.count, len(topic.queues)) == (3, 4)


def test_few_keyless_records_are_spread_however_large_a_batch_may_be() -> None:
    """The batches stay open meanwhile."""
    made, topic = accumulator(4, batch_size_bytes=100_000, share_bytes=1_000)
    for ticket in range(400):
        add_keyless(made, topic, b"x" * 90, ticket)
    assert [len(queue.batches) for queue in topic.queues] == [1] * 4
    shares = [len(queue.batches[0].tickets) for queue in topic.queues]
    assert max(shares) - min(shares) <= 12, shares
    assert not any(batch.sealed for batch in made.unsettled())


def test_keyless_and_keyed_records_share_batches() -> None:
    made, topic = accumulator(2, batch_size_bytes=1_000, share_bytes=300)
    for ticket in range(200):
        if ticket % 3:
            add_keyless(made, topic, b"x" * 50, ticket)
        else:
            put(made, topic.queues[0], ticket, size=50)
    sizes = [batch.size_bytes for batch in made.unsettled() if batch.sealed]
    assert len(sizes) > 5
    assert min(sizes) > 850, "a batch is full before the next one is begun"


def test_keyless_records_move_on_although_every_batch_goes_out_early() -> None:
    """KIP-794: bytes count, not batches, or a slow partition would get more."""
    made, topic = accumulator(2)
    seen = []
    for ticket in range(30):
        add_keyless(made, topic, b"x" * 50, ticket, now=float(ticket))
        due = made.due(ticket + 1.0)
        seen += [batch.where.partition for request in due.requests for batch in request.batches]
        acknowledge(made, due)
    assert {seen.count(0), seen.count(1)} <= {14, 15, 16}
    assert seen[:2] == [seen[0]] * 2, "more than one record stays with a partition"


def test_keyless_records_keep_away_from_partitions_without_a_leader_and_with_much_to_do() -> None:
    made, topic = accumulator(3)
    topic.queues[1].leader = None
    put(made, topic.queues[2], *range(1000, 1010), size=150)
    topic.sticky = topic.queues[2]
    topic.move_on()
    assert topic.sticky is topic.queues[0]
    topic.move_on()
    assert topic.sticky is topic.queues[0], "there is none better"


@each("codec", Codec)
def test_what_goes_out_is_what_came_in(codec: Codec) -> None:
    made, topic = accumulator(codec=codec)
    add(made, topic.queues[0], 5, b"k", b"v", (("h", b"1"), ("h", None)), "a")
    add(made, topic.queues[0], 3, None, None, (), "b")
    ((batch,),) = [request.batches for request in made.due(5.0).requests]
    encoded = batch.encoded(codec)
    ((position, header),) = batches(encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)
    assert header.codec == codec
    assert [each[1:] for each in records(encoded, position, header)] == [
        (5, b"k", b"v", (("h", b"1"), ("h", None))),
        (3, None, None, ()),
    ]


# --- numbers and order --------------------------------------------------------------------------------------


def flying(made: Accumulator, now: float = 5.0) -> list[Batch]:
    return [batch for request in made.due(now).requests for batch in request.batches]


def five(made: Accumulator, queue: PartitionQueue, first: int = 0) -> list[Batch]:
    """Five batches of one record in flight, after the broker acknowledged one before them."""
    if not queue.acknowledged:
        put(made, queue, -1)
        (batch,) = flying(made)
        made.acknowledged(batch)
        made.arrived(0)
    put(made, queue, *range(first, first + 6), size=150)
    out = [batch for _ in range(6) for batch in flying(made)]
    assert [batch.tickets for batch in out] == [[number] for number in range(first, first + 5)]
    return out


def test_one_batch_goes_before_the_broker_knows_the_producer_then_five() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    put(made, queue, 0, 1, size=150)
    (batch,) = flying(made)
    assert flying(made) == []
    made.arrived(0)
    made.acknowledged(batch)
    (batch,) = flying(made)
    made.acknowledged(batch)
    made.arrived(0)
    assert [batch.sequence for batch in five(made, queue)] == [2, 3, 4, 5, 6]


def test_no_batch_goes_out_that_would_make_the_broker_forget_one_in_doubt() -> None:
    """The first of five is lost, those after it are acknowledged: the broker remembers five."""
    made, topic = accumulator()
    queue = topic.queues[0]
    put(made, queue, *range(12), size=80)
    acknowledge(made, made.due(5.0))
    first, *others = [made.due(5.0) for _ in range(5)]
    assert [sent(due) for due in (first, *others)] == [[[[ticket]]] for ticket in range(1, 6)]
    for due in others:
        acknowledge(made, due)
    assert made.due(5.0).requests == [], "6 would be the sixth from 1 on"
    made.arrived(0)
    made.retry(first.requests[0].batches[0], OOPS, 5.0, in_doubt=True)
    again = made.due(5.0)
    assert sent(again) == [[[1]]]
    assert made.due(5.0).requests == []
    acknowledge(made, again)
    assert sent(made.due(5.0)) == [[[6]]]


def test_without_numbers_one_batch_of_a_partition_is_on_its_way() -> None:
    made, topic = accumulator(idempotent=False)
    (queue,) = topic.queues
    put(made, queue, 0, 1, size=150)
    (batch,) = flying(made)
    assert batch.sequence == NO_SEQUENCE
    assert flying(made) == []
    made.arrived(0)
    made.acknowledged(batch)
    assert [batch.tickets for batch in flying(made)] == [[1]]


@each("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
def test_failed_batches_go_again_in_order_when_all_have_come_back(order: tuple[int, ...]) -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    numbers = [(batch.identity, batch.sequence) for batch in out]
    for index in order:
        assert flying(made, 6.0) == []
        made.arrived(0)
        made.retry(out[index], OOPS, 7.0, in_doubt=True)
    assert made.due(6.0).ask_again_at == 7.0
    again = [batch for _ in range(5) for batch in flying(made, 7.0)]
    assert again == out
    assert [(batch.identity, batch.sequence) for batch in again] == numbers


def test_a_partition_that_moved_is_not_written_to_before_the_old_leader_has_answered() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    made.arrived(0)
    made.acknowledged(out[0])
    queue.leader = 1
    assert flying(made) == []
    for batch in out[1:]:
        made.arrived(0)
        made.acknowledged(batch)
    (request,) = made.due(5.0).requests
    assert request.node == 1


def test_out_of_order_behind_a_failed_batch_is_no_reason_to_begin_anew() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    made.retry(out[0], OOPS, 0.0, in_doubt=False)
    for batch in out[1:]:
        made.out_of_order(batch, OOPS, 0.0)
    for _ in out:
        made.arrived(0)
    again = [batch for _ in range(5) for batch in flying(made)]
    assert [(batch.identity.epoch, batch.sequence) for batch in again] == [
        (0, number) for number in range(1, 6)
    ]


def test_out_of_order_of_the_oldest_begins_anew_in_the_next_epoch() -> None:
    """The broker has lost what it knew: it would accept only the first number of a new epoch."""
    made, topic = accumulator(2)
    queue = topic.queues[0]
    out = five(made, queue)
    for batch in out:
        made.out_of_order(batch, OOPS, 0.0)
        made.arrived(0)
    assert [(b.identity, b.sequence) for b in flying(made)] == [(ProducerIdentity(7, 1), 0)]
    assert flying(made) == [], "nothing more before the new epoch is known"
    put(made, topic.queues[1], 50)
    assert [(b.identity, b.sequence) for b in flying(made)] == [(ProducerIdentity(7, 1), 0)]


def test_a_batch_given_up_leaves_a_gap_so_the_rest_begins_anew() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    made.arrived(0)
    made.give_up(out[0])
    for batch in out[1:]:
        made.arrived(0)
        made.out_of_order(batch, OOPS, 0.0)
    (first,) = flying(made)
    assert (first, first.identity.epoch, first.sequence) == (out[1], 1, 0)
    made.arrived(0)
    made.acknowledged(first)
    rest = [batch for _ in range(5) for batch in flying(made)]
    assert [batch.sequence for batch in rest] == [1, 2, 3, 4]


def test_a_batch_in_doubt_keeps_its_number_until_the_doubt_is_gone() -> None:
    """Under a new number it might be written twice."""
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    made.give_up(out[0])
    for batch in out[1:]:
        made.retry(batch, OOPS, 0.0, in_doubt=True)
    for _ in out:
        made.arrived(0)
    (asked,) = flying(made)
    assert (asked, asked.identity.epoch, asked.sequence) == (out[1], 0, 2)
    assert flying(made) == [], "one at a time"
    made.arrived(0)
    made.out_of_order(asked, OOPS, 0.0)
    (begun,) = flying(made)
    assert (begun, begun.identity.epoch, begun.sequence) == (out[1], 1, 0)


def test_a_refusal_does_not_end_the_doubt_about_earlier_tries() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    out = five(made, queue)
    made.give_up(out[0])
    for batch in out[1:]:
        made.retry(batch, OOPS, 0.0, in_doubt=True)
    for _ in out:
        made.arrived(0)
    (asked,) = flying(made)
    made.arrived(0)
    made.retry(asked, OOPS, 0.0, in_doubt=False)  # from another node, not the leader
    (asked,) = flying(made)
    assert (asked.identity.epoch, asked.sequence) == (0, 2)


def test_after_the_last_epoch_comes_another_id() -> None:
    made, topic = accumulator()
    made.identified(ProducerIdentity(7, PRODUCER_EPOCH_MAX))
    (queue,) = topic.queues
    put(made, queue, 1)
    (batch,) = flying(made)
    made.arrived(0)
    made.out_of_order(batch, OOPS, 0.0)
    assert flying(made) == []
    assert made.identity is None
    made.identified(ProducerIdentity(8, 0))
    assert [(b.identity, b.sequence) for b in flying(made)] == [(ProducerIdentity(8, 0), 0)]


def test_an_id_that_was_replaced_is_not_forgotten_again() -> None:
    made, topic = accumulator(2)
    put(made, topic.queues[0], 1)
    put(made, topic.queues[1], 2)
    one, other = flying(made)
    made.arrived(0)
    made.forget_identity(one.identity)
    made.out_of_order(one, OOPS, 0.0)
    assert made.identity is None
    made.identified(ProducerIdentity(8, 0))
    made.forget_identity(other.identity)
    made.out_of_order(other, OOPS, 0.0)
    assert {(b.identity, b.sequence) for b in flying(made)} == {(ProducerIdentity(8, 0), 0)}


def test_sequences_wrap() -> None:
    made, topic = accumulator()
    (queue,) = topic.queues
    put(made, queue, 0)
    acknowledge(made, made.due(5.0))
    queue.next_sequence = 2**31 - 2
    put(made, queue, 1, 2, 3)
    acknowledge(made, made.due(5.0))
    put(made, queue, 4)
    assert [batch.sequence for batch in flying(made)] == [1]


# --- halves and ends ----------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_goes_in_halves_with_the_same_numbers() -> None:
    made, topic = accumulator(batch_size_bytes=1_000, codec=Codec.ZSTD)
    (queue,) = topic.queues
    put(made, queue, 0, 1, 2, 3, 4)
    (batch,) = flying(made)
    made.arrived(0)
    put(made, queue, 5)
    halves = made.split(batch)
    assert [(half.tickets, half.timestamps) for half in halves] == [
        ([0, 1], [1_000, 1_001]),
        ([2, 3, 4], [1_002, 1_003, 1_004]),
    ]
    (first,) = flying(made)
    made.arrived(0)
    again = made.split(first)
    assert [half.tickets for half in again] == [[0], [1]]
    seen = []
    while not made.is_idle:
        for out in flying(made):
            encoded = out.encoded(made.codec)
            ((position, header),) = batches(encoded)
            values = [each.value for each in records(encoded, position, header)]
            assert values == [b"%d.........." % ticket for ticket in out.tickets]
            seen.append((out.sequence, out.tickets))
            made.arrived(0)
            made.acknowledged(out)
    assert seen == [(0, [0]), (1, [1]), (2, [2, 3, 4]), (5, [5])]
    assert made.size_bytes == 0


def test_what_expires_is_told_once_and_the_rest_begins_anew() -> None:
    made, topic = accumulator(delivery_timeout_s=100.0)
    (queue,) = topic.queues
    out = five(made, queue)
    put(made, queue, 10, now=50.0)
    over, next_at = made.expired(99.9)
    assert (over, next_at) == ([], 100.0)
    over, next_at = made.expired(100.0)
    assert [batch.tickets for batch in over] == [[0], [1], [2], [3], [4], [5]]
    assert next_at == 150.0
    assert made.expired(100.0)[0] == []
    for batch in out:  # their answers still show how far the numbers are
        made.arrived(0)
        made.acknowledged(batch)
    (last,) = flying(made, 110.0)
    assert (last.tickets, last.identity.epoch, last.sequence) == ([10], 0, 6)


def test_a_record_that_waited_before_it_was_added_expires_sooner_than_those_before_it() -> None:
    made, topic = accumulator(delivery_timeout_s=100.0, batch_size_bytes=1)
    (queue,) = topic.queues
    put(made, queue, 1, now=50.0)
    put(made, queue, 2, now=50.0)
    made.began(queue, 20.0)
    over, next_at = made.expired(120.0)
    assert [batch.tickets for batch in over] == [[2]]
    assert next_at == 150.0


def test_what_expires_on_its_way_and_is_not_written_leaves_a_gap() -> None:
    made, topic = accumulator(delivery_timeout_s=100.0)
    (queue,) = topic.queues
    put(made, queue, 1)
    (batch,) = flying(made)
    put(made, queue, 2, now=50.0)
    assert made.expired(100.0)[0] == [batch]
    made.arrived(0)
    made.retry(batch, OOPS, 0.0, in_doubt=True)
    (last,) = flying(made, 110.0)
    assert (last.tickets, last.identity.epoch, last.sequence) == ([2], 1, 0)


# --- chaos --------------------------------------------------------------------------------------------------


class Chaos:
    """A producer's accumulator, a cluster of two nodes, and bad luck."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made, self.topic = accumulator(
            3, linger_s=1.0, delivery_timeout_s=60.0, max_in_flight=self.random.randint(1, 5)
        )
        self.logs = [Log() for _ in self.topic.queues]
        self.flying: dict[int, list[list[tuple[Batch, ProducerIdentity, int, list[int]]]]] = {0: [], 1: []}
        self.now = 0.0
        self.tickets = 0
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.over: set[int] = set()

    def poisoned(self, tickets: Iterable[int]) -> bool:
        return any(ticket % 41 == 17 for ticket in tickets)

    def put(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            put(self.made, self.random.choice(self.topic.queues), self.tickets, now=self.now, size=30)
            self.tickets += 1

    def send(self) -> None:
        for request in self.made.due(self.now).requests:
            for batch in request.batches:
                assert batch.queue.in_flight.count(batch) == 1
            self.flying[request.node].append(
                [(batch, batch.identity, batch.sequence, batch.tickets) for batch in request.batches]
            )

    def expire(self) -> None:
        for batch in self.made.expired(self.now)[0]:
            self.over.update(batch.tickets)

    def answer(self, node: int, luck: float) -> None:
        """The broker takes the oldest request; the answer arrives, or the connection breaks, with whatever
        was read by then carried out."""
        if not self.flying[node]:
            return
        if self.random.random() < luck:
            self.one(self.flying[node].pop(0), node, luck)
            return
        read = self.random.randint(0, len(self.flying[node]))
        broken, self.flying[node] = self.flying[node], []
        for request in broken[:read]:
            for batch, identity, sequence, tickets in request:
                self.write(batch, identity, sequence, tickets, node, luck)
        for request in self.random.sample(broken, len(broken)):
            self.made.arrived(node)
            for batch, *_ in request:
                self.made.retry(batch, OOPS, self.now + 1, in_doubt=True)

    def one(
        self, request: list[tuple[Batch, ProducerIdentity, int, list[int]]], node: int, luck: float
    ) -> None:
        self.made.arrived(node)
        for batch, identity, sequence, tickets in request:
            code = self.write(batch, identity, sequence, tickets, node, luck)
            if code is ErrorCode.NONE:
                self.made.acknowledged(batch)
                if not batch.done:
                    self.acknowledged.update(tickets)
            elif code is ErrorCode.MESSAGE_TOO_LARGE:
                self.made.split(batch)
            elif code is ErrorCode.INVALID_RECORD:
                self.made.give_up(batch)
                if not batch.done:
                    self.refused.update(tickets)
            elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.made.out_of_order(batch, OOPS, self.now + 1)
            else:
                assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER, code
                self.made.retry(batch, OOPS, self.now + 1, in_doubt=False)

    def write(
        self,
        batch: Batch,
        identity: ProducerIdentity,
        sequence: int,
        tickets: list[int],
        node: int,
        luck: float,
    ) -> ErrorCode:
        if node != batch.queue.leader or self.random.random() > luck:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(tickets) > 3:
            return ErrorCode.MESSAGE_TOO_LARGE
        if self.poisoned(tickets):
            return ErrorCode.INVALID_RECORD
        return self.logs[batch.where.partition].write(identity, sequence, tickets)

    def step(self) -> None:
        match self.random.randint(0, 9):
            case 0 | 1 | 2:
                self.put()
            case 3 | 4:
                self.send()
            case 5 | 6:
                self.answer(self.random.randint(0, 1), luck=0.8)
            case 7:
                self.now += self.random.choice((0.5, 2.0, 2.0, 20.0))
            case 8:
                self.expire()
            case 9:
                if self.random.random() < 0.3:
                    self.random.choice(self.topic.queues).leader = self.random.randint(0, 1)

    def come_to_an_end(self) -> None:
        for _ in range(1_000):
            self.now += 2.0
            self.send()
            for node in self.flying:
                while self.flying[node]:
                    self.answer(node, luck=1.1)
            if self.made.is_idle:
                return
        raise AssertionError(f"not settled: {list(self.made.unsettled())}")


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_every_record_is_written_once_and_in_order_whatever_happens(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(chaos.random.randint(20, 300)):
        chaos.step()
    chaos.come_to_an_end()
    written = [ticket for log in chaos.logs for ticket in log.records]
    assert all(log.records == sorted(log.records) for log in chaos.logs), "in order"
    assert len(set(written)) == len(written), "once"
    assert chaos.acknowledged <= set(written)
    assert not chaos.refused & set(written)
    assert chaos.acknowledged | chaos.refused | chaos.over == set(range(chaos.tickets)), "all are settled"
    assert not chaos.acknowledged & (chaos.refused | chaos.over), "once"
    assert chaos.made.size_bytes == 0
