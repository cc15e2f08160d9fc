"""Bugs to plant in the brokers' handling of transactions: see `bugs`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from unittest import mock

from muster.coordinator.base.step import Step
from muster.coordinator.group import offsets, transactional_offsets
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.peers.markers import Markers
from muster.coordinator.storage.records import LogOffsetMetadata
from muster.coordinator.topics import producers
from muster.coordinator.topics.aborted import Aborted, AbortedTransaction
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.transactions.shard import TransactionShard
from muster.coordinator.transactions.states import Trigger
from muster.coordinator.transactions.transaction import Transaction


def _lose_some(markers: Markers, node_id: int, owed: Any, partition: tuple[str, int]) -> None:
    """One in twenty partitions counts as marked before the marker is sent."""
    if (owed.due.producer_epoch + partition[1]) % 20 == 0:
        markers._done(owed, [partition])
    else:
        _enqueue(markers, node_id, owed, partition)


_enqueue = Markers._enqueue


@contextlib.contextmanager
def _any_marker() -> Iterator[None]:
    """Partitions accept a marker of any epoch."""

    def check(marker: Any, **_: Any) -> None:
        pass

    with (
        mock.patch.object(producers, "check_marker", check),
        mock.patch.object(transactional_offsets, "check_marker", check),
    ):
        yield


def _nothing_undecided(log: PartitionLog) -> LogOffsetMetadata:
    """The last stable offset is always the log end offset."""
    return log.end


def _one_less(aborted: Aborted, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """If several aborted transactions lie in what is read, the last is left out."""
    found = _between(aborted, offset, end_offset)
    return found[:-1] if len(found) > 1 else found


_between = Aborted.between


def _fetch_pending(request: offsets.FetchOffsets, hard: HardState) -> Any:
    """A partition's pending offset is reported as committed."""
    response = _fetch(request, hard)
    for topic in response.topics:
        for each in topic.partitions:
            pending = hard.pending.of_partition(request.group_id, (topic.name, each.partition_index))
            for offset in pending.values():
                each.committed_offset = offset.committed.offset
                each.metadata = offset.committed.metadata
                each.error_code = 0
    return response


_fetch = offsets.fetch


def _abort_in_its_epoch(
    shard: TransactionShard, transactional_id: str, transaction: Transaction, trigger: Trigger, step: Step
) -> None:
    """A transaction that its producer does not end is aborted, and the producer may go on."""
    shard._prepare(transactional_id, transaction, transaction, 0, trigger, step)


TRANSACTION_BUGS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[object]]]] = {
    "markers-lost": partial(mock.patch.object, Markers, "_enqueue", _lose_some),
    "markers-of-any-epoch": _any_marker,
    "stable-offset-past-open": partial(mock.patch.object, PartitionLog, "_undecided", _nothing_undecided),
    "aborted-cut-early": partial(mock.patch.object, Aborted, "between", _one_less),
    "pending-offsets-shown": partial(mock.patch.object, offsets, "fetch", _fetch_pending),
    "epoch-kept-on-fence": partial(mock.patch.object, TransactionShard, "_abort", _abort_in_its_epoch),
}
