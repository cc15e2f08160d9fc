"""The transaction shards of one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.coordinator.cluster.lease import LeaseKeeper
from muster.coordinator.runtime.machine import MachineKind, Operation, Traits
from muster.coordinator.runtime.runtime import Runtime, RuntimeOptions
from muster.coordinator.storage.store import Store
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.events import MarkersDue
from muster.coordinator.transactions.shard import TransactionShard
from muster.coordinator.transactions.transaction import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError

OPERATIONS: Final[Mapping[Operation, Traits]] = MappingProxyType(
    {
        TransactionShard.verify_partitions: Traits(reads=True),
        TransactionShard.describe: Traits(reads=True),
        TransactionShard.list_transactions: Traits(reads=True),
    }
)


def transaction_kind(
    config: TransactionConfig, new_id: Callable[[], int], version: Callable[[], int]
) -> MachineKind:
    """Transaction shards with this configuration; `new_id` and `version` are those of `TransactionShard`."""
    make = partial(TransactionShard, config=config, new_id=new_id, version=version)
    return MachineKind(TRANSACTIONS, make, OPERATIONS)


class TransactionRuntime(Runtime[TransactionShard]):
    """`Runtime` of transaction shards."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        leases: LeaseKeeper,
        config: TransactionConfig,
        *,
        new_id: Callable[[], int],
        version: Callable[[], int],
        options: RuntimeOptions | None = None,
    ) -> None:
        """`new_id` and `version` are those of `TransactionShard`."""
        super().__init__(transaction_kind(config, new_id, version), store, clock, leases, options)
        self.fenced = 0
        """Requests refused because a newer producer has the transactional id (PRODUCER_FENCED)."""

    async def call(self, key: str, operation: Operation, request: Any, context: RequestContext) -> Any:
        """See `Runtime.call`."""
        try:
            return await super().call(key, operation, request, context)
        except KafkaError as error:
            self.fenced += error.code is ErrorCode.PRODUCER_FENCED
            raise

    def epoch(self, number: int) -> int | None:
        """The coordinator epoch of a shard; None if it is not here."""
        host = self._hosts.get(number)
        return None if host is None else host.epoch

    def marked(self, number: int, epoch: int, due: MarkersDue, partitions: Iterable[TopicPartition]) -> None:
        """Notify the shard, if it is still here, that these partitions have their markers or are gone."""
        host = self._hosts.get(number)
        if host is not None and host.epoch == epoch:
            done = frozenset(partitions)
            host.tell(
                lambda shard, step: shard.marked(
                    due.transactional_id, due.producer_id, due.producer_epoch, done, step
                )
            )
