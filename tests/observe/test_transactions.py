"""What is reported of transactions: counts of all, and a log line and a journal entry for those not ended by
their producer."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from muster.coordinator.base import log
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.journal.entries import TRANSACTIONS, Entry
from muster.coordinator.journal.explain import describe
from muster.coordinator.observe.transactions import Endings
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from muster.coordinator.transactions.adding import AddPartitions
from muster.coordinator.transactions.marker import Marker
from muster.coordinator.transactions.states import TransactionState, Trigger
from muster.protocol.errors import ErrorCode
from tests.support.journal import check_entry
from tests.transactions.core import FIRST_PRODUCER_ID, ID, START_MS, T0, T1, TIMEOUT_MS, Core


class Life:
    """A shard whose events are observed."""

    def __init__(self) -> None:
        self.core = Core()
        self.clock = ManualClock(START_MS)
        self.journal = Journal()
        self.endings = Endings(self.clock, Recorder(1, self.journal))
        self.lines = io.StringIO()
        log.configure("warning", "json", self.lines)

    def pass_time(self, by_ms: int) -> None:
        self.core.pass_time(by_ms)
        self.clock.advance(self.core.now_ms - self.clock.now_ms())
        self.observe()

    def observe(self) -> None:
        events, self.core.events = self.core.events, []
        self.endings.observe(7, events)

    def run(self, *, commits: bool, took_ms: int) -> None:
        """Run a transaction that its producer ends."""
        producer = self.core.start()
        self.core.add(producer, T0)
        self.pass_time(took_ms)
        self.core.end(producer, commits=commits, raises_epoch=True)
        self.core.mark_all()
        self.observe()

    def ended(self) -> dict[Trigger, int]:
        return {trigger: count for (_, trigger), count in self.endings.by_cause.items()}

    def entries(self) -> list[Entry]:
        found = self.journal.latest()
        for each in found:
            check_entry(each)
        return found

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


@pytest.fixture
def life() -> Life:
    return Life()


def test_what_producers_end_is_counted_and_nothing_else(life: Life) -> None:
    life.run(commits=True, took_ms=400)
    life.run(commits=False, took_ms=2_000)
    assert life.endings.by_cause == {
        (TransactionState.PREPARE_COMMIT, Trigger.COMMITTED): 1,
        (TransactionState.PREPARE_ABORT, Trigger.ABORTED): 1,
    }
    assert (life.endings.durations.sum, sum(life.endings.durations.counts)) == (2.4, 2)
    assert (life.entries(), life.logged()) == ([], [])


def test_one_that_timed_out_is_told(life: Life) -> None:
    producer = life.core.start()
    life.core.add(producer, T0, T1)
    life.pass_time(TIMEOUT_MS + 1)
    life.core.mark_all()
    life.observe()
    assert life.ended() == {Trigger.TIMED_OUT: 1}
    (entry,) = life.entries()
    assert (entry.type, entry.trigger, entry.shard, entry.group) == (
        "transaction_aborted",
        "timed out",
        TRANSACTIONS,
        None,
    )
    assert entry.data == {
        "transactional_id": ID,
        "producer_id": FIRST_PRODUCER_ID,
        "producer_epoch": 1,
        "partitions": 2,
        "open_ms": TIMEOUT_MS + 1,
    }
    assert describe(entry) == (
        "timed out: the transaction of etl-1 was aborted; open for 60.0 s; on 2 partitions"
    )
    (line,) = life.logged()
    told = {name: line[name] for name in ("event", "level", "why", "transactional_id", "shard", "open_ms")}
    assert told == {
        "event": "transaction aborted",
        "level": "warning",
        "why": "timed out",
        "transactional_id": ID,
        "shard": 7,
        "open_ms": TIMEOUT_MS + 1,
    }


def test_one_that_a_newer_producer_cut_short_is_told(life: Life) -> None:
    life.core.add(life.core.start(), T0)
    life.pass_time(500)
    assert life.core.code(life.core.start) is ErrorCode.CONCURRENT_TRANSACTIONS
    life.core.mark_all()
    life.observe()
    assert life.ended() == {Trigger.FENCED: 1}
    (entry,) = life.entries()
    assert (entry.trigger, entry.data["open_ms"]) == ("fenced by a newer producer", 500)


def test_an_abort_of_nothing_is_no_transaction(life: Life) -> None:
    producer = life.core.start()
    life.core.end(producer, commits=False, raises_epoch=True)
    life.observe()
    assert (life.ended(), sum(life.endings.durations.counts), life.entries()) == ({}, 0, [])


def test_ids_that_expire_are_counted(life: Life) -> None:
    life.core.start()
    life.pass_time(life.core.config.id_expiration_ms)
    assert life.endings.ids_expired == 1


def test_an_id_of_any_length_is_told_within_bounds(life: Life) -> None:
    name = "x" * 30_000
    producer = life.core.start(transactional_id=name, timeout_ms=1)
    life.core.ask(life.core.shard.add_partitions, AddPartitions(name, *producer, frozenset({T0}), 0))
    life.pass_time(10)
    (entry,) = life.entries()
    assert len(entry.data["transactional_id"]) == 1_000


def test_what_a_client_ended_past_the_coordinator_is_told(life: Life) -> None:
    context = RequestContext(1, "admin", "/10.0.0.9", 3)
    partitions = [("orders", number) for number in range(12)]
    life.endings.ended_by_client(Marker(41, 3, 0, False), partitions, context)
    assert life.endings.by_clients == 12
    (entry,) = life.entries()
    assert entry.data == {
        "producer_id": 41,
        "producer_epoch": 3,
        "committed": False,
        "partitions": [[*each] for each in partitions],
    }
    assert describe(entry) == "admin at 10.0.0.9 aborted the transaction of producer 41 on 12 partitions"
    (line,) = life.logged()
    assert (line["event"], line["client_id"], line["host"]) == (
        "transaction ended by a client",
        "admin",
        "10.0.0.9",
    )
    assert (line["partitions"][0], len(line["partitions"]), line["partitions_in_all"]) == ("orders-0", 10, 12)


def test_what_is_told_of_transactions_pushes_out_nothing_of_groups(life: Life) -> None:
    group = Entry("group_created", START_MS, 1, 3, "billing", 0)
    life.journal.add([group])
    for _ in range(150):
        life.endings.ended_by_client(Marker(41, 3, 0, False), [T0], RequestContext(1, "admin", "/h", 3))
    assert life.journal.of("billing") == [group]
    assert len(life.journal.latest(1_000)) == 101
