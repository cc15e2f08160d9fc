"""Asks the coordinators of transactional ids for partition leaders and group coordinators (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from muster.coordinator.base.log import Logger
from muster.coordinator.peers.markers import Markers
from muster.coordinator.peers.post import Ask
from muster.coordinator.storage.store import LETTER_BYTES_MAX
from muster.coordinator.transactions.transaction import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_ASK_TIMEOUT_MS: Final = 5_000
_BATCH_MAX: Final = 100
_BATCH_BYTES_MAX: Final = LETTER_BYTES_MAX // 2
"""Approximate size of several transactions. One alone may be larger."""

_log: Final = Logger(part="transactions")

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Codes = Mapping[TopicPartition, ErrorCode]


class _Asked(NamedTuple):
    """One request that waits for its coordinator's answer."""

    transaction: _Transaction
    answered: asyncio.Future[_Codes]

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        transaction = self.transaction
        topics = sum(len(each.name) + 4 * len(each.partitions) + 16 for each in transaction.topics)
        return len(transaction.transactional_id) + topics + 32


class TransactionCoordinators:
    """Asks whichever broker coordinates an id. Belongs to an event loop; `close` it.

    Another broker is asked one question at a time: requests that arrive meanwhile go into the next, so that
    many producers take few letters. A request that has waited for five seconds is refused, and no longer
    asked about.
    """

    def __init__(
        self, ask: Ask, coordinator: Callable[[str], int | None], markers: Markers, *, node_id: int
    ) -> None:
        """`coordinator` gives the node that coordinates an id, as last read. `markers` are those that this
        broker, `node_id`, writes as a coordinator."""
        self._ask = ask
        self._coordinator = coordinator
        self._markers = markers
        self._node_id = node_id
        self._queues: dict[int, list[_Asked]] = {}  # by node
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def close(self) -> None:
        """Ask nothing more; waiting requests are refused with COORDINATOR_NOT_AVAILABLE."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()

    def is_ending(self, transactional_id: str) -> bool:
        """Whether this broker coordinates the id, and its markers are on their way: it would refuse to add
        partitions, with CONCURRENT_TRANSACTIONS."""
        return self._markers.owes(transactional_id)

    async def pause(self, transactional_id: str, seconds: float) -> None:
        """Return when it is worth asking about an id whose transaction is being ended: in `seconds`, or as
        soon as its markers are written if this broker coordinates it."""
        await self._markers.pause(transactional_id, seconds)

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        adds: bool,
    ) -> _Codes:
        """Have the id's coordinator verify that its transaction has these partitions, or with `adds` add
        them. Returns NONE for each, or TRANSACTION_ABORTABLE for one that it does not have.

        Raises KafkaError if the coordinator refuses (INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, ...), or if none can be asked: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, REQUEST_TIMED_OUT.
        """
        node_id = self._coordinator(transactional_id)
        if node_id is None or self._closed:
            raise _unavailable(f"no broker coordinates {transactional_id} right now")
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        asked = _Asked(
            _Transaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                verify_only=not adds,
                topics=[_Topic(name=name, partitions=numbers) for name, numbers in topics.items()],
            ),
            asyncio.get_running_loop().create_future(),
        )
        if node_id == self._node_id:
            await self._ask_about(node_id, [asked])
        else:
            await self._ask_another(node_id, asked)
        found = await asked.answered
        return {each: found.get(each, ErrorCode.TRANSACTION_ABORTABLE) for each in partitions}

    # --- other brokers --------------------------------------------------------------------------------------

    async def _ask_another(self, node_id: int, asked: _Asked) -> None:
        """Return when the request is answered, with the next question or a later one."""
        self._queues.setdefault(node_id, []).append(asked)
        if node_id not in self._tasks:
            self._begin(node_id)
        why = f"no answer from node {node_id} within {_ASK_TIMEOUT_MS} ms"
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, why)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_ASK_TIMEOUT_MS / 1000, _refuse, asked, timed_out)
        try:
            await asked.answered
        finally:
            timer.cancel()

    def _begin(self, node_id: int) -> None:
        task = asyncio.get_running_loop().create_task(
            self._send_all(node_id), name=f"ask node {node_id} about transactions"
        )
        self._tasks[node_id] = task
        task.add_done_callback(partial(self._sent_all, node_id))

    def _sent_all(self, node_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[node_id]
        if task.cancelled():
            for asked in self._queues.pop(node_id, ()):
                _refuse(asked, _unavailable("this broker is stopping"))
            return
        if (error := task.exception()) is not None:
            _log.error("failed to ask a transaction coordinator", to=node_id, exc_info=error)
        if node_id in self._queues:
            self._begin(node_id)

    async def _send_all(self, node_id: int) -> None:
        while queue := self._queues.pop(node_id, None):
            batch, left = _first([asked for asked in queue if not asked.answered.done()])
            if left:
                self._queues[node_id] = left
            if batch:
                await self._ask_about(node_id, batch)

    async def _ask_about(self, node_id: int, batch: Sequence[_Asked]) -> None:
        """Ask one question about transactions of different ids; on return all are answered, in any case."""
        try:
            response: AddPartitionsToTxnResponse = await self._ask(
                node_id,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                AddPartitionsToTxnRequest(transactions=[each.transaction for each in batch]),
                timeout_ms=_ASK_TIMEOUT_MS,
            )
        except KafkaError as refusal:
            for asked in batch:
                _refuse(asked, KafkaError(refusal.code, refusal.why))
        else:
            for asked, outcome in zip(batch, _outcomes(batch, response), strict=True):
                if isinstance(outcome, KafkaError):
                    _refuse(asked, outcome)
                elif not asked.answered.done():
                    asked.answered.set_result(outcome)
        finally:
            for asked in batch:
                _refuse(asked, _unavailable("the question was broken off"))


def _first(queue: Sequence[_Asked]) -> tuple[list[_Asked], list[_Asked]]:
    """Split off what goes into one question, one transaction per id, since answers are told apart by id; and
    return the rest."""
    batch: list[_Asked] = []
    left: list[_Asked] = []
    ids: set[str] = set()
    size = 0
    for asked in queue:
        transactional_id = asked.transaction.transactional_id
        size += asked.size
        fits = not batch or (len(batch) < _BATCH_MAX and size <= _BATCH_BYTES_MAX)
        # A request behind another of the same id stays behind it.
        (batch if fits and transactional_id not in ids else left).append(asked)
        ids.add(transactional_id)
    return batch, left


def _outcomes(batch: Sequence[_Asked], response: AddPartitionsToTxnResponse) -> Iterator[_Codes | KafkaError]:
    """For each transaction of a question, the codes of its partitions or the refusal."""
    results = {each.transactional_id: each.topic_results for each in response.results_by_transaction}
    for asked in batch:
        transactional_id = asked.transaction.transactional_id
        if response.error_code:
            yield _refusal(response.error_code, transactional_id)
            continue
        found = {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in results.get(transactional_id, ())
            for each in topic.results_by_partition
        }
        refused = [
            code for code in found.values() if code not in (ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE)
        ]
        # Of a request with one bad partition, the others say only that they were not attempted.
        own = (code for code in refused if code is not ErrorCode.OPERATION_NOT_ATTEMPTED)
        yield _refusal(next(own, refused[0]), transactional_id) if refused else found


def _refuse(asked: _Asked, refusal: KafkaError) -> None:
    if not asked.answered.done():
        asked.answered.set_exception(refusal)
        asked.answered.exception()  # marked as retrieved: the caller may be gone


def _refusal(code: int, transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode(code),
        f"the coordinator of {transactional_id} refuses",
    )


def _unavailable(why: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
