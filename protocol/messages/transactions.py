"""Producers and transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers,
TxnOffsetCommit, DescribeProducers, DescribeTransactions, ListTransactions."""

from __future__ import annotations

import uuid
from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import ZERO_UUID, Array, Boolean, Int8, Int16, Int32, Int64, String, Uuid


@request(22, versions="0-5", flexible="2+")
class InitProducerIdRequest(Message):
    """InitProducerId v0-5: v1 no change here, v2 flexible, v3 the id and epoch the producer has, to continue
    after an error (KIP-360), v4-5 no change here. (v6, two-phase commit of KIP-939, is not stable and not
    supported.)

    A null `transactional_id` asks for an idempotent producer.
    """

    transactional_id: str | None = field(String, "0+", nullable="0+")
    transaction_timeout_ms: int = field(Int32, "0+")
    producer_id: int = field(Int64, "3+", default=-1)
    producer_epoch: int = field(Int16, "3+", default=-1)


@response(22, versions="0-5", flexible="2+")
class InitProducerIdResponse(Message):
    """InitProducerId v0-5: v1 throttling after the reply, v2 flexible, v3 no change here, v4 PRODUCER_FENCED
    possible (KIP-588), v5 TRANSACTION_ABORTABLE possible (KIP-890)."""

    throttle_time_ms: int = field(Int32, "0+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    producer_id: int = field(Int64, "0+", default=-1)
    producer_epoch: int = field(Int16, "0+")


@request(24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Message):
    """AddPartitionsToTxn v0-5 (KIP-98): v1 no change here, v2 PRODUCER_FENCED possible (KIP-588), v3
    flexible, v4 several transactions, and verifying without adding (KIP-890; v4+ is for brokers, clients stay
    at v3), v5 no change here.

    `transactions` is for v4+, the fields named `v3_and_below` are for all versions before.
    """

    @struct
    class AddPartitionsToTxnTransaction(Struct):
        @struct
        class AddPartitionsToTxnTopic(Struct):
            name: str = field(String, "0+")
            partitions: list[int] = field(Array(Int32), "0+")

        transactional_id: str = field(String, "4+")
        producer_id: int = field(Int64, "4+")
        producer_epoch: int = field(Int16, "4+")
        verify_only: bool = field(Boolean, "4+", default=False)
        topics: list[AddPartitionsToTxnTopic] = field(Array(AddPartitionsToTxnTopic), "4+")

    AddPartitionsToTxnTopic: TypeAlias = AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic  # type: ignore[misc]

    transactions: list[AddPartitionsToTxnTransaction] = field(
        Array(AddPartitionsToTxnTransaction), "4+", default_factory=list
    )
    v3_and_below_transactional_id: str = field(String, "0-3", default="")
    v3_and_below_producer_id: int = field(Int64, "0-3", default=0)
    v3_and_below_producer_epoch: int = field(Int16, "0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(
        Array(AddPartitionsToTxnTopic), "0-3", default_factory=list
    )


@response(24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Message):
    """AddPartitionsToTxn v0-5 (KIP-98): v1 throttling after the reply, v2 PRODUCER_FENCED possible (KIP-588),
    v3 flexible, v4 results by transaction and a top-level error, v5 TRANSACTION_ABORTABLE possible
    (KIP-890)."""

    @struct
    class AddPartitionsToTxnResult(Struct):
        @struct
        class AddPartitionsToTxnTopicResult(Struct):
            @struct
            class AddPartitionsToTxnPartitionResult(Struct):
                partition_index: int = field(Int32, "0+")
                partition_error_code: int = field(Int16, "0+")

            name: str = field(String, "0+")
            results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
                Array(AddPartitionsToTxnPartitionResult), "0+"
            )

        transactional_id: str = field(String, "4+")
        topic_results: list[AddPartitionsToTxnTopicResult] = field(Array(AddPartitionsToTxnTopicResult), "4+")

    AddPartitionsToTxnTopicResult: TypeAlias = AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult  # type: ignore[misc]
    AddPartitionsToTxnPartitionResult: TypeAlias = (  # type: ignore[misc]
        AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult
    )

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        Array(AddPartitionsToTxnResult), "4+", default_factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        Array(AddPartitionsToTxnTopicResult), "0-3", default_factory=list
    )


@request(25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Message):
    """AddOffsetsToTxn v0-4 (KIP-98): v1 no change here, v2 PRODUCER_FENCED possible (KIP-588), v3 flexible,
    v4 no change here."""

    transactional_id: str = field(String, "0+")
    producer_id: int = field(Int64, "0+")
    producer_epoch: int = field(Int16, "0+")
    group_id: str = field(String, "0+")


