"""Brokers with transactions to report: coordinators of transactional ids, and leaders of partitions with
producers."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from muster.client.network.connection import Address
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.configs import DescribeConfigsResponse
from muster.protocol.messages.data import FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from muster.protocol.messages.group_admin import ListGroupsResponse
from muster.protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from muster.protocol.record_batch import Record, build
from tests.client.fake_cluster import FakeCluster
from tests.client.listeners import answer, listener, read_request, shake_hands

Described = DescribeTransactionsResponse.TransactionState
Producer = DescribeProducersResponse.ProducerState

_READ_COMMITTED: Final = 1
_VERSIONS: Final = {
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.OFFSET_FETCH: (1, 8),
    ApiKey.LIST_GROUPS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}


class Asked(NamedTuple):
    """A request to one of the nodes."""

    node: int
    request: Any


class TransactionBrokers(FakeCluster):
    """Topics with one partition. The fields determine all answers."""

    def __init__(self) -> None:
        super().__init__()
        self.versions |= {int(key): span for key, span in _VERSIONS.items()}
        self.ids: dict[int, dict[str, Described]] = defaultdict(dict)
        """The transactional ids of each coordinator."""
        self.producers: dict[str, list[Producer]] = {}
        """Producers of each topic's partition."""
        self.began_at: dict[str, int] = {}
        """Timestamp of the readable records of each topic."""
        self.max_timeouts_ms: dict[int, int] = defaultdict(lambda: 900_000)
        """transaction.max.timeout.ms of each broker."""
        self.ends: dict[str, tuple[int, int]] = {}
        """Last stable offset and log end of each topic's partition."""
        self.committed: dict[str, dict[str, int]] = {}
        """Committed offsets in each topic's partition, by group."""
        self.hidden_groups: set[str] = set()
        """Groups that are listed, but may not be described."""
        self.unknown_states: dict[int, list[str]] = defaultdict(list)
        self.codes: defaultdict[ApiKey, deque[ErrorCode]] = defaultdict(deque)
        """Error codes that the next requests of an API get."""
        self.deaf: set[ApiKey] = set()
        """The connection is closed instead of answering these."""
        self.after: dict[ApiKey, Callable[[], None]] = {}
        """Called once, after a request of this API has been answered."""
        self.seen: list[Asked] = []

    def requests_of(self, kind: type[Message]) -> list[Any]:
        return [each.request for each in self.seen if isinstance(each.request, kind)]

    def nodes_of(self, kind: type[Message]) -> list[int]:
        return [each.node for each in self.seen if isinstance(each.request, kind)]

    @asynccontextmanager
    async def listening(self, *node_ids: int) -> AsyncIterator[list[Address]]:
        async with AsyncExitStack() as stack:
            addresses = [
                await stack.enter_async_context(listener(partial(self._serve, node))) for node in node_ids
            ]
            self.nodes |= dict(zip(node_ids, addresses, strict=True))
            yield addresses

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, self.versions)
        while True:
            head, request = await read_request(reader)
            api_key = ApiKey(head.api_key)
            self.seen.append(Asked(node, request))
            if api_key in self.deaf:
                return
            answer(writer, head, self._answered(node, api_key, request))
            self.after.pop(api_key, lambda: None)()

    def found(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if request.key_type == 0:
            return super().found(request)
        keys = request.coordinator_keys or [request.key]
        nodes = {key: next((at for at, ids in self.ids.items() if key in ids), 1) for key in keys}
        Found = FindCoordinatorResponse.Coordinator
        return FindCoordinatorResponse(
            coordinators=[
                Found(key=key, node_id=node, **self.nodes[node]._asdict()) for key, node in nodes.items()
            ]
        )

    def _answered(self, node: int, api_key: ApiKey, request: Any) -> Message:
        codes = self.codes[api_key]
        code = codes.popleft() if codes else ErrorCode.NONE
        match api_key:
            case ApiKey.METADATA:
                return self.metadata(request)
            case ApiKey.FIND_COORDINATOR:
                return self.found(request)
            case ApiKey.LIST_TRANSACTIONS:
                return self._listed(node, request, code)
            case ApiKey.DESCRIBE_TRANSACTIONS:
                return self._described(node, request, code)
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=0 if code else 3)
            case ApiKey.WRITE_TXN_MARKERS:
                return _marked(request, code)
            case ApiKey.DESCRIBE_PRODUCERS:
                return self._writers(request)
            case ApiKey.DESCRIBE_CONFIGS:
                return self._configs(request, code)
            case ApiKey.FETCH:
                return self._read(request)
            case ApiKey.LIST_OFFSETS:
                return self._bounds(request)
            case ApiKey.LIST_GROUPS:
                Group = ListGroupsResponse.ListedGroup
                groups = {group for offsets in self.committed.values() for group in offsets}
                return ListGroupsResponse(
                    groups=[Group(group_id=each, protocol_type="consumer") for each in groups]
                )
        assert api_key is ApiKey.OFFSET_FETCH
        return self._offsets(request)

    # --- coordinators ---------------------------------------------------------------------------------------

    def _listed(
        self, node: int, request: ListTransactionsRequest, code: ErrorCode
    ) -> ListTransactionsResponse:
        Listed = ListTransactionsResponse.TransactionState
        return ListTransactionsResponse(
            error_code=code,
            unknown_state_filters=self.unknown_states[node],
            transaction_states=[
                Listed(
                    transactional_id=name,
                    producer_id=each.producer_id,
                    transaction_state=each.transaction_state,
                )
                for name, each in self.ids[node].items()
                if each.producer_id in (request.producer_id_filters or [each.producer_id])
            ],
        )

    def _described(
        self, node: int, request: DescribeTransactionsRequest, code: ErrorCode
    ) -> DescribeTransactionsResponse:
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribeTransactionsResponse(
            transaction_states=[
                Described(transactional_id=each, error_code=code or unknown)
                if code or each not in self.ids[node]
                else self.ids[node][each]
                for each in request.transactional_ids
            ]
        )

    # --- leaders --------------------------------------------------------------------------------------------

    def _writers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        Told = DescribeProducersResponse.TopicResponse
        return DescribeProducersResponse(
            topics=[
                Told(
                    name=topic.name,
                    partitions=[
                        Told.PartitionResponse(
                            partition_index=each, active_producers=self.producers.get(topic.name, [])
                        )
                        for each in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _read(self, request: Any) -> FetchResponse:
        Told = FetchResponse.FetchableTopicResponse
        (topic,) = request.topics
        (asked,) = topic.partitions
        at = self.began_at.get(topic.topic)
        records = None if at is None else build([Record(asked.fetch_offset, at, None, b"")])
        part = Told.PartitionData(
            partition_index=0,
            high_watermark=1,
            aborted_transactions=None,
            records=records,
            error_code=ErrorCode.OFFSET_OUT_OF_RANGE if at is None else 0,
        )
        return FetchResponse(responses=[Told(topic=topic.topic, partitions=[part])])

    def _bounds(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        Told = ListOffsetsResponse.ListOffsetsTopicResponse
        which = 0 if request.isolation_level == _READ_COMMITTED else 1
        return ListOffsetsResponse(
            topics=[
                Told(
                    name=topic.name,
                    partitions=[
                        Told.ListOffsetsPartitionResponse(
                            partition_index=0, offset=self.ends.get(topic.name, (0, 0))[which]
                        )
                    ],
                )
                for topic in request.topics
            ]
        )

    # --- groups, brokers ------------------------------------------------------------------------------------

    def _offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        Group = OffsetFetchResponse.Group
        return OffsetFetchResponse(
            groups=[
                Group(
                    group_id=group.group_id,
                    error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
                    if group.group_id in self.hidden_groups
                    else ErrorCode.NONE,
                    topics=[
                        Group.Topics(
                            name=topic,
                            partitions=[
                                Group.Topics.Partitions(
                                    partition_index=0, committed_offset=offsets[group.group_id], metadata=""
                                )
                            ],
                        )
                        for topic, offsets in self.committed.items()
                        if group.group_id in offsets
                    ],
                )
                for group in request.groups
            ]
        )

    def _configs(self, request: Any, code: ErrorCode) -> DescribeConfigsResponse:
        Result = DescribeConfigsResponse.DescribeConfigsResult
        return DescribeConfigsResponse(
            results=[
                Result(
                    error_code=code,
                    error_message=None,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[
                        Result.DescribeConfigsResourceResult(
                            name="transaction.max.timeout.ms",
                            value=str(self.max_timeouts_ms[int(each.resource_name)]),
                            read_only=False,
                            is_sensitive=False,
                        )
                    ],
                )
                for each in request.resources
            ]
        )


def _marked(request: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    Told = WriteTxnMarkersResponse.WritableTxnMarkerResult
    Topic = Told.WritableTxnMarkerTopicResult
    return WriteTxnMarkersResponse(
        markers=[
            Told(
                producer_id=marker.producer_id,
                topics=[
                    Topic(
                        name=topic.name,
                        partitions=[
                            Topic.WritableTxnMarkerPartitionResult(partition_index=each, error_code=code)
                            for each in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
