"""One shard, stepped as its host does. Its partitions take every marker at once or when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from muster.coordinator.base.step import Step
from muster.coordinator.transactions.adding import AddPartitions, VerifyPartitions
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.ending import End, Ended
from muster.coordinator.transactions.events import MarkersDue
from muster.coordinator.transactions.shard import TransactionShard
from muster.coordinator.transactions.transaction import TopicPartition, Transaction
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import InitProducerIdRequest

START_MS = 1_000_000
FIRST_PRODUCER_ID = 100
TIMEOUT_MS = 60_000
ID = "etl-1"
T0, T1 = ("t", 0), ("t", 1)


class Core:
    """A shard with its store. After every step, a second shard is loaded from the rows and must agree."""

    def __init__(self, config: TransactionConfig | None = None, *, version: int = 2) -> None:
        """`version`: the level of the feature transaction.version."""
        self.config = config or TransactionConfig()
        self.version = version
        ids = count(FIRST_PRODUCER_ID)
        self.new_id: Callable[[], int] = lambda: next(ids)
        self.now_ms = START_MS
        self.rows: dict[bytes, bytes] = {}
        self.owed: list[MarkersDue] = []
        """Markers that are due, oldest first."""
        self.events: list[Any] = []
        self.shard = self._made()

    def _made(self) -> TransactionShard:
        return TransactionShard(0, self.config, new_id=lambda: self.new_id(), version=lambda: self.version)

    def step(self, act: Callable[[Step], None]) -> Any:
        """Run the step and return its response, if any."""
        step = Step(self.now_ms, ticket=1)
        act(step)
        for key, value in step.rows:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.events += step.events
        self.owed += [each for each in step.events if isinstance(each, MarkersDue)]
        twin = self._made()
        for key, value in self.rows.items():
            twin.apply(key, value)
        assert twin.durable() == self.shard.durable()
        return step.replies[0].response if step.replies else None

    def ask(self, operation: Callable[[Any, Step], None], request: Any) -> Any:
        """Return the response. Raises the KafkaError of a refusal."""
        answer = self.step(lambda step: operation(request, step))
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    # --- requests -------------------------------------------------------------------------------------------

    def start(
        self, had: tuple[int, int] = (-1, -1), *, transactional_id: str = ID, timeout_ms: int = TIMEOUT_MS
    ) -> tuple[int, int]:
        """Send InitProducerId; return the producer id and epoch."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=had[0],
            producer_epoch=had[1],
        )
        told = self.ask(self.shard.start, request)
        return told.producer_id, told.producer_epoch

    def add(self, producer: tuple[int, int], *partitions: TopicPartition, version: int = 0) -> None:
        request = AddPartitions(ID, *producer, frozenset(partitions), version)
        assert self.ask(self.shard.add_partitions, request) is None

    def verify(
        self, producer: tuple[int, int], *partitions: TopicPartition
    ) -> dict[TopicPartition, ErrorCode]:
        found = self.ask(self.shard.verify_partitions, VerifyPartitions(ID, *producer, frozenset(partitions)))
        return dict(found)

    def end(self, producer: tuple[int, int], *, commits: bool, raises_epoch: bool = False) -> tuple[int, int]:
        """Send EndTxn; return the producer id and epoch of the next transaction."""
        ended: Ended = self.ask(self.shard.end, End(ID, *producer, commits, raises_epoch))
        return ended.producer_id, ended.producer_epoch

    # --- the rest -------------------------------------------------------------------------------------------

    def mark(self, *partitions: TopicPartition) -> None:
        """Report that the oldest due markers have reached these partitions, or all of theirs."""
        due = self.owed[0] if partitions else self.owed.pop(0)
        self.step(
            lambda step: self.shard.marked(
                due.transactional_id, due.producer_id, due.producer_epoch, partitions or due.partitions, step
            )
        )

    def mark_all(self) -> None:
        while self.owed:
            self.mark()

    def pass_time(self, by_ms: int) -> None:
        """Advance the clock, running everything due on the way."""
        until_ms = self.now_ms + by_ms
        while (at_ms := self.shard.next_deadline()) is not None and at_ms <= until_ms:
            self.now_ms = max(at_ms, self.now_ms)
            self.step(self.shard.advance)
        self.now_ms = until_ms

    def reload(self) -> None:
        """Have another coordinator take over."""
        self.shard = self._made()
        for key, value in self.rows.items():
            self.shard.apply(key, value)
        self.owed.clear()
        self.step(self.shard.loaded)

    def code(self, act: Callable[[], object]) -> ErrorCode:
        """Return the error code that the request is refused with, or NONE."""
        before = self.shard.durable()
        try:
            act()
        except KafkaError as refused:
            if refused.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                assert self.shard.durable() == before
            return refused.code
        return ErrorCode.NONE

    @property
    def transaction(self) -> Transaction:
        return self.shard.transactions[ID]

    @property
    def state(self) -> str:
        return self.transaction.state.wire_name
