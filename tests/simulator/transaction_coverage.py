"""The situations of transactions: see `coverage`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from muster.coordinator.storage.store import Append, LeaseKind
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages import coordinator_records, transaction_records
from muster.protocol.messages.coordinator_records import PendingOffsetKey
from muster.protocol.messages.transaction_records import TransactionLogKey
from muster.protocol.record_batch import peek
from tests.simulator.checkers import Exchange
from tests.simulator.expected import codes
from tests.simulator.ledger import Entry, Producing
from tests.simulator.network import Address, Link
from tests.simulator.store import Fault, Written

TRANSACTION_SITUATIONS: Final[dict[str, str]] = {
    "coordinator dies between a decision and its end": "another one completes what it had prepared",
    "commit is told by a second coordinator": "EndTxn was asked of one broker, and is answered by another",
    "decision is not stored": "the store fails, and nothing was written",
    "decision is stored and the answer lost": "the broker cannot know it",
    "store is full at a decision": "",
    "marker comes twice": "a partition has another one of the same epoch, with nothing between them",
    "marker of an old epoch is refused": "a tool's, that comes late",
    "transaction outlives its partition's leader": "its records and its marker are of several leader epochs",
    "transaction waits for the markers of the one before": "CONCURRENT_TRANSACTIONS",
    "coordinator cannot be asked by a leader": "NOT_ENOUGH_REPLICAS, as clients are to ask again",
    "leader asks about a transaction that does not have it": "what its producer added is not there any more",
    "fenced between produce and end": "EndTxn is refused, of a producer whose records were stored",
    "fenced producer writes": "its Produce is answered INVALID_PRODUCER_EPOCH",
    "fenced producer commits offsets": "its TxnOffsetCommit is answered INVALID_PRODUCER_EPOCH",
    "open transaction is fenced": "InitProducerId finds one, which is aborted",
    "timeout aborts a transaction": "nobody asked for its end",
    "timeout aborts while a produce is under way": "",
    "broker dies with a produce under way": "nobody knows whether it was kept",
    "broker dies with the end of a transaction under way": "",
    "broker dies with offsets of a transaction under way": "",
    "pending offset is resolved by a coordinator that took over": "the one that stored it is gone",
    "stable offset is waited for": "UNSTABLE_OFFSET_COMMIT",
    "offsets are committed in the name of a member": "",
    "offsets of a member that is gone are refused": "or of an old generation, or a wrong epoch",
    "reader waits for an open transaction": "there are records behind the last stable offset",
    "reader is told of several aborted transactions": "in one Fetch",
}
"""Each situation by name, with what it means."""

_PREPARED: Final = frozenset({2, 3})
_PREPARE_ABORT: Final = 3
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_NO_MEMBER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)


@dataclass(slots=True)
class _Id:
    """A transactional id."""

    open: dict[int, Exchange] = field(default_factory=dict)
    """Its unanswered requests, by exchange."""
    prepared_in: int | None = None
    """The lease epoch in which a decision was stored."""
    end_asked: bool = False
    """Whether its end was requested since it was last stored as ongoing."""
    ends_asked: dict[Producing, set[Address]] = field(default_factory=dict)
    stored: set[Producing] = field(default_factory=set)
    """Producers that have had records stored."""


class TransactionCoverage:
    """Counts the situations of one run."""

    def __init__(self, saw: Callable[[str], None]) -> None:
        self._saw = saw
        self._ids: dict[str, _Id] = defaultdict(_Id)
        self._of: dict[int, str] = {}
        """Transactional ids by exchange."""
        self._pending: dict[tuple[int, str, str, int], int] = {}
        """Lease epochs by pending offset."""

    # --- the wire -----------------------------------------------------------------------------------------

    def asked(self, exchange: Exchange) -> None:
        transactional_id = _transactional_id(exchange.request)
        if transactional_id is None:
            return
        self._of[id(exchange)] = transactional_id
        transaction = self._ids[transactional_id]
        transaction.open[id(exchange)] = exchange
        if exchange.api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID):
            transaction.end_asked = True
        if exchange.api is ApiKey.END_TXN:
            producing = exchange.request.producer_id, exchange.request.producer_epoch
            transaction.ends_asked.setdefault(producing, set()).add(exchange.link.address)

    def replied(self, exchange: Exchange, response: Any) -> None:
        transactional_id = self._forget(exchange)
        found = codes(response)
        match exchange.api:
            case ApiKey.FETCH:
                self._fetched(exchange, response)
            case ApiKey.WRITE_TXN_MARKERS:
                if found & _FENCED:
                    self._saw("marker of an old epoch is refused")
            case ApiKey.OFFSET_FETCH:
                if ErrorCode.UNSTABLE_OFFSET_COMMIT in found:
                    self._saw("stable offset is waited for")
        if transactional_id is None:
            return
        transaction = self._ids[transactional_id]
        if ErrorCode.CONCURRENT_TRANSACTIONS in found and exchange.api is not ApiKey.END_TXN:
            self._saw("transaction waits for the markers of the one before")
        match exchange.api:
            case ApiKey.PRODUCE:
                self._produced(transaction, exchange, found)
            case ApiKey.END_TXN:
                self._ended(transaction, exchange, response.error_code)
            case ApiKey.TXN_OFFSET_COMMIT:
                if found & _FENCED:
                    self._saw("fenced producer commits offsets")
                if found & _NO_MEMBER:
                    self._saw("offsets of a member that is gone are refused")
                elif found <= {ErrorCode.NONE} and exchange.request.member_id:
                    self._saw("offsets are committed in the name of a member")

    def _produced(self, transaction: _Id, exchange: Exchange, found: set[int]) -> None:
        if ErrorCode.NONE in found:
            transaction.stored.add(_producing(exchange.request))
        if ErrorCode.INVALID_PRODUCER_EPOCH in found:
            self._saw("fenced producer writes")
        if ErrorCode.NOT_ENOUGH_REPLICAS in found:
            self._saw("coordinator cannot be asked by a leader")
        if found & {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}:
            self._saw("leader asks about a transaction that does not have it")

    def _ended(self, transaction: _Id, exchange: Exchange, code: int) -> None:
        producing = exchange.request.producer_id, exchange.request.producer_epoch
        if code in _FENCED and producing in transaction.stored:
            self._saw("fenced between produce and end")
        if code == ErrorCode.NONE and transaction.ends_asked[producing] - {exchange.link.address}:
            self._saw("commit is told by a second coordinator")

    def _fetched(self, exchange: Exchange, response: Any) -> None:
        if not exchange.request.isolation_level:
            return
        for topic in response.responses:
            for each in topic.partitions:
                if each.error_code == 0 and 0 <= each.last_stable_offset < each.high_watermark:
                    self._saw("reader waits for an open transaction")
                if len(each.aborted_transactions or ()) > 1:
                    self._saw("reader is told of several aborted transactions")

    def closed(self, link: Link) -> None:
        for transaction in self._ids.values():
            for exchange in [each for each in transaction.open.values() if each.link is link]:
                self._forget(exchange)

    def _forget(self, exchange: Exchange) -> str | None:
        transactional_id = self._of.pop(id(exchange), None)
        if transactional_id is not None:
            self._ids[transactional_id].open.pop(id(exchange), None)
        return transactional_id

    def broker_dies(self, address: Address) -> None:
        """Called before a broker dies."""
        under_way = {
            exchange.api
            for transaction in self._ids.values()
            for exchange in transaction.open.values()
            if exchange.link.address == address
        }
        for api, situation in (
            (ApiKey.PRODUCE, "broker dies with a produce under way"),
            (ApiKey.END_TXN, "broker dies with the end of a transaction under way"),
            (ApiKey.TXN_OFFSET_COMMIT, "broker dies with offsets of a transaction under way"),
        ):
            if api in under_way:
                self._saw(situation)

    # --- the disk -----------------------------------------------------------------------------------------

    def written(self, written: Written) -> None:
        """Called with a record of a group or of a transactional id."""
        if written.lease.kind is LeaseKind.TRANSACTION:
            key, value = transaction_records.decode_record(written.key, written.value) or (None, None)
            if isinstance(key, TransactionLogKey) and value is not None:
                self._decided(key.transactional_id, value.transaction_status, written)  # type: ignore[attr-defined]
            return
        key, value = coordinator_records.decode_record(written.key, written.value) or (None, None)
        if isinstance(key, PendingOffsetKey):
            pending = key.producer_id, key.group, key.topic, key.partition
            if value is not None:
                self._pending[pending] = written.epoch
            elif self._pending.pop(pending, written.epoch) != written.epoch:
                self._saw("pending offset is resolved by a coordinator that took over")

    def _decided(self, transactional_id: str, status: int, written: Written) -> None:
        transaction = self._ids[transactional_id]
        if status not in _PREPARED:
            if transaction.prepared_in not in (None, written.epoch):
                self._saw("coordinator dies between a decision and its end")
            transaction.prepared_in = None
            transaction.end_asked = False
            return
        transaction.prepared_in = written.epoch
        under_way = {exchange.api for exchange in transaction.open.values()}
        if status != _PREPARE_ABORT:
            return
        if ApiKey.INIT_PRODUCER_ID in under_way:
            self._saw("open transaction is fenced")
        elif not transaction.end_asked:
            self._saw("timeout aborts a transaction")
            if ApiKey.PRODUCE in under_way:
                self._saw("timeout aborts while a produce is under way")

    def failed(self, appends: Iterable[Append], fault: Fault) -> None:
        """Called when the store did not do as asked."""
        if not any(_decides(append) for append in appends):
            return
        if fault is Fault.NOTHING_WRITTEN:
            self._saw("decision is not stored")
        elif fault is Fault.ANSWER_LOST:
            self._saw("decision is stored and the answer lost")
        elif fault is Fault.FULL:
            self._saw("store is full at a decision")

    def read(self, entries: Iterable[Entry]) -> None:
        """Read a partition of the ledger from its beginning."""
        newest: dict[int, Entry] = {}
        leaders: dict[int, set[int]] = defaultdict(set)
        for entry in entries:
            producer_id = entry.producing[0]
            before = newest.get(producer_id)
            newest[producer_id] = entry
            leaders[producer_id].add(entry.leader_epoch)
            if entry.committed is None:
                continue
            if before is not None and before.producing == entry.producing and before.committed is not None:
                self._saw("marker comes twice")
            if len(leaders.pop(producer_id)) > 1:
                self._saw("transaction outlives its partition's leader")


def _transactional_id(request: Any) -> str | None:
    for name in ("transactional_id", "v3_and_below_transactional_id"):
        if getattr(request, name, None):
            return str(getattr(request, name))
    return None


def _producing(request: Any) -> Producing:
    """The producer whose batches a Produce request holds."""
    header = peek(request.topic_data[0].partition_data[0].records)
    return header.producer_id, header.producer_epoch


def _decides(append: Append) -> bool:
    """Whether an append holds the outcome of a transaction."""
    if append.lease.kind is not LeaseKind.TRANSACTION:
        return False
    for raw_key, raw_value in append.records:
        _, value = transaction_records.decode_record(raw_key, raw_value) or (None, None)
        if value is not None and value.transaction_status in _PREPARED:
            return True
    return False