@response(25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Message):
    """AddOffsetsToTxn v0-4 (KIP-98): v1 throttling after the reply, v2 PRODUCER_FENCED possible (KIP-588), v3
    flexible, v4 TRANSACTION_ABORTABLE possible (KIP-890)."""

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)


@request(26, versions="0-5", flexible="3+")
class EndTxnRequest(Message):
    """EndTxn v0-5 (KIP-98): v1 no change here, v2 PRODUCER_FENCED possible (KIP-588), v3 flexible, v4 no
    change here, v5 every transaction ends with a new producer epoch (KIP-890)."""

    transactional_id: str = field(String, "0+")
    producer_id: int = field(Int64, "0+")
    producer_epoch: int = field(Int16, "0+")
    committed: bool = field(Boolean, "0+")


@response(26, versions="0-5", flexible="3+")
class EndTxnResponse(Message):
    """EndTxn v0-5 (KIP-98): v1 throttling after the reply, v2 PRODUCER_FENCED possible (KIP-588), v3
    flexible, v4 TRANSACTION_ABORTABLE possible, v5 the id and epoch of the next transaction (KIP-890)."""

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    producer_id: int = field(Int64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(Int16, "5+", default=-1, ignorable=True)


@request(27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Message):
    """WriteTxnMarkers v1-2 (KIP-98; Kafka 4.0 removed v0): v1 flexible, v2 the transactions' version
    (KIP-1228).

    A true `transaction_result` commits, a false one aborts.
    """

    @struct
    class WritableTxnMarker(Struct):
        @struct
        class WritableTxnMarkerTopic(Struct):
            name: str = field(String, "0+")
            partition_indexes: list[int] = field(Array(Int32), "0+")

        producer_id: int = field(Int64, "0+")
        producer_epoch: int = field(Int16, "0+")
        transaction_result: bool = field(Boolean, "0+")
        topics: list[WritableTxnMarkerTopic] = field(Array(WritableTxnMarkerTopic), "0+")
        coordinator_epoch: int = field(Int32, "0+")
        transaction_version: int = field(Int8, "2+", default=0, ignorable=True)

    WritableTxnMarkerTopic: TypeAlias = WritableTxnMarker.WritableTxnMarkerTopic  # type: ignore[misc]

    markers: list[WritableTxnMarker] = field(Array(WritableTxnMarker), "0+")


@response(27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse(Message):
    """WriteTxnMarkers v1-2 (KIP-98; Kafka 4.0 removed v0): v1 flexible, v2 no change here."""

    @struct
    class WritableTxnMarkerResult(Struct):
        @struct
        class WritableTxnMarkerTopicResult(Struct):
            @struct
            class WritableTxnMarkerPartitionResult(Struct):
                partition_index: int = field(Int32, "0+")
                error_code: int = field(Int16, "0+", default=0)

            name: str = field(String, "0+")
            partitions: list[WritableTxnMarkerPartitionResult] = field(
                Array(WritableTxnMarkerPartitionResult), "0+"
            )

        producer_id: int = field(Int64, "0+")
        topics: list[WritableTxnMarkerTopicResult] = field(Array(WritableTxnMarkerTopicResult), "0+")

    WritableTxnMarkerTopicResult: TypeAlias = WritableTxnMarkerResult.WritableTxnMarkerTopicResult  # type: ignore[misc]
    WritableTxnMarkerPartitionResult: TypeAlias = (  # type: ignore[misc]
        WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult
    )

    markers: list[WritableTxnMarkerResult] = field(Array(WritableTxnMarkerResult), "0+")


@request(28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest(Message):
    """TxnOffsetCommit v0-6 (KIP-98): v1 no change here, v2 leader epoch of the committed offset (KIP-320), v3
    flexible, member id, generation and group instance id (KIP-447), v4 no change here, v5 adds the group to
    the transaction as well (KIP-890), v6 topics by id instead of name (KIP-1319).

    A commit from outside the group has `generation_id_or_member_epoch` -1 and `member_id` "".
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")
            committed_offset: int = field(Int64, "0+")
            committed_leader_epoch: int = field(Int32, "2+", default=-1, ignorable=True)
            committed_metadata: str | None = field(String, "0+", nullable="0+")

        name: str = field(String, "0-5", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "6+", default=ZERO_UUID, ignorable=True)
        partitions: list[Partition] = field(Array(Partition), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    transactional_id: str = field(String, "0+")
    group_id: str = field(String, "0+")
    producer_id: int = field(Int64, "0+")
    producer_epoch: int = field(Int16, "0+")
    generation_id_or_member_epoch: int = field(Int32, "3+", default=-1)
    member_id: str = field(String, "3+", default="")
    group_instance_id: str | None = field(String, "3+", nullable="3+", default=None)
    topics: list[Topic] = field(Array(Topic), "0+")


@response(28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse(Message):
    """TxnOffsetCommit v0-6 (KIP-98): v1 throttling after the reply, v2 no change here, v3 flexible,
    ILLEGAL_GENERATION, FENCED_INSTANCE_ID and UNKNOWN_MEMBER_ID possible (KIP-447), v4 TRANSACTION_ABORTABLE
    possible (KIP-890), v5 no change here, v6 topics by id instead of name, GROUP_ID_NOT_FOUND,
    STALE_MEMBER_EPOCH and UNKNOWN_TOPIC_ID possible (KIP-1319).

    There is no top-level error: a refusal of the whole commit is repeated at every partition.
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)

        name: str = field(String, "0-5", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "6+", default=ZERO_UUID, ignorable=True)
        partitions: list[Partition] = field(Array(Partition), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    topics: list[Topic] = field(Array(Topic), "0+")


@request(61, versions="0", flexible="0+")
class DescribeProducersRequest(Message):
    """DescribeProducers v0 (KIP-664): which producers with a producer id write to partitions."""

    @struct
    class TopicRequest(Struct):
        name: str = field(String, "0+")
        partition_indexes: list[int] = field(Array(Int32), "0+")

    topics: list[TopicRequest] = field(Array(TopicRequest), "0+")


@response(61, versions="0", flexible="0+")
class DescribeProducersResponse(Message):
    """DescribeProducers v0 (KIP-664).

    `last_timestamp` is that of the producer's last batch, epoch ms; `coordinator_epoch` and
    `current_txn_start_offset` are -1 if there is no transaction.
    """

    @struct
    class TopicResponse(Struct):
        @struct
        class PartitionResponse(Struct):
            @struct
            class ProducerState(Struct):
                producer_id: int = field(Int64, "0+")
                producer_epoch: int = field(Int32, "0+")
                last_sequence: int = field(Int32, "0+", default=-1)
                last_timestamp: int = field(Int64, "0+", default=-1)
                coordinator_epoch: int = field(Int32, "0+")
                current_txn_start_offset: int = field(Int64, "0+", default=-1)

            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            error_message: str | None = field(String, "0+", nullable="0+", default=None)
            active_producers: list[ProducerState] = field(Array(ProducerState), "0+")

        name: str = field(String, "0+")
        partitions: list[PartitionResponse] = field(Array(PartitionResponse), "0+")

    PartitionResponse: TypeAlias = TopicResponse.PartitionResponse  # type: ignore[misc]
    ProducerState: TypeAlias = PartitionResponse.ProducerState  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    topics: list[TopicResponse] = field(Array(TopicResponse), "0+")


@request(65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Message):
    """DescribeTransactions v0 (KIP-664): the state of transactional ids."""

    transactional_ids: list[str] = field(Array(String), "0+")


@response(65, versions="0", flexible="0+")
class DescribeTransactionsResponse(Message):
    """DescribeTransactions v0 (KIP-664).

    `transaction_start_time_ms` is epoch ms, -1 for a producer that has had no transaction.
    """

    @struct
    class TransactionState(Struct):
        @struct
        class TopicData(Struct):
            topic: str = field(String, "0+")
            partitions: list[int] = field(Array(Int32), "0+")

        error_code: int = field(Int16, "0+", default=0)
        transactional_id: str = field(String, "0+")
        transaction_state: str = field(String, "0+", default="")
        transaction_timeout_ms: int = field(Int32, "0+", default=0)
        transaction_start_time_ms: int = field(Int64, "0+", default=0)
        producer_id: int = field(Int64, "0+", default=0)
        producer_epoch: int = field(Int16, "0+", default=0)
        topics: list[TopicData] = field(Array(TopicData), "0+", default_factory=list)

    TopicData: TypeAlias = TransactionState.TopicData  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    transaction_states: list[TransactionState] = field(Array(TransactionState), "0+")


@request(66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Message):
    """ListTransactions v0-2 (KIP-664): v1 filter by duration (KIP-994), v2 filter by a pattern of ids
    (KIP-1152).

    Empty filters match everything. `duration_filter` is in ms, -1 for none.
    """

    state_filters: list[str] = field(Array(String), "0+")
    producer_id_filters: list[int] = field(Array(Int64), "0+")
    duration_filter: int = field(Int64, "1+", default=-1)
    transactional_id_pattern: str | None = field(String, "2+", nullable="2+", default=None)


@response(66, versions="0-2", flexible="0+")
class ListTransactionsResponse(Message):
    """ListTransactions v0-2 (KIP-664): v1 and v2 no change here."""

    @struct
    class TransactionState(Struct):
        transactional_id: str = field(String, "0+")
        producer_id: int = field(Int64, "0+")
        transaction_state: str = field(String, "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    unknown_state_filters: list[str] = field(Array(String), "0+", default_factory=list)
    transaction_states: list[TransactionState] = field(Array(TransactionState), "0+", default_factory=list)
