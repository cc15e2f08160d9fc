"""The transaction coordinator's rules, one at a time. Codes and epochs are Kafka's; tests/kafka compares
them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.transactions.adding import AddPartitions
from muster.coordinator.transactions.config import NEVER_MS, TransactionConfig
from muster.coordinator.transactions.ending import End
from muster.coordinator.transactions.events import IdExpired, MarkersDue, StateChanged
from muster.coordinator.transactions.shard import unknown_states
from muster.coordinator.transactions.states import TRANSITIONS, TransactionState, Trigger
from muster.coordinator.transactions.transaction import FENCING_EPOCH, LAST_EPOCH
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import ListTransactionsRequest
from tests.transactions.core import FIRST_PRODUCER_ID, ID, START_MS, T0, T1, TIMEOUT_MS, Core

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
STATE = ErrorCode.INVALID_TXN_STATE
NONE = ErrorCode.NONE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


@pytest.fixture
def core() -> Core:
    return Core()


def at_epoch(core: Core, epoch: int) -> tuple[int, int]:
    """A producer of the id in `epoch`, as if it had gone through all earlier epochs."""
    core.start()
    transaction = core.transaction._replace(producer_epoch=epoch)
    core.shard.transactions[ID] = transaction
    return transaction.producer_id, epoch


# --- InitProducerId -----------------------------------------------------------------------------------------


def test_each_producer_of_an_id_comes_in_a_new_epoch(core: Core) -> None:
    assert [core.start() for _ in range(3)] == [(FIRST_PRODUCER_ID, epoch) for epoch in range(3)]
    assert core.start(transactional_id="other") == (FIRST_PRODUCER_ID + 1, 0)


def test_a_timeout_is_replaced_when_a_producer_starts(core: Core) -> None:
    core.start(timeout_ms=1)
    core.start(timeout_ms=2)
    assert core.transaction.timeout_ms == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_bounds(core: Core, timeout_ms: int) -> None:
    code = core.code(lambda: core.start(timeout_ms=timeout_ms))
    assert code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert core.start(timeout_ms=900_000)


@pytest.mark.parametrize("had", [(5, -1), (-1, 5)])
def test_producer_id_and_epoch_go_together(core: Core, had: tuple[int, int]) -> None:
    assert core.code(lambda: core.start(had)) is ErrorCode.INVALID_REQUEST


def test_an_id_is_needed(core: Core) -> None:
    assert core.code(lambda: core.start(transactional_id="")) is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError, match="transactional id is empty"):
        core.ask(core.shard.describe, "")


def test_a_producer_continues_after_an_error(core: Core) -> None:
    first = core.start()
    second = core.start(first)
    assert second == (first[0], first[1] + 1)
    assert core.start(first) == second, "the answer was lost, and it asks again"
    third = core.start(second)
    assert core.code(lambda: core.start(first)) is FENCED
    assert core.code(lambda: core.start((third[0], third[1] + 1))) is FENCED
    assert core.code(lambda: core.start((third[0] + 1, third[1]))) is FENCED


def test_a_lost_answer_is_forgotten_by_a_new_start_and_by_a_new_coordinator(core: Core) -> None:
    first = core.start()
    core.start(first)
    core.reload()
    assert core.code(lambda: core.start(first)) is FENCED
    second = core.start()
    core.start(second)
    core.start()
    assert core.code(lambda: core.start(second)) is FENCED


def test_an_id_that_is_not_known_takes_whoever_comes(core: Core) -> None:
    assert core.start((7, 7)) == (FIRST_PRODUCER_ID, 0)


def test_a_start_aborts_what_is_under_way(core: Core) -> None:
    old = core.start()
    core.add(old, T0)
    assert core.code(core.start) is CONCURRENT
    (due,) = core.owed
    assert due == MarkersDue(ID, old[0], old[1] + 1, commits=False, partitions=frozenset({T0}), version=2)
    assert core.code(core.start) is CONCURRENT, "the marker is on its way"
    core.mark()
    assert core.state == "CompleteAbort"
    assert core.start() == (old[0], old[1] + 2)
    assert core.code(lambda: core.add(old, T0)) is FENCED
    changed = [each for each in core.events if isinstance(each, StateChanged)]
    assert Trigger.FENCED in [each.trigger for each in changed]


def test_a_producer_that_starts_anew_with_its_own_id_aborts_its_own_transaction(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0)
    assert core.code(lambda: core.start((producer[0] + 1, 0))) is FENCED
    assert core.state == "Ongoing"
    assert core.code(lambda: core.start(producer)) is CONCURRENT
    assert core.state == "PrepareAbort"


def test_after_the_last_epoch_comes_another_producer_id(core: Core) -> None:
    last = at_epoch(core, LAST_EPOCH)
    fresh = core.start(last)
    assert fresh == (FIRST_PRODUCER_ID + 1, 0)
    assert core.transaction.previous_producer_id == last[0]
    assert core.start(last) == fresh, "the answer was lost, and it asks again"
    assert core.code(lambda: core.start((last[0], LAST_EPOCH - 1))) is FENCED
    assert core.start() == (FIRST_PRODUCER_ID + 1, 1)


# --- AddPartitionsToTxn -------------------------------------------------------------------------------------


def test_the_first_partition_begins_a_transaction(core: Core) -> None:
    producer = core.start()
    core.now_ms += 5
    core.add(producer, T0)
    core.now_ms += 5
    core.add(producer, T1, T0)
    assert core.transaction.partitions == {T0, T1}
    assert core.transaction.started_ms == START_MS + 5
    assert core.transaction.last_update_ms == START_MS + 10


def test_partitions_that_are_in_it_cost_no_record(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0, T1)
    step = Step(core.now_ms, ticket=1)
    core.shard.add_partitions(_adding(producer), step)
    assert (step.rows, step.reads_hard_state) == ([], True)


def _adding(producer: tuple[int, int]) -> Any:
    return AddPartitions(ID, *producer, frozenset({T0}))


def test_who_may_not_add(core: Core) -> None:
    assert core.code(lambda: core.add((1, 0), T0)) is MAPPING
    producer = core.start()
    assert core.code(lambda: core.add((producer[0] + 1, producer[1]), T0)) is MAPPING
    assert core.code(lambda: core.add((producer[0], producer[1] + 1), T0)) is FENCED


def test_nothing_is_added_while_markers_are_on_their_way(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0)
    following = core.end(producer, commits=True, raises_epoch=True)
    assert core.code(lambda: core.add(following, T0)) is CONCURRENT
    assert core.code(lambda: core.add((99, 99), T0)) is CONCURRENT, "above all other refusals"
    core.mark()
    core.add(following, T1)
    assert core.transaction.partitions == {T1}


def test_brokers_ask_before_they_take_a_batch(core: Core) -> None:
    producer = core.start()
    assert core.verify(producer, T0) == {T0: ABORTABLE}
    core.add(producer, T0)
    assert core.verify(producer, T0, T1) == {T0: NONE, T1: ABORTABLE}
    assert core.code(lambda: core.verify((producer[0] + 1, 0), T0)) is MAPPING
    assert core.code(lambda: core.verify((producer[0], 9), T0)) is FENCED
    core.end(producer, commits=False)
    assert core.code(lambda: core.verify((producer[0], 9), T0)) is FENCED, "before the state"
    assert core.code(lambda: core.verify(producer, T0)) is CONCURRENT
    core.mark()
    assert core.verify(producer, T0) == {T0: ABORTABLE}


@pytest.mark.parametrize("version", [0, 2])
def test_who_added_last_is_kept(core: Core, version: int) -> None:
    last = at_epoch(core, LAST_EPOCH)
    core.start(last)
    assert core.transaction.previous_producer_id == last[0]
    now = (core.transaction.producer_id, core.transaction.producer_epoch)
    core.add(now, T0, version=version)
    assert (core.transaction.previous_producer_id, core.transaction.client_version) == (now[0], version)


def test_refusals_say_what_is_there(core: Core) -> None:
    def why(act: Callable[[], object]) -> str:
        with pytest.raises(KafkaError) as refused:
            act()
        return refused.value.why

    producer_id, epoch = core.start()
    assert why(lambda: core.end((producer_id, epoch), commits=True)) == (
        "there is nothing to commit: transactional id etl-1 is Empty"
    )
    core.add((producer_id, epoch), T0)
    other = f"transactional id etl-1 has producer id {producer_id}, not 7"
    over = f"transactional id etl-1 is in epoch 0 of producer id {producer_id}; epoch 9 of producer id"
    for act, text in (
        (lambda who: core.add(who, T0), f"{over} {producer_id} is over"),
        (lambda who: core.verify(who, T0), f"{over} {producer_id} is over"),
        (lambda who: core.end(who, commits=False), f"{over} {producer_id} is over"),
        (lambda who: core.end(who, commits=False, raises_epoch=True), f"{over} {producer_id} is over"),
    ):
        assert why(lambda act=act: act((producer_id, 9))) == text  # type: ignore[misc]
        assert why(lambda act=act: act((7, epoch))) == other  # type: ignore[misc]
    assert why(lambda: core.start((7, 9))) == f"{over} 7 is over"
    assert "transactional id etl-2 is not known" in why(
        lambda: core.ask(core.shard.end, End("etl-2", producer_id, epoch, True))
    )
    core.end((producer_id, epoch), commits=False)
    ending = "the transaction of etl-1 is being ended: PrepareAbort"
    assert why(core.start) == ending
    assert why(lambda: core.add((producer_id, epoch), T0)) == ending
    assert why(lambda: core.verify((producer_id, epoch), T0)) == ending
    assert why(lambda: core.end((producer_id, epoch), commits=False)) == ending


# --- EndTxn, first generation -------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_the_first_generation_keeps_its_epoch(core: Core, commits: bool) -> None:
    producer = core.start()
    core.add(producer, T0, T1)
    assert core.end(producer, commits=commits) == producer
    assert core.owed == [MarkersDue(ID, *producer, commits, frozenset({T0, T1}), 0)]
    assert core.code(lambda: core.end(producer, commits=commits)) is CONCURRENT
    core.mark(T0)
    assert core.state == ("PrepareCommit" if commits else "PrepareAbort")
    core.mark(T1)
    assert core.state == ("CompleteCommit" if commits else "CompleteAbort")
    assert core.end(producer, commits=commits) == producer, "repeated"
    assert core.code(lambda: core.end(producer, commits=not commits)) is STATE


def test_the_first_generation_has_nothing_to_end_without_partitions(core: Core) -> None:
    producer = core.start()
    for commits in (True, False):
        assert core.code(lambda commits=commits: core.end(producer, commits=commits)) is STATE  # type: ignore[misc]


@pytest.mark.parametrize("raises_epoch", [False, True])
def test_who_may_not_end(core: Core, raises_epoch: bool) -> None:
    def code(producer_id: int, epoch: int) -> ErrorCode:
        return core.code(lambda: core.end((producer_id, epoch), commits=True, raises_epoch=raises_epoch))

    assert code(1, 0) is MAPPING
    producer_id, epoch = core.start()
    core.add((producer_id, epoch), T0)
    assert code(producer_id + 1, epoch) is MAPPING
    assert code(producer_id, epoch + 1) is FENCED
    assert code(producer_id, epoch - 1) is FENCED
    core.end((producer_id, epoch), commits=True, raises_epoch=raises_epoch)
    assert code(producer_id + 1, epoch) is (CONCURRENT if raises_epoch else MAPPING)
    assert code(producer_id, epoch + 5) is (CONCURRENT if raises_epoch else FENCED)


# --- EndTxn, second generation ------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_the_second_generation_gets_a_new_epoch_with_every_end(core: Core, commits: bool) -> None:
    producer = core.start()
    core.add(producer, T0, version=2)
    following = core.end(producer, commits=commits, raises_epoch=True)
    assert following == (producer[0], producer[1] + 1)
    assert core.owed == [MarkersDue(ID, *following, commits, frozenset({T0}), 2)]
    core.mark()
    assert core.end(producer, commits=commits, raises_epoch=True) == following, "repeated"
    assert core.code(lambda: core.end(producer, commits=not commits, raises_epoch=True)) is STATE


@pytest.mark.parametrize("commits", [True, False])
def test_who_lost_its_id_to_the_first_generation_does_not_get_its_epoch(core: Core, commits: bool) -> None:
    """Its request looks like a repeat, but the transaction that ended raised no epoch."""
    former = core.start()
    producer = core.start()
    core.add(producer, T0)
    core.end(producer, commits=commits)
    core.mark()
    assert core.code(lambda: core.end(former, commits=commits, raises_epoch=True)) is FENCED
    assert core.end(producer, commits=commits) == producer, "repeated"


def test_the_second_generation_may_abort_what_is_empty(core: Core) -> None:
    producer = core.start()
    assert core.code(lambda: core.end(producer, commits=True, raises_epoch=True)) is STATE
    core.now_ms += 7
    second = core.end(producer, commits=False, raises_epoch=True)
    assert (core.state, second) == ("CompleteAbort", (producer[0], producer[1] + 1))
    assert (core.owed, core.transaction.started_ms) == ([], START_MS + 7)
    third = core.end(second, commits=False, raises_epoch=True)
    assert third == (producer[0], producer[1] + 2)
    core.add(third, T0, version=2)
    fourth = core.end(third, commits=True, raises_epoch=True)
    core.mark()
    assert core.code(lambda: core.end(fourth, commits=True, raises_epoch=True)) is STATE
    assert core.end(fourth, commits=False, raises_epoch=True) == (producer[0], fourth[1] + 1)


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_in_the_last_epoch_goes_on_with_another_producer_id(core: Core, commits: bool) -> None:
    last = at_epoch(core, LAST_EPOCH)
    core.add(last, T0, version=2)
    following = core.end(last, commits=commits, raises_epoch=True)
    assert following == (FIRST_PRODUCER_ID + 1, 0)
    (due,) = core.owed
    assert (due.producer_id, due.producer_epoch) == (last[0], FENCING_EPOCH)
    core.reload()
    assert core.owed == [due], "a new coordinator knows what the next producer id is"
    assert core.code(lambda: core.add(following, T1, version=2)) is CONCURRENT
    core.mark()
    assert (core.transaction.producer_id, core.transaction.producer_epoch) == following
    assert core.end(last, commits=commits, raises_epoch=True) == following, "repeated"
    core.add(following, T1, version=2)
    assert core.code(lambda: core.end(last, commits=commits, raises_epoch=True)) is MAPPING


@pytest.mark.parametrize("commits", [True, False])
def test_a_producer_in_the_last_epoch_is_fenced_by_the_next_one(core: Core, commits: bool) -> None:
    last = at_epoch(core, LAST_EPOCH)
    core.start()
    assert core.code(lambda: core.end(last, commits=commits, raises_epoch=True)) is FENCED
    assert core.code(lambda: core.end(last, commits=commits)) is MAPPING
    core.reload()
    assert core.code(lambda: core.end(last, commits=commits, raises_epoch=True)) is FENCED


def test_each_generation_may_end_what_the_other_began(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0, version=2)
    assert core.end(producer, commits=True) == producer
    assert core.owed[0].version == 0
    core.mark()
    core.add(producer, T0)
    assert core.end(producer, commits=True, raises_epoch=True) == (producer[0], producer[1] + 1)
    assert core.owed[0].version == 2


# --- markers ------------------------------------------------------------------------------------------------


def test_markers_of_an_earlier_end_count_for_nothing(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0)
    core.end(producer, commits=True, raises_epoch=True)
    first = core.owed[0]
    core.mark()
    following = (producer[0], producer[1] + 1)
    core.add(following, T0)
    core.end(following, commits=True, raises_epoch=True)
    core.owed.insert(0, first)
    core.mark()
    assert core.state == "PrepareCommit"
    core.mark()
    assert core.state == "CompleteCommit"


def test_a_coordinator_that_takes_over_sends_all_markers_again(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0, T1)
    core.end(producer, commits=False)
    due = list(core.owed)
    core.mark(T0)
    core.reload()
    assert core.owed == due
    core.mark()
    core.reload()
    assert (core.state, core.owed) == ("CompleteAbort", [])


# --- time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_is_aborted_after_its_timeout(version: int) -> None:
    core = Core(version=version)
    producer = core.start()
    core.pass_time(50_000)
    core.add(producer, T0)
    core.pass_time(10_000)
    core.add(producer, T1)
    core.pass_time(TIMEOUT_MS - 10_000)
    assert core.state == "Ongoing", "it counts from its first partition"
    core.pass_time(1)
    assert core.state == "PrepareAbort"
    (due,) = core.owed
    assert (due.producer_epoch, due.version) == (producer[1] + 1, 2 if version == 2 else version)
    core.mark()
    assert core.code(lambda: core.add(producer, T0)) is FENCED
    assert core.code(lambda: core.end(producer, commits=True)) is FENCED
    assert core.start()[1] == producer[1] + 2


def test_a_transaction_that_never_times_out() -> None:
    core = Core(TransactionConfig(max_timeout_ms=NEVER_MS))
    producer = core.start(timeout_ms=NEVER_MS)
    core.add(producer, T0)
    assert core.shard.next_deadline() is None


def test_a_timeout_is_not_put_off_by_a_clock_that_was_ahead(core: Core) -> None:
    """The clock of the previous coordinator, under which the transaction began."""
    producer = core.start()
    core.add(producer, T0)
    core.now_ms -= 7_200_000
    core.reload()
    core.pass_time(TIMEOUT_MS)
    assert core.state == "Ongoing"
    core.pass_time(1)
    assert core.state == "PrepareAbort"


@pytest.mark.parametrize("version", [1, 2])
def test_a_timeout_in_the_last_epoch(version: int) -> None:
    core = Core(version=version)
    last = at_epoch(core, LAST_EPOCH)
    core.add(last, T0)
    core.pass_time(TIMEOUT_MS + 1)
    assert core.owed[0].producer_epoch == FENCING_EPOCH
    core.mark()
    assert core.start() == (FIRST_PRODUCER_ID + 1, 1 if version == 2 else 0)


@pytest.mark.parametrize("epoch", [0, LAST_EPOCH])
def test_who_timed_out_cannot_come_back_under_the_first_rules(epoch: int) -> None:
    core = Core(version=1)
    producer = at_epoch(core, epoch)
    core.add(producer, T0)
    core.pass_time(TIMEOUT_MS + 1)
    core.mark()
    assert core.code(lambda: core.start(producer)) is FENCED
    following = (FIRST_PRODUCER_ID + 1, 0) if epoch == LAST_EPOCH else (producer[0], epoch + 2)
    assert core.start() == following


def test_a_timeout_waits_for_a_producer_id(core: Core) -> None:
    last = at_epoch(core, LAST_EPOCH)
    core.add(last, T0)
    ids, core.new_id = core.new_id, _none_at_hand
    core.pass_time(TIMEOUT_MS + 1)
    assert core.state == "Ongoing"
    assert core.code(lambda: core.end(last, commits=True, raises_epoch=True)) is (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    core.new_id = ids
    core.pass_time(1_000)
    assert core.state == "PrepareAbort"


def _none_at_hand() -> int:
    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id at hand")


@pytest.mark.parametrize("ended", [None, True, False])
def test_unused_ids_are_forgotten(core: Core, ended: bool | None) -> None:
    producer = core.start()
    if ended is not None:
        core.pass_time(1_000)
        core.add(producer, T0)
        core.end(producer, commits=ended)
        core.mark()
    core.pass_time(core.config.id_expiration_ms - 1)
    assert ID in core.shard.transactions
    core.pass_time(1)
    assert (core.shard.transactions, core.rows) == ({}, {})
    assert isinstance(core.events[-1], IdExpired)
    assert core.code(lambda: core.add(producer, T0)) is MAPPING
    assert core.start(producer) == (producer[0] + 1, 0)


def test_ids_with_a_transaction_are_kept() -> None:
    core = Core(TransactionConfig(max_timeout_ms=NEVER_MS, id_expiration_ms=1_000))
    producer = core.start(timeout_ms=NEVER_MS)
    core.add(producer, T0)
    core.pass_time(10_000)
    core.end(producer, commits=True)
    core.pass_time(10_000)
    assert core.state == "PrepareCommit"
    core.reload()
    core.mark()
    core.pass_time(1_000)
    assert core.shard.transactions == {}


def test_a_coordinator_that_takes_over_keeps_the_deadlines(core: Core) -> None:
    producer = core.start()
    core.add(producer, T0)
    core.reload()
    core.pass_time(TIMEOUT_MS + 1)
    assert core.state == "PrepareAbort"
    core.mark()
    core.reload()
    core.pass_time(core.config.id_expiration_ms)
    assert core.shard.transactions == {}


# --- what admins see ----------------------------------------------------------------------------------------


def test_an_id_is_described(core: Core) -> None:
    with pytest.raises(KafkaError) as refused:
        core.ask(core.shard.describe, ID)
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    producer = core.start()
    told = core.ask(core.shard.describe, ID)
    assert (told.transaction_state, told.transaction_start_time_ms, told.topics) == ("Empty", -1, [])
    core.add(producer, T1, T0, ("s", 4))
    core.end(producer, commits=True)
    core.mark(T0)
    told = core.ask(core.shard.describe, ID)
    assert (told.transaction_state, told.producer_id, told.producer_epoch) == ("PrepareCommit", *producer)
    assert (told.transaction_timeout_ms, told.transaction_start_time_ms) == (TIMEOUT_MS, START_MS)
    assert [(each.topic, each.partitions) for each in told.topics] == [("s", [4]), ("t", [1])]


def _listed(core: Core, **filters: Any) -> list[str]:
    request = ListTransactionsRequest(**{"state_filters": [], "producer_id_filters": [], **filters})
    return [each.transactional_id for each in core.ask(core.shard.list_transactions, request)]


def test_ids_are_listed(core: Core) -> None:
    assert _listed(core) == []
    producer = core.start()
    other = core.start(transactional_id="b")
    core.add(producer, T0)
    core.now_ms += 100
    assert _listed(core) == ["b", ID]
    assert _listed(core, state_filters=["Empty", "Unheard"]) == ["b"]
    assert _listed(core, state_filters=["Unheard"]) == []
    assert _listed(core, producer_id_filters=[producer[0], 12345]) == [ID]
    assert _listed(core, producer_id_filters=[other[0]], state_filters=["Ongoing"]) == []
    assert _listed(core, duration_filter=99) == ["b", ID], "as in Kafka, also where there is no transaction"
    assert _listed(core, duration_filter=100) == ["b"]
    assert unknown_states(["Empty", "Unheard", "empty", "Dead", "PrepareEpochFence"]) == ["Unheard", "empty"]


# --- the table ----------------------------------------------------------------------------------------------


def test_every_way_is_one_that_a_rule_takes() -> None:
    """Exercises both generations and collects the transitions taken."""
    taken = set()
    for version, empty, commits, raises_epoch in itertools.product(
        (1, 2), (False, True), (True, False), (False, True)
    ):
        core = Core(version=version)
        for _ in range(2):  # from Empty, then from the state that leaves
            producer = core.start()
            for _ in range(2):
                if not empty:
                    core.add(producer, T0)
                    core.add(producer, T1)
                if core.code(lambda: core.end(producer, commits=commits, raises_epoch=raises_epoch)) is NONE:  # noqa: B023
                    core.mark_all()
                    producer = (core.transaction.producer_id, core.transaction.producer_epoch)
        core.add(producer, T0)
        core.code(core.start)
        core.mark_all()
        producer = core.start()
        core.add(producer, T0)
        core.pass_time(TIMEOUT_MS + 1)
        core.mark_all()
        core.add((core.transaction.producer_id, core.transaction.producer_epoch), T0)
        core.end((core.transaction.producer_id, core.transaction.producer_epoch), commits=True)
        core.mark_all()
        now = (core.transaction.producer_id, core.transaction.producer_epoch)
        core.code(lambda: core.end(now, commits=False, raises_epoch=True))  # noqa: B023
        taken |= {
            (each.before, each.after, each.trigger) for each in core.events if isinstance(each, StateChanged)
        }
    assert taken == {(*way, trigger) for way, triggers in TRANSITIONS.items() for trigger in triggers}


def test_no_other_way_is_taken(core: Core) -> None:
    core.start()
    before = core.transaction
    after = before._replace(state=TransactionState.COMPLETE_COMMIT)
    with pytest.raises(BrokenInvariant, match="Empty to CompleteCommit"):
        core.shard._change(ID, before, after, Trigger.MARKED, Step(0))


def test_a_shard_says_what_it_has(core: Core) -> None:
    assert core.shard.contents() == {}
    producer = core.start()
    core.add(producer, T0)
    core.end(producer, commits=True)
    assert core.shard.contents() == {"transactional_ids": 1}
    assert repr(core.shard) == "<TransactionShard 0 ids=1 ending=1>"
    core.shard.unload(Step(0))
    core.shard.unheard([], Step(0))
    with pytest.raises(BrokenInvariant):
        core.shard.job_done("job", None, Step(0))
