"""The fast twins of handlers: requests whose answer needs no coroutine, begun as their bytes arrive.

`begin(broker, request, context, answered)` returns the answer (a response or a KafkaError), LATER when
`answered` has been or will be called with it, or None for a request that the plain handler has to see; then
nothing has been done. The request is its own to change.

A member's requests are the bulk of what a coordinator is asked, and a task that is woken for each costs more
than the answer. `tests/server/test_at_once.py` holds that both ways answer alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.shard_host import Answered, Operation
from muster.coordinator.server.handlers import classic_group, offsets
from muster.protocol.messages.classic_group import JoinGroupRequest
from muster.protocol.messages.offsets import OffsetCommitRequest

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

Begin = Callable[["Broker", Any, RequestContext, Answered], object]


def _join_group(
    broker: Broker, request: JoinGroupRequest, context: RequestContext, answered: Answered
) -> object:
    def joined(answer: object) -> None:
        answered(classic_group.joined(answer, context))

    answer = broker.runtime.call_at_once(request.group_id, Shard.join, request, context, joined)
    return classic_group.joined(answer, context)


def _offset_commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext, answered: Answered
) -> object:
    """Only a commit of partitions that exist, each named once: the group's answer to it is all of the
    answer."""
    by_id = context.api_version >= offsets.COMMITTED_BY_ID_FROM
    catalogue = broker.catalogue
    named: list[tuple[str, int]] = []
    for asked in request.topics:
        topic = catalogue.by_id(asked.topic_id) if by_id else catalogue.by_name(asked.name)
        if topic is None or not asked.partitions:
            return None
        asked.name, asked.topic_id = topic.name, topic.topic_id
        for each in asked.partitions:
            if not 0 <= each.partition_index < topic.partitions:
                return None
            named.append((topic.name, each.partition_index))
    if len(named) != 1 and (not named or len(set(named)) != len(named)):
        return None
    return broker.runtime.call_at_once(request.group_id, Shard.commit_offsets, request, context, answered)


def _passed_on(
    operation: Operation, broker: Broker, request: Any, context: RequestContext, answered: Answered
) -> object:
    return broker.runtime.call_at_once(request.group_id, operation, request, context, answered)


AT_ONCE: Final[dict[object, Begin]] = {
    classic_group.heartbeat: partial(_passed_on, Shard.heartbeat),
    classic_group.join_group: _join_group,
    classic_group.sync_group: partial(_passed_on, Shard.sync),
    classic_group.leave_group: partial(_passed_on, Shard.leave),
    offsets.offset_commit: _offset_commit,
}
"""By the handler that each is the twin of."""
