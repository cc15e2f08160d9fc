"""The coordinators of transactional ids, as partition leaders and group coordinators ask them (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from muster.coordinator.peers.markers import Markers
from muster.coordinator.peers.post import Ask
from muster.coordinator.transactions.transaction import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_ASK_TIMEOUT_MS: Final = 5_000

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


class TransactionCoordinators:
    """Asks whichever broker coordinates an id."""

    def __init__(self, ask: Ask, coordinator: Callable[[str], int | None], markers: Markers) -> None:
        """`coordinator`: the node that coordinates an id, as last read. `markers` are those that this broker
        writes as a coordinator."""
        self._ask = ask
        self._coordinator = coordinator
        self._markers = markers

    def is_ending(self, transactional_id: str) -> bool:
        """Whether this broker coordinates the id, and its markers are on their way: it would refuse to add
        partitions, with CONCURRENT_TRANSACTIONS."""
        return self._markers.owes(transactional_id)

    async def pause(self, transactional_id: str, seconds: float) -> None:
        """Return when it is worth asking about an id whose transaction is being ended: in `seconds`, or as
        soon as its markers are written, if it is this broker that coordinates it."""
        await self._markers.pause(transactional_id, seconds)

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Have the id's coordinator say, or with `adds` see to it, that its transaction has these partitions:
        NONE for each, or TRANSACTION_ABORTABLE for one that it does not have.

        Raises KafkaError as the coordinator refuses (INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, ...), or if none can be asked: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, REQUEST_TIMED_OUT.
        """
        node_id = self._coordinator(transactional_id)
        if node_id is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no broker coordinates {transactional_id} right now"
            )
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        asked = _Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not adds,
            topics=[_Topic(name=name, partitions=numbers) for name, numbers in topics.items()],
        )
        response: AddPartitionsToTxnResponse = await self._ask(
            node_id,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            AddPartitionsToTxnRequest(transactions=[asked]),
            timeout_ms=_ASK_TIMEOUT_MS,
        )
        if response.error_code:
            raise _refusal(response.error_code, transactional_id)
        found = {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)  # type: ignore[call-arg]
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for code in found.values():
            if code not in (ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE):
                raise _refusal(code, transactional_id)
        return {each: found.get(each, ErrorCode.TRANSACTION_ABORTABLE) for each in partitions}


def _refusal(code: int, transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode(code),  # type: ignore[call-arg]
        f"the coordinator of {transactional_id} refuses",
    )
