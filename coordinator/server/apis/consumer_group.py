"""ConsumerGroupHeartbeat, ConsumerGroupDescribe (KIP-848): passed on to the shard of the group. Where the
consumer protocol is switched off, both are refused as by Kafka with group.version=0."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.api import Api, Repeated
from muster.coordinator.server.apis.several import Turns, several
from muster.coordinator.server.names import Listed, Names, itself
from muster.coordinator.server.needs import Asking, Needs, every_topic, group, groups
from muster.coordinator.server.refusal import Each, Refusal, entry
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unserved import no_consumer_protocol
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)

_NO_EPOCHS: Final = {"group_epoch": 0, "assignment_epoch": 0}


def consumer_group_heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext, answered: Answered
) -> object:
    """Joins, leaves, or is a sign of life; the answer has the member's assignment if that has changed."""
    if not broker.features.consumer_groups:
        return no_consumer_protocol()
    if not request.group_id:  # it has no coordinator that could refuse it
        return KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    return broker.runtime.call_at_once(request.group_id, Shard.consumer_heartbeat, request, context, answered)


def _repeats(request: ConsumerGroupHeartbeatRequest, version: int, message: bytes) -> Repeated | None:
    """A member without news repeats its heartbeat byte for byte; news is sent only once."""
    news = request.subscribed_topic_names is not None or request.topic_partitions is not None
    return None if news or request.member_epoch <= 0 else Repeated()


async def consumer_group_describe(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Every requested group is in the answer once, whatever the outcome."""
    if not broker.features.consumer_groups:
        raise no_consumer_protocol()
    rights = broker.rights(context)

    async def describe(group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
        try:
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            group: ConsumerGroupDescribeResponse.DescribedGroup = await broker.runtime.call(
                group_id, Shard.describe_consumer, group_id, context
            )
        except KafkaError as error:
            return entry(
                ConsumerGroupDescribeResponse.DescribedGroup,
                context.api_version,
                error,
                group_id=group_id,
                **_NO_EPOCHS,
            )
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = rights.operations(ResourceType.GROUP, group_id)
        return group

    turns = Turns()

    async def shown(
        group: ConsumerGroupDescribeResponse.DescribedGroup,
    ) -> ConsumerGroupDescribeResponse.DescribedGroup:
        for name in _topics(group):
            await turns.next()
            if not rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                why = "a member has partitions of a topic that this client may not describe"
                hidden = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
                return entry(type(group), context.api_version, hidden, group_id=group.group_id, **_NO_EPOCHS)
        return group

    described = await several(describe, list(dict.fromkeys(request.group_ids)))
    return ConsumerGroupDescribeResponse(groups=[await shown(group) for group in described])


def _topics(group: ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    """Topics of which members have partitions, or are to get some."""
    assignments = (each for member in group.members for each in (member.assignment, member.target_assignment))
    return {each.topic_name for assignment in assignments for each in assignment.topic_partitions}


def _topic_id(partitions: ConsumerGroupHeartbeatRequest.TopicPartitions) -> UUID:
    return partitions.topic_id


def _switched_on(asking: Asking, request: object) -> KafkaError | None:
    """A client that asks for what is switched off is told so, whatever its rights."""
    return None if asking.broker.features.consumer_groups else no_consumer_protocol()


APIS: Final = (
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        consumer_group_heartbeat,
        needs=Needs(
            (_switched_on, group(Operation.READ)), every_topic(Operation.DESCRIBE, "subscribed_topic_names")
        ),
        names=Names(
            group="group_id",
            topics=(Listed("subscribed_topic_names", itself), Listed("topic_partitions", _topic_id)),
            null_is_none=True,
            members=True,
        ),
        refuse=Refusal(fields={"member_epoch": 0, "heartbeat_interval_ms": 0}),
        repeats=_repeats,
    ),
    Api(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe,
        needs=Needs((_switched_on,), groups(Operation.DESCRIBE, "group_ids")),
        names=Names(groups=Listed("group_ids", itself)),
        refuse=Refusal((Each("groups", "group_ids", itself="group_id", fields=_NO_EPOCHS),)),
    ),
)
