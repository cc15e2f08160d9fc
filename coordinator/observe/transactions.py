"""How transactions end: counts all of them, and writes a log line and a journal entry for each that its
producer did not end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.histogram import Histogram
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.journal.entries import CUT, TRANSACTIONS, Member
from muster.coordinator.runtime.recorder import Recorder, short
from muster.coordinator.transactions.events import IdExpired, MarkersDue, StateChanged
from muster.coordinator.transactions.marker import Marker
from muster.coordinator.transactions.states import TransactionState, Trigger
from muster.coordinator.transactions.transaction import TopicPartition

DURATION_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds in seconds."""
_NOT_BY_ITS_PRODUCER: Final = frozenset({Trigger.TIMED_OUT, Trigger.FENCED})
_PARTITIONS_LOGGED: Final = 10
_PARTITIONS_MAX: Final = 1_000
"""Per entry."""

log: Final = Logger(part="transactions")


class Endings:
    """Takes the events of a broker's transaction shards, and the markers that clients write past their
    coordinators."""

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        self._log = log.bind(node=recorder.broker)
        self._clock = clock
        self._recorder = recorder
        self.by_cause: Counter[tuple[TransactionState, Trigger]] = Counter()
        """Number of decided transactions, by prepared state and trigger."""
        self.durations = Histogram(DURATION_BUCKETS)
        """Durations of transactions, from their first partition to their last marker."""
        self.ids_expired = 0
        """Transactional ids forgotten after transactional.id.expiration.ms without use."""
        self.by_clients = 0
        """Number of partitions on which a client ended a transaction: `ended_by_client`."""

    def observe(self, shard: int, events: Sequence[StateChanged | IdExpired | MarkersDue]) -> None:
        """Take events of durable steps, in step order."""
        empty: str | None = None
        for event in events:
            match event:
                case StateChanged(before=TransactionState.ONGOING) if event.after.is_prepared:
                    self.by_cause[event.after, event.trigger] += 1
                    if event.trigger in _NOT_BY_ITS_PRODUCER:
                        self._tell(shard, event)
                case StateChanged() if event.after.is_prepared:
                    empty = event.transactional_id  # no transaction was open: completes in the same step
                case StateChanged(trigger=Trigger.MARKED) if event.transactional_id != empty:
                    self.durations.observe(self._since_ms(event.started_ms) / 1000)
                case IdExpired():
                    self.ids_expired += 1

    def ended_by_client(
        self, marker: Marker, partitions: Sequence[TopicPartition], context: RequestContext
    ) -> None:
        """A client has written a marker to these partitions, as tools do to end a hanging transaction."""
        self.by_clients += len(partitions)
        facts: dict[str, Any] = {
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "committed": marker.committed,
        }
        host, client_id = context.client_host.lstrip("/"), short(context.client_id)
        named = [f"{topic}-{number}" for topic, number in partitions[:_PARTITIONS_LOGGED]]
        count = {"partitions_in_all": len(partitions)} if len(partitions) > _PARTITIONS_LOGGED else {}
        who = {"client_id": client_id, "host": host}
        self._log.warning("transaction ended by a client", **facts, partitions=named, **count, **who)
        data = {**facts, "partitions": [[*each] for each in partitions[:_PARTITIONS_MAX]]}
        if len(partitions) > _PARTITIONS_MAX:
            data[CUT] = {"partitions": len(partitions)}
        self._note("transaction_ended_by_client", data, member=Member("", client_id, host))

    def _tell(self, shard: int, event: StateChanged) -> None:
        facts = {
            "transactional_id": short(event.transactional_id),
            "producer_id": event.producer_id,
            "producer_epoch": event.producer_epoch,
            "partitions": event.partitions,
            "open_ms": self._since_ms(event.started_ms),
        }
        why = event.trigger.value
        self._log.warning("transaction aborted", why=why, **facts, shard=shard)
        self._note("transaction_aborted", facts, trigger=why)

    def _note(self, type: str, data: Mapping[str, Any], **more: Any) -> None:
        recorder = self._recorder
        recorder.show([recorder.of(type, self._clock.now_ms(), TRANSACTIONS, data, **more)])

    def _since_ms(self, started_ms: int) -> int:
        return max(self._clock.now_ms() - started_ms, 0)
