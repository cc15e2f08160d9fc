"""The coordinator of a transactional producer, as the producer sees it: what is asked of it, and of groups
whose offsets join a transaction. Every request is repeated until it is answered for good."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from muster.client.errors import ClientError, TimedOut, may_pass, refusal
from muster.client.group.group_metadata import GroupMetadata
from muster.client.network.cluster import GROUP, TRANSACTION, Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition, grouped
from muster.client.produce.accumulator import ProducerIdentity
from muster.client.produce.sender import STILL_ENDING_S
from muster.client.produce.settings import ProducerSettings
from muster.client.produce.transaction_errors import Fate, fate_of
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError, NotInVersionError
from muster.protocol.message import Message
from muster.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

_FEATURE: Final = "transaction.version"
_LEVEL: Final = 2  # where partitions join by being written to
_LAST_BEFORE: Final = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
_LAST: Final = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}
"""The last versions of the level 2 protocol with topics by name."""


class Refused(Exception):
    """A request was refused for good."""

    def __init__(self, fate: Fate, error: KafkaError) -> None:
        super().__init__(fate, error)
        self.fate = fate
        self.error = error


class TransactionCoordinator:
    """Requests about one transactional id, from the producer that has it. All raise Refused and other
    permanent errors."""

    def __init__(self, cluster: Cluster, transactional_id: str, settings: ProducerSettings) -> None:
        self.transactional_id = transactional_id
        self.identity = ProducerIdentity(-1, -1)
        self.joins_by_writing = False
        """Whether the transaction uses the level 2 protocol."""
        self.level = 0
        """The finalized level of the cluster, as last reported by the coordinator."""
        self.last_error: Exception | None = None
        """Why the last request has not been answered for good yet."""
        self._cluster = cluster
        self._settings = settings

    @property
    def supports_joining_by_writing(self) -> bool:
        return self.level >= _LEVEL

    @property
    def produce_version_max(self) -> int:
        return self._last_versions[ApiKey.PRODUCE]

    @property
    def _last_versions(self) -> Mapping[ApiKey, int]:
        return _LAST if self.joins_by_writing else _LAST_BEFORE

    async def identify(self, until: float, what: str) -> None:
        """Get the producer's id and epoch, or the next epoch if it has one. Raises TimedOut at `until`, which
        says `what` is not done.

        The next epoch takes KIP-360: a request without id and epoch, which older coordinators know too, would
        fence a producer that has taken over meanwhile."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
        )
        response = await self._ask(request, _code, until, what=what)
        self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)

    async def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Announce these partitions."""
        topics = grouped((where, None) for where in partitions)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=name, partitions=sorted(number for number, _ in parts)
                )
                for name, parts in topics.items()
            ],
        )
        await self._ask(request, _codes_of_partitions, math.inf)

    async def add_group(self, group_id: str, until: float, what: str, check: Callable[[], None]) -> None:
        """Announce that the transaction will have offsets of this group. Raises as `commit_offsets`."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group_id,
        )
        await self._ask(request, _code, until, what=what, check=check)

    async def commit_offsets(
        self,
        group: GroupMetadata,
        places: Mapping[TopicPartition, OffsetAndMetadata],
        until: float,
        what: str,
        check: Callable[[], None],
    ) -> None:
        """Commit offsets at the coordinator of their group. Raises TimedOut at `until`, which says `what` is
        not done, and what `check` raises before another try."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id_or_member_epoch=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[
                TxnOffsetCommitRequest.Topic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequest.Partition(
                            partition_index=number,
                            committed_offset=place.offset,
                            committed_leader_epoch=place.leader_epoch,
                            committed_metadata=place.metadata,
                        )
                        for number, place in parts
                    ],
                )
                for name, parts in grouped(places.items()).items()
            ],
        )
        await self._ask(request, _codes_of_offsets, until, group_id=group.group_id, what=what, check=check)

    async def end(self, *, commit: bool) -> None:
        """End the transaction. The producer may have another id and epoch then."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        response = await self._ask(request, _code, math.inf)
        if response.producer_id >= 0:
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)

    async def _ask(
        self,
        request: Message,
        codes: Callable[[Any], Iterable[int]],
        until: float,
        *,
        group_id: str | None = None,
        what: str = "",
        check: Callable[[], None] | None = None,
    ) -> Any:
        """The successful response of the transaction coordinator, or of a group's. Raises Refused, other
        permanent errors, TimedOut at `until`, and what `check` raises before another try."""
        key_type, key = (TRANSACTION, self.transactional_id) if group_id is None else (GROUP, group_id)
        assert request.__schema__.api_key is not None
        api_key = ApiKey(request.__schema__.api_key)
        cluster, tries, is_first = self._cluster, self._cluster.tries(), True
        while True:
            pause_s = None
            attempt_until = min(until, deadline(self._settings.request_timeout_ms / 1000))
            try:
                with tries:
                    node = await cluster.coordinator(key, attempt_until, key_type=key_type)
                # Before the call: there may be no connection after it, which must not cost the answer.
                connection = await cluster.connection(node, attempt_until)
                answer = await cluster.call(
                    request, attempt_until, node=node, last_version=self._last_versions.get(api_key)
                )
                if group_id is None:
                    self.level = connection.features.get(_FEATURE, 0)
                code = next(iter(codes(answer)), 0)
                if not code:
                    self.last_error = None
                    return answer
                told = refusal(code, about=self._about(api_key, group_id))
                fate = fate_of(api_key, told.code)
                if fate not in (Fate.AGAIN, Fate.ELSEWHERE):
                    raise Refused(fate, self._worded(told))
                if fate is Fate.ELSEWHERE:
                    cluster.forget_coordinator(key, key_type=key_type)
                if told.code is ErrorCode.CONCURRENT_TRANSACTIONS and is_first:
                    pause_s = STILL_ENDING_S
                error: ClientError | KafkaError = told
            except KafkaError as refused:  # by the broker asked for the coordinator, or for lack of a version
                if isinstance(refused.__cause__, NotInVersionError):  # what KIP-360 or KIP-447 added
                    about = self._about(api_key, group_id)
                    why = f"{about}: this needs Apache Kafka 2.5 or later ({refused.why})"
                    raise Refused(fate_of(api_key, refused.code), KafkaError(refused.code, why)) from None
                if not may_pass(refused.code):
                    raise Refused(fate_of(ApiKey.FIND_COORDINATOR, refused.code), refused) from None
                error = refused
            except ClientError as failed:
                if cluster.is_final(failed):
                    raise
                cluster.forget_coordinator(key, key_type=key_type)
                error = failed
            self.last_error = error
            backoff_s, is_first = tries.again(), False
            pause_s = backoff_s if pause_s is None else pause_s
            if deadline(pause_s) >= until:
                raise TimedOut(
                    f"{what} within max_block_ms ({self._settings.max_block_ms}): {error}"
                ) from error
            await asyncio.sleep(pause_s)
            if check is not None:
                check()

    def _about(self, api_key: ApiKey, group_id: str | None) -> str:
        about = f"transactional_id {self.transactional_id}, {api_key.name}"
        return about if group_id is None else f"{about} for group {group_id}"

    def _worded(self, error: KafkaError) -> KafkaError:
        """The error, with what to do about it."""
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            asked = self._settings.transaction_timeout_ms
            return KafkaError(
                error.code,
                f"transaction_timeout_ms ({asked}): the broker allows less (transaction.max.timeout.ms)",
            )
        return error


def _code(answer: Any) -> list[int]:
    return [answer.error_code]


def _codes_of_partitions(answer: Any) -> list[int]:
    """The error codes, the informative ones first."""
    found = {
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    return sorted(found - {0}, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)


def _codes_of_offsets(answer: Any) -> list[int]:
    """The error codes, retriable ones last."""
    found = {each.error_code for topic in answer.topics for each in topic.partitions} - {0}
    return sorted(found, key=lambda code: refusal(code).code.retriable)
