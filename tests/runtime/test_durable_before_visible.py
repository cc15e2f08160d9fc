"""Promise 1: what a step makes visible waits for the records it builds on, and nothing else waits."""

from __future__ import annotations

from functools import partial

from muster.coordinator.storage.store import Lease, LeaseKind
from muster.protocol.errors import ErrorCode
from tests.runtime.support import SHARD, Bench, CounterShard, code
from tests.support.facts import turns, until


def note(answered: list[str], name: str, _: object) -> None:
    answered.append(name)


NEIGHBOUR = Lease(LeaseKind.GROUP, 12)
NEIGHBOUR_GROUP = "my-group"  # shard 12


async def test_a_write_is_answered_when_it_is_durable(bench: Bench) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await turns()
    assert not write.done()
    assert bench.shard.numbers == [1]
    bench.store.let_go()
    await until(write.done)
    assert write.result() == 1


async def test_a_heartbeat_does_not_wait_for_anybodys_write(bench: Bench) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    assert await bench.ask(CounterShard.beat) == "alive"
    assert not write.done()


async def test_a_read_of_hard_state_waits_for_every_earlier_write(bench: Bench) -> None:
    bench.store.hold()
    bench.call(CounterShard.write, 1)
    await turns()  # Its transaction is under way,
    bench.call(CounterShard.write, 2)  # and this one waits for the next.
    read = bench.call(CounterShard.read)
    await turns()
    assert not read.done()
    bench.store.let_go()
    await until(read.done)
    assert read.result() == [1, 2]


async def test_a_read_is_not_held_up_by_later_writes(bench: Bench) -> None:
    read = bench.call(CounterShard.read)
    bench.store.hold()
    bench.call(CounterShard.write, 1)
    await until(read.done)
    assert read.result() == []


async def test_a_read_waits_for_its_predecessors_only(bench: Bench) -> None:
    bench.store.hold()
    first = bench.call(CounterShard.write, 1)
    read = bench.call(CounterShard.read)
    await turns()
    second = bench.call(CounterShard.write, 2)
    answered: list[str] = []
    for name, task in (("first", first), ("read", read), ("second", second)):
        task.add_done_callback(partial(note, answered, name))
    await turns()
    bench.store.let_go()
    await until(lambda: len(answered) == 3)
    assert answered == ["first", "read", "second"]
    assert read.result() == [1]


async def test_a_refusal_goes_at_once_unless_it_read_hard_state(bench: Bench) -> None:
    bench.store.hold()
    bench.call(CounterShard.write, 1)
    at_once = bench.call(CounterShard.refuse, False)
    waiting = bench.call(CounterShard.refuse, True)
    await until(at_once.done)
    await turns()
    assert not waiting.done()
    bench.store.let_go()
    await until(waiting.done)
    assert code(at_once) == code(waiting) == ErrorCode.GROUP_ID_NOT_FOUND


async def test_those_parked_are_answered_when_the_step_that_answers_them_is_durable(bench: Bench) -> None:
    parked = [bench.call(CounterShard.park) for _ in range(3)]
    await turns()
    bench.store.hold()
    wake = bench.call(CounterShard.wake)
    await turns()
    assert not any(task.done() for task in [*parked, wake])
    bench.store.let_go()
    await until(wake.done)
    await turns()
    assert [task.result() for task in parked] == ["awake"] * 3


async def test_events_are_shown_in_step_order_and_not_before_their_records(bench: Bench) -> None:
    bench.store.hold()
    bench.call(CounterShard.write, 1)
    await bench.ask(CounterShard.beat)
    assert bench.events == []  # The reply is out; the event takes its turn.
    bench.call(CounterShard.write, 2)
    await turns()
    bench.store.let_go()
    await until(lambda: len(bench.events) == 3)
    assert bench.events == ["wrote 1", "beat", "wrote 2"]


async def test_what_arrives_during_a_commit_goes_into_the_next_across_shards(bench: Bench) -> None:
    await bench.claim(NEIGHBOUR)
    await bench.runtime.loaded()
    bench.store.hold()
    bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    writes = [bench.call(CounterShard.write, number) for number in (2, 3)]
    writes.append(bench.call(CounterShard.write, 4, NEIGHBOUR_GROUP))
    await turns()
    bench.store.let_go()
    await until(lambda: all(write.done() for write in writes))
    first, second = bench.store.transactions
    assert [(append.lease.number, len(append.records)) for append in first] == [(SHARD, 1)]
    assert [(append.lease.number, len(append.records)) for append in second] == [(SHARD, 2), (12, 1)]


async def test_steps_of_one_turn_share_a_transaction(bench: Bench) -> None:
    writes = [bench.call(CounterShard.write, number) for number in range(100)]
    await until(lambda: all(write.done() for write in writes))
    assert len(bench.store.transactions) == 1


async def test_what_is_acknowledged_is_what_a_new_holder_loads(bench: Bench) -> None:
    for number in (3, 1, 2):
        await bench.ask(CounterShard.write, number)
    other = await Bench(store=bench.store).start()
    assert await other.ask(CounterShard.read) == [3, 1, 2]
    assert other.shard.versions == bench.shard.versions == [3, 3, 3]
    await other.close()
