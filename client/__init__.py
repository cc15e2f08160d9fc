"""The asyncio client: Consumer, Producer and Admin for any Kafka broker.

    async with Consumer("127.0.0.1:9092", group_id="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)

The names below are public; each is imported on first use. The layers beneath (cluster connections, fetcher,
membership) take deadlines on the running loop's clock.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from muster.client.admin.acls import Acl as Acl
    from muster.client.admin.acls import AclFilter as AclFilter
    from muster.client.admin.acls import AclOperation as AclOperation
    from muster.client.admin.acls import AclPermission as AclPermission
    from muster.client.admin.acls import AclResourceType as AclResourceType
    from muster.client.admin.acls import PatternType as PatternType
    from muster.client.admin.answers import Outcomes as Outcomes
    from muster.client.admin.client import Admin as Admin
    from muster.client.admin.cluster import ClusterDescription as ClusterDescription
    from muster.client.admin.cluster import Node as Node
    from muster.client.admin.configs import Append as Append
    from muster.client.admin.configs import Config as Config
    from muster.client.admin.configs import ConfigResource as ConfigResource
    from muster.client.admin.configs import ConfigSource as ConfigSource
    from muster.client.admin.configs import ConfigSynonym as ConfigSynonym
    from muster.client.admin.configs import ResourceType as ResourceType
    from muster.client.admin.configs import Subtract as Subtract
    from muster.client.admin.groups import GroupDescription as GroupDescription
    from muster.client.admin.groups import GroupListing as GroupListing
    from muster.client.admin.groups import MemberDescription as MemberDescription
    from muster.client.admin.hanging import HangingTransaction as HangingTransaction
    from muster.client.admin.hanging import HeldBack as HeldBack
    from muster.client.admin.hanging import HeldBackGroup as HeldBackGroup
    from muster.client.admin.offsets import EARLIEST as EARLIEST
    from muster.client.admin.offsets import HIGH_WATERMARK as HIGH_WATERMARK
    from muster.client.admin.offsets import LATEST as LATEST
    from muster.client.admin.offsets import MAX_TIMESTAMP as MAX_TIMESTAMP
    from muster.client.admin.offsets import READ_COMMITTED as READ_COMMITTED
    from muster.client.admin.offsets import READ_UNCOMMITTED as READ_UNCOMMITTED
    from muster.client.admin.quotas import QuotaEntity as QuotaEntity
    from muster.client.admin.quotas import QuotaName as QuotaName
    from muster.client.admin.replicas import ElectionType as ElectionType
    from muster.client.admin.replicas import LogDir as LogDir
    from muster.client.admin.replicas import ProducerState as ProducerState
    from muster.client.admin.replicas import ReplicaDescription as ReplicaDescription
    from muster.client.admin.reset import At as At
    from muster.client.admin.reset import By as By
    from muster.client.admin.reset import Current as Current
    from muster.client.admin.reset import Earliest as Earliest
    from muster.client.admin.reset import Latest as Latest
    from muster.client.admin.reset import Offset as Offset
    from muster.client.admin.reset import PerPartition as PerPartition
    from muster.client.admin.reset import ResetOffset as ResetOffset
    from muster.client.admin.reset import Shift as Shift
    from muster.client.admin.topics import CreatedTopic as CreatedTopic
    from muster.client.admin.topics import NewPartitions as NewPartitions
    from muster.client.admin.topics import NewTopic as NewTopic
    from muster.client.admin.topics import PartitionDescription as PartitionDescription
    from muster.client.admin.topics import TopicDescription as TopicDescription
    from muster.client.admin.transactions import FencedProducer as FencedProducer
    from muster.client.admin.transactions import TransactionDescription as TransactionDescription
    from muster.client.admin.transactions import TransactionListing as TransactionListing
    from muster.client.consume.health import Health as Health
    from muster.client.consume.scope import AssignmentScope as AssignmentScope
    from muster.client.consume.subscription import SubscriptionPattern as SubscriptionPattern
    from muster.client.consumer import Consumer as Consumer
    from muster.client.consumer import RebalanceListener as RebalanceListener
    from muster.client.errors import AuthenticationFailed as AuthenticationFailed
    from muster.client.errors import BufferFull as BufferFull
    from muster.client.errors import ClientError as ClientError
    from muster.client.errors import Closed as Closed
    from muster.client.errors import ConcurrentUse as ConcurrentUse
    from muster.client.errors import ConnectionLost as ConnectionLost
    from muster.client.errors import DeliveryTimedOut as DeliveryTimedOut
    from muster.client.errors import DeserializationFailed as DeserializationFailed
    from muster.client.errors import NoOffset as NoOffset
    from muster.client.errors import NotKafka as NotKafka
    from muster.client.errors import NoTransaction as NoTransaction
    from muster.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from muster.client.errors import ProducerFenced as ProducerFenced
    from muster.client.errors import RequestTimedOut as RequestTimedOut
    from muster.client.errors import TimedOut as TimedOut
    from muster.client.errors import TransactionAborted as TransactionAborted
    from muster.client.errors import TruncationDetected as TruncationDetected
    from muster.client.errors import Unreachable as Unreachable
    from muster.client.fetch.records import Batch as Batch
    from muster.client.fetch.records import ConsumerRecord as ConsumerRecord
    from muster.client.group.group_metadata import GroupMetadata as GroupMetadata
    from muster.client.group.outcomes import CommitFailed as CommitFailed
    from muster.client.group.outcomes import CommitResult as CommitResult
    from muster.client.group.outcomes import Committed as Committed
    from muster.client.group.outcomes import Retry as Retry
    from muster.client.group.outcomes import StaleOwner as StaleOwner
    from muster.client.partitions import OffsetAndMetadata as OffsetAndMetadata
    from muster.client.partitions import OffsetAndTimestamp as OffsetAndTimestamp
    from muster.client.partitions import TopicPartition as TopicPartition
    from muster.client.produce.partitioner import Partitioner as Partitioner
    from muster.client.produce.transaction import Transaction as Transaction
    from muster.client.producer import Producer as Producer
    from muster.client.producer import RecordFuture as RecordFuture
    from muster.client.producer import RecordMetadata as RecordMetadata
    from muster.client.security.client_credentials import ClientCredentials as ClientCredentials
    from muster.protocol.errors import ErrorCode as ErrorCode
    from muster.protocol.errors import KafkaError as KafkaError

_HOMES: Final = {
    "Acl": "admin.acls",
    "AclFilter": "admin.acls",
    "AclOperation": "admin.acls",
    "AclPermission": "admin.acls",
    "AclResourceType": "admin.acls",
    "Admin": "admin.client",
    "Append": "admin.configs",
    "AssignmentScope": "consume.scope",
    "At": "admin.reset",
    "AuthenticationFailed": "errors",
    "Batch": "fetch.records",
    "BufferFull": "errors",
    "By": "admin.reset",
    "ClientCredentials": "security.client_credentials",
    "ClientError": "errors",
    "Closed": "errors",
    "ClusterDescription": "admin.cluster",
    "CommitFailed": "group.outcomes",
    "CommitResult": "group.outcomes",
    "Committed": "group.outcomes",
    "ConcurrentUse": "errors",
    "Config": "admin.configs",
    "ConfigResource": "admin.configs",
    "ConfigSource": "admin.configs",
    "ConfigSynonym": "admin.configs",
    "ConnectionLost": "errors",
    "Consumer": "consumer",
    "ConsumerRecord": "fetch.records",
    "CreatedTopic": "admin.topics",
    "Current": "admin.reset",
    "DeliveryTimedOut": "errors",
    "DeserializationFailed": "errors",
    "EARLIEST": "admin.offsets",
    "Earliest": "admin.reset",
    "ElectionType": "admin.replicas",
    "ErrorCode": "errors",
    "FencedProducer": "admin.transactions",
    "GroupDescription": "admin.groups",
    "GroupListing": "admin.groups",
    "GroupMetadata": "group.group_metadata",
    "HIGH_WATERMARK": "admin.offsets",
    "HangingTransaction": "admin.hanging",
    "Health": "consume.health",
    "HeldBack": "admin.hanging",
    "HeldBackGroup": "admin.hanging",
    "KafkaError": "errors",
    "LATEST": "admin.offsets",
    "Latest": "admin.reset",
    "LogDir": "admin.replicas",
    "MAX_TIMESTAMP": "admin.offsets",
    "MemberDescription": "admin.groups",
    "NewPartitions": "admin.topics",
    "NewTopic": "admin.topics",
    "NoOffset": "errors",
    "NoTransaction": "errors",
    "Node": "admin.cluster",
    "NotKafka": "errors",
    "Offset": "admin.reset",
    "OffsetAndMetadata": "partitions",
    "OffsetAndTimestamp": "partitions",
    "OffsetOutOfRange": "errors",
    "Outcomes": "admin.answers",
    "PartitionDescription": "admin.topics",
    "Partitioner": "produce.partitioner",
    "PatternType": "admin.acls",
    "QuotaEntity": "admin.quotas",
    "QuotaName": "admin.quotas",
    "PerPartition": "admin.reset",
    "Producer": "producer",
    "ProducerFenced": "errors",
    "ProducerState": "admin.replicas",
    "READ_COMMITTED": "admin.offsets",
    "READ_UNCOMMITTED": "admin.offsets",
    "RebalanceListener": "consumer",
    "RecordFuture": "producer",
    "RecordMetadata": "producer",
    "ReplicaDescription": "admin.replicas",
    "RequestTimedOut": "errors",
    "ResetOffset": "admin.reset",
    "ResourceType": "admin.configs",
    "Retry": "group.outcomes",
    "Shift": "admin.reset",
    "StaleOwner": "group.outcomes",
    "SubscriptionPattern": "consume.subscription",
    "Subtract": "admin.configs",
    "TimedOut": "errors",
    "TopicDescription": "admin.topics",
    "TopicPartition": "partitions",
    "Transaction": "produce.transaction",
    "TransactionAborted": "errors",
    "TransactionDescription": "admin.transactions",
    "TransactionListing": "admin.transactions",
    "TruncationDetected": "errors",
    "Unreachable": "errors",
}


__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
