"""Transactional producers of muster's own client, as tasks, and what readers see of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from muster.client import Admin
from muster.client.errors import NoTransaction, ProducerFenced, TransactionAborted
from muster.client.group.group_metadata import GroupMetadata
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.producer import Producer
from tests.faults.batches import Violation
from tests.faults.checker import Committed
from tests.faults.cluster.setting import (
    IN_TRANSACTIONS,
    IN_TRANSACTIONS_PARTITIONS,
    REQUEST_TIMEOUT_MS,
    TRANSACT_EVERY_S,
)
from tests.faults.cluster.working import Working
from tests.faults.transactions import checker
from tests.faults.transactions import history as told
from tests.faults.transactions.history import Batch, Place, Slot, Transaction, Transactional
from tests.interop.transactions.checker import read

_BLOCK_MS: Final = 180_000
"""Longer than any fault: what is not done by then has failed."""
_TIMEOUT_MS: Final = 600_000  # no transaction times out because of a fault
_COMMITTED_SHARE: Final = 0.7
_TAKEN_OVER_SHARE: Final = 0.1
_NAMELESS: Final = told.Producer(-1, -1)
"""The client does not reveal its producer id."""


class OurTransactor(Working):
    """Writes to all partitions and commits an offset in one transaction after the other, until it is stopped.
    Some are aborted, and some are cut off by another producer with the same id."""

    def __init__(self, name: str, bootstrap: str, dice: random.Random) -> None:
        super().__init__(name)
        self.history = Transactional(name)
        self.slot = Slot(name, IN_TRANSACTIONS, 0)
        self.served_at = 0.0
        """Start time of the last transaction that ended as intended."""
        self._bootstrap = bootstrap
        self._dice = dice
        self._given_up = ""
        """Why the last such transaction had to be aborted."""

    def says(self) -> str:
        """Its current state, for a failure."""
        last = self.history.transactions[-1] if self.history.transactions else None
        return f"{last}; given up last: {self._given_up or 'none'}; waits in {self.waits()}"

    def _producer(self) -> Producer[bytes, bytes]:
        return Producer(
            self._bootstrap,
            transactional_id=self.history.name,
            transaction_timeout_ms=_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_block_ms=_BLOCK_MS,
            delivery_timeout_ms=_BLOCK_MS,
            metadata_max_age_ms=5_000,
        )

    async def _work(self) -> None:
        async with AsyncExitStack() as closing:
            producer = await closing.enter_async_context(self._producer())
            while not self._stopped:
                if self._dice.random() < _TAKEN_OVER_SHARE:
                    producer = await self._take_over(producer, closing)
                else:
                    await self._transact(producer)
                await asyncio.sleep(TRANSACT_EVERY_S)

    async def _transact(self, producer: Producer[bytes, bytes]) -> None:
        began_at = time.monotonic()
        transaction = self._begin()
        ours = producer.transaction()
        try:
            await self._write(ours, transaction)
            commits = self._dice.random() < _COMMITTED_SHARE
            transaction.commits = commits
            await (ours.commit() if commits else ours.abort())
        except TransactionAborted as error:
            await self._give_up(ours, transaction, error)
            return
        transaction.ended = True
        self.served_at = began_at

    async def _take_over(
        self, old: Producer[bytes, bytes], closing: AsyncExitStack
    ) -> Producer[bytes, bytes]:
        """A new producer starts while the old one has an open transaction, which then cannot be committed."""
        transaction = self._begin()
        ours = old.transaction()
        try:
            await self._write(ours, transaction)
        except TransactionAborted as error:
            await self._give_up(ours, transaction, error)
            return old
        new = await closing.enter_async_context(self._producer())
        transaction.fenced = True
        try:
            await ours.commit()
        except (ProducerFenced, TransactionAborted):
            await old.close()
            return new
        raise Violation(f"{transaction.name}: its producer was fenced, and has committed it")

    async def _give_up(self, ours: Any, transaction: Transaction, error: TransactionAborted) -> None:
        """The transaction had to be aborted; if its commit reported so, it already is."""
        transaction.fenced = True
        self._given_up = f"{transaction.name}, {error!r}"
        with suppress(NoTransaction):
            await ours.abort()

    def _begin(self) -> Transaction:
        transaction = self.history.begin(_NAMELESS)
        for partition in range(IN_TRANSACTIONS_PARTITIONS):
            value = self.history.value(transaction, partition)
            transaction.batches.append(Batch((IN_TRANSACTIONS, partition), 0, (value,)))
        transaction.slots.append(self.slot)
        return transaction

    async def _write(self, ours: Any, transaction: Transaction) -> None:
        await ours.begin()
        for each in transaction.batches:
            await ours.post(IN_TRANSACTIONS, each.values[0], partition=each.place[1])
        place = TopicPartition(self.slot.topic, self.slot.partition)
        offset = OffsetAndMetadata(transaction.number, transaction.metadata)
        await ours.commit_offsets(GroupMetadata(self.slot.group, -1, "", None), {place: offset})


def check_shown(bootstrap: str, known: Mapping[str, Transactional]) -> None:
    """While producers work: check what is currently shown."""
    for place, values in _committed(bootstrap)[0].items():
        checker.check_shown(place, values, known)


async def check_whole(bootstrap: str, known: Mapping[Slot, Transactional]) -> None:
    """After they have stopped: every transaction is there completely or not at all, and none is open."""
    histories = {each.name: each for each in known.values()}
    shown, stable = await asyncio.to_thread(_committed, bootstrap)
    _, ends = await asyncio.to_thread(read, bootstrap, IN_TRANSACTIONS, "read_uncommitted")
    if stable != ends:
        raise Violation(f"{IN_TRANSACTIONS} ends at {ends}, and is stable up to {stable}")
    there = checker.check_whole(histories, shown)
    async with Admin(bootstrap) as admin:
        for slot, history in known.items():
            found = await admin.list_group_offsets(slot.group, require_stable=True)
            at = found.get(TopicPartition(slot.topic, slot.partition))
            committed = Committed(-1, "") if at is None else Committed(at.offset, at.metadata)
            numbers = {each.number for each in there if each.transactional_id == history.name}
            checker.check_offset(slot, 0, committed, history, numbers)


def _committed(bootstrap: str) -> tuple[dict[Place, list[bytes]], dict[int, int]]:
    """The committed records that librdkafka shows, and where they end."""
    seen, ends = read(bootstrap, IN_TRANSACTIONS, "read_committed")
    shown: dict[Place, list[bytes]] = {}
    for each in seen:
        shown.setdefault((IN_TRANSACTIONS, each.partition), []).append(each.value.encode())
    return shown, ends
