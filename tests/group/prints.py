"""Prints responses, events and records as lines of a transcript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.coordinator.group import events as happenings
from muster.coordinator.group.effects import Record
from muster.coordinator.group.events import Event
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from muster.protocol.messages.offsets import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse
from muster.protocol.types import ZERO_UUID
from tests.group import blobs
from tests.group.cast import Cast
from tests.group.consumer import prints as consumer
from tests.group.scenario import Answer
from tests.group.scenario import span as _span

_OK = "ok"
_ERROR_NAMES: dict[int, str] = {code.value: code.name for code in ErrorCode}


def error_name(code: int) -> str:
    return _ERROR_NAMES[code]


def remember(answer: Answer, cast: Cast) -> None:
    """Make the actor remember what a client would, and give a symbol to each member id seen for the first
    time."""
    response = answer.response
    if isinstance(response, JoinGroupResponse):
        actor = cast.actors[answer.actor]
        code = response.error_code
        if code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            cast.bind(response.member_id, answer.actor)
            actor.member_id = response.member_id
        if code == ErrorCode.NONE:
            actor.generation_id = response.generation_id
            actor.protocol_name = response.protocol_name
    elif isinstance(response, SyncGroupResponse):
        if response.error_code == ErrorCode.NONE:
            text = blobs.assignment_text(response.assignment, cast)
            cast.actors[answer.actor].assigned = (
                [] if text == "none" or text.startswith("raw:") else text.split(",")
            )
    elif isinstance(response, ConsumerGroupHeartbeatResponse):
        if response.error_code == ErrorCode.NONE:
            actor = cast.actors[answer.actor]
            member_id = response.member_id or ""
            cast.bind(member_id, answer.actor)
            # After leaving, a client starts over.
            actor.member_id, actor.generation_id = member_id, max(response.member_epoch, 0)
            if response.assignment is not None:
                actor.assigned = consumer.partitions(response.assignment.topic_partitions, cast)
            elif response.member_epoch < 0:
                actor.assigned = []
    elif isinstance(response, DescribeGroupsResponse | ConsumerGroupDescribeResponse):
        for group in sorted(response.groups, key=lambda group: group.group_id):  # Kafka has any order
            for member in group.members:
                cast.bind(member.member_id, member.client_id)


def lines(answer: Answer, cast: Cast) -> list[str]:
    """The transcript lines of an answer. `remember` has to run first, for all answers of a step."""
    texts = _PRINTERS[answer.api](answer.response, cast, answer.version)
    return [f"{answer.actor}: {text}" for text in texts]


def _outcome(code: int) -> str:
    return _OK if code == ErrorCode.NONE else error_name(code)


def _error(code: int) -> list[str]:
    return [f"error={error_name(code)}"]


def _join(response: JoinGroupResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return [f"error=MEMBER_ID_REQUIRED member={cast.symbol(response.member_id)}"]
        return _error(response.error_code)
    members = sorted(
        f"{cast.member(member.member_id, member.group_instance_id)}"
        f"({blobs.subscription_text(member.metadata, cast)})"
        for member in response.members
    )
    words = [f"generation={response.generation_id}", f"protocol={response.protocol_name}"]
    if version >= 7:
        words.append(f"type={response.protocol_type}")
    words += [
        f"leader={cast.symbol(response.leader)}",
        f"member={cast.symbol(response.member_id)}",
        f"members=[{' '.join(members)}]",
    ]
    if response.skip_assignment:
        words.append("skip_assignment")
    return [" ".join(words)]


def _sync(response: SyncGroupResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        return _error(response.error_code)
    named = f"protocol={response.protocol_name} type={response.protocol_type} " if version >= 5 else ""
    return [f"{named}assignment={blobs.assignment_text(response.assignment, cast)}"]


def _heartbeat(response: HeartbeatResponse, cast: Cast, version: int) -> list[str]:
    return [_OK] if response.error_code == ErrorCode.NONE else _error(response.error_code)


def _leave(response: LeaveGroupResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        return _error(response.error_code)
    members = [
        f"{cast.member(member.member_id, member.group_instance_id)}={_outcome(member.error_code)}"
        for member in response.members
    ]
    return [" ".join(members) or _OK]


def _commit(response: OffsetCommitResponse, cast: Cast, version: int) -> list[str]:
    words = [
        f"{cast.topic(topic.name, topic.topic_id)}-{each.partition_index}={_outcome(each.error_code)}"
        for topic in response.topics
        for each in topic.partitions
    ]
    return [" ".join(words) or _OK]


def _fetch(response: OffsetFetchResponse, cast: Cast, version: int) -> list[str]:
    if version < 8:
        if response.error_code != ErrorCode.NONE:
            return _error(response.error_code)
        found = [
            (cast.told(topic.name), partition) for topic in response.topics for partition in topic.partitions
        ]
        return [_fetched(found)]
    printed: list[str] = []
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            printed += _error(group.error_code)
            continue
        printed.append(
            _fetched(
                [
                    (cast.topic(topic.name, topic.topic_id), partition)
                    for topic in group.topics
                    for partition in topic.partitions
                ]
            )
        )
    return printed


def _quoted(metadata: str) -> str:
    return f'"{metadata}"' if len(metadata) <= 40 else f"({len(metadata)} characters)"


def _fetched(found: list[tuple[str, Any]]) -> str:
    """The partitions of either response layout; both have the same fields."""
    words: list[str] = []
    for topic, partition in sorted(found, key=lambda pair: (pair[0], pair[1].partition_index)):
        value = str(partition.committed_offset)
        if partition.error_code != ErrorCode.NONE:
            value = error_name(partition.error_code)
        elif partition.committed_leader_epoch != -1:
            value += f"@{partition.committed_leader_epoch}"
        if partition.metadata:
            value += f":{_quoted(partition.metadata)}"
        words.append(f"{topic}-{partition.partition_index}={value}")
    return " ".join(words) or "nothing"


def _delete_offsets(response: OffsetDeleteResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        return _error(response.error_code)
    words = [
        f"{cast.told(topic.name)}-{partition.partition_index}={_outcome(partition.error_code)}"
        for topic in response.topics
        for partition in topic.partitions
    ]
    return [" ".join(words) or _OK]


def _describe(response: DescribeGroupsResponse, cast: Cast, version: int) -> list[str]:
    printed: list[str] = []
    for group in response.groups:
        name = cast.told(group.group_id)
        error = f"error={error_name(group.error_code)} " if group.error_code != ErrorCode.NONE else ""
        printed.append(
            f"{name} {error}state={group.group_state} type={group.protocol_type or 'none'} "
            f"protocol={group.protocol_data or 'none'}"
        )
        printed += sorted(
            f"{name} {cast.member(member.member_id, member.group_instance_id)} client={member.client_id} "
            f"host={member.client_host} ({blobs.subscription_text(member.member_metadata, cast)}) "
            f"assignment={blobs.assignment_text(member.member_assignment, cast)}"
            for member in group.members
        )
    return printed


def _list(response: ListGroupsResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        return _error(response.error_code)
    printed: list[str] = []
    for group in sorted(response.groups, key=lambda group: group.group_id):
        if not cast.ours(group.group_id):
            continue
        words = [cast.told(group.group_id), f"type={group.protocol_type or 'none'}"]
        if version >= 4:
            words.append(f"state={group.group_state}")
        if version >= 5:
            words.append(f"group_type={group.group_type}")
        printed.append(" ".join(words))
    return printed or ["nothing"]


def _delete_group(response: DeleteGroupsResponse, cast: Cast, version: int) -> list[str]:
    return [
        " ".join(f"{cast.told(result.group_id)}={_outcome(result.error_code)}" for result in response.results)
    ]


_PRINTERS: dict[ApiKey, Callable[[Any, Cast, int], list[str]]] = {
    ApiKey.JOIN_GROUP: _join,
    ApiKey.SYNC_GROUP: _sync,
    ApiKey.HEARTBEAT: _heartbeat,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer.beat,
    ApiKey.LEAVE_GROUP: _leave,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _fetch,
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.DESCRIBE_GROUPS: _describe,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer.describe,
    ApiKey.LIST_GROUPS: _list,
    ApiKey.DELETE_GROUPS: _delete_group,
}


# --- what only our own coordinator reports ------------------------------------------------------------------


def record_line(record: Record, cast: Cast) -> str:
    of_consumers = consumer.record(record, cast)
    if of_consumers is not None:
        return of_consumers
    match record.key, record.value:
        case OffsetCommitKey() as key, None:
            return f"offset {key.group} {key.topic}-{key.partition} deleted"
        case OffsetCommitKey() as key, OffsetCommitValue() as value:
            words = [f"offset {key.group} {key.topic}-{key.partition}={value.offset}"]
            if value.leader_epoch != -1:
                words.append(f"leader_epoch={value.leader_epoch}")
            if value.metadata:
                words.append(f"metadata={_quoted(value.metadata)}")
            if value.expire_timestamp != -1:
                words.append(f"expires={_span(value.expire_timestamp - value.commit_timestamp)}")
            if value.topic_id != ZERO_UUID:
                words.append("with topic id")
            return " ".join([*words, f"(v{record.value_version})"])
        case GroupMetadataKey() as key, None:
            return f"group {key.group} deleted"
        case GroupMetadataKey() as key, GroupMetadataValue() as value:
            members = sorted(
                f"{cast.member(member.member_id, member.group_instance_id)}"
                f"({blobs.subscription_text(member.subscription, cast)})="
                f"{blobs.assignment_text(member.assignment, cast)}"
                for member in value.members
            )
            return (
                f"group {key.group} generation={value.generation} type={value.protocol_type or 'none'} "
                f"protocol={value.protocol or 'none'} leader={cast.symbol(value.leader or '')} "
                f"members=[{' '.join(members)}] (v{record.value_version})"
            )
        case key, value:
            raise AssertionError(f"an unknown record: {key!r} {value!r}")


def event_line(event: Event, since_ms: int, cast: Cast) -> str:
    """`+45s orders 1 session expired $alice: Stable -> PreparingRebalance after 45s, waiting for $bob`"""

    def ids(each: str | None) -> str:
        return "nobody" if each is None else cast.symbol(each)

    def names(identities: tuple[happenings.MemberIdentity, ...]) -> str:
        return ", ".join(cast.member(each.member_id, each.group_instance_id) for each in identities)

    of_consumers = consumer.event(event, since_ms, cast)
    who = f" {names((event.member,))}" if event.member is not None else ""
    reason = f' "{event.reason}"' if event.reason else ""
    match event:
        case _ if of_consumers is not None:
            what = of_consumers
        case happenings.StateChanged():
            what = f"{event.from_state} -> {event.to_state} after {_span(event.phase_ms)}"
            if event.waiting_for:
                what += f", waiting for {names(event.waiting_for)}"
            if event.pending_member_ids:
                what += f", pending {', '.join(map(cast.symbol, event.pending_member_ids))}"
            if event.until_ms is not None:
                what += f", until +{_span(event.until_ms - since_ms)}"
        case happenings.RebalanceCompleted():
            what = (
                f"rebalanced, members={event.members} join={_span(event.join_ms)} "
                f"sync={_span(event.assignment_ms)} restarts={event.restarts} "
                f"since +{_span(event.started_ms - since_ms)}"
            )
            if event.dropped:
                what += f", dropped {names(event.dropped)}"
            if event.last_joined is not None:
                what += f", last joined {names((event.last_joined,))}"
            if event.joins:
                joins = [f"{names((who,))} {_span(after_ms)}" for who, after_ms in event.joins]
                what += f" (joined after: {', '.join(joins)})"
        case happenings.ProtocolChosen():
            votes = ", ".join(f"{count} for {name}" for name, count in event.votes.items())
            what = f"protocol {event.protocol} after {event.before or 'none'}, {votes}"
        case happenings.LeaderChanged():
            what = f"leads after {cast.symbol(event.old_member_id)}"
        case happenings.Assigned():
            if event.moves is None or event.owned is None:
                what = "assigned what nobody here can read"
            else:
                owned = [f"{cast.symbol(each)} has {count}" for each, count in event.owned.items()]
                what = (
                    f"assigned {event.partitions} ({', '.join(owned)}), "
                    f"kept {event.kept}, moved {event.moved}, lost {event.lost}"
                )
                moves = [
                    f"{move.topic}-{move.partition} {ids(move.from_member_id)} -> {ids(move.to_member_id)}"
                    for move in event.moves
                ]
                what += f": {', '.join(moves)}" if moves else ""
        case happenings.AllSynced():
            what = f"all synced after {_span(event.after_ms)}, last {names((event.last,))}"
        case happenings.MemberRejoined():
            what = f"rejoined after {_span(event.after_ms)}"
        case happenings.JoinRefused():
            limit = "" if event.size_max is None else f", {event.size_max} members at most"
            what = f"join refused: {event.error}{limit}"
            if event.protocol_types is not None:
                what += f", {' among '.join(event.protocol_types)}"
            if event.offered is not None and event.shared is not None:
                what += f", offers {' '.join(event.offered)} where all have {' '.join(event.shared)}"
        case happenings.MemberFenced():
            what = (
                f"fences {cast.symbol(event.old_member_id)} of {event.old_client_id} at "
                f"{event.old_client_host}, by {event.api}"
            )
            if event.sent_epoch is not None:
                what += f", epoch {event.sent_epoch} is not {event.member_epoch}"
        case happenings.HeartbeatLate():
            what = f"late: after {_span(event.late_ms)}, session {_span(event.session_timeout_ms)}"
            if event.heartbeat_interval_ms is not None:
                what += f", usually every {_span(event.heartbeat_interval_ms)}"
        case happenings.MetadataChanged():
            what = _metadata_changed(event)
        case happenings.TopicsGrown():
            grown = [f"{topic} from {before} to {now}" for topic, before, now in event.topics]
            what = f"partitions: {', '.join(grown)}"
        case happenings.MemberIdIssued():
            what = f"to come back within {_span(event.expires_ms - event.at_ms)}"
            if event.former_member_id is not None:
                what += f", was {cast.symbol(event.former_member_id)}"
        case happenings.PendingMemberRemoved():
            what = f"no longer waited for, after {_span(event.waited_ms)}"
        case happenings.MemberAdded():
            topics = "cannot tell what" if event.topics is None else f"[{' '.join(event.topics)}]"
            what = (
                f"added, wants {topics} by {'/'.join(event.protocols)}, session "
                f"{_span(event.session_timeout_ms)}, rebalance {_span(event.rebalance_timeout_ms)}"
            )
            if event.former_member_id is not None:
                what += f", was {cast.symbol(event.former_member_id)}"
        case happenings.MemberRemoved():
            connection = "open" if event.connected else "unknown"
            if event.disconnected_ms is not None:
                connection = f"closed {_span(event.disconnected_ms)} before"
            what = (
                f"removed, silent for {_span(event.silent_ms)} of {_span(event.session_timeout_ms)}, "
                f"connection {connection}"
            )
            if event.heartbeat_interval_ms is not None:
                what += f", used to heartbeat every {_span(event.heartbeat_interval_ms)}"
            if event.late:
                what += f", late {event.late} times"
            if event.requested_by is not None:
                what += f", at the request of {event.requested_by.client_id}"
        case happenings.MemberReplaced():
            connection = "open" if event.old_connected else "closed"
            what = (
                f"replaces {cast.symbol(event.old_member_id)} of {event.old_client_host}, silent for "
                f"{_span(event.old_silent_ms)}, connection {connection}"
            )
        case happenings.MemberDisconnected():
            what = f"disconnected, silent for {_span(event.silent_ms)}"
            if event.after_removal_ms is not None:
                what += f", removed {_span(event.after_removal_ms)} before"
        case happenings.OffsetsRemoved():
            what = f"forgot {', '.join(f'{topic}-{partition}' for topic, partition in event.partitions)}"
        case happenings.CommitRefused():
            what = (
                f"commit of {event.topic}-{event.partition} ({event.partitions} in all) for generation "
                f"{event.committed_generation_id} refused: {event.error}"
            )
            if event.superseded_ms is not None:
                what += f", {_span(event.superseded_ms)} after it ended"
            if event.owner is not None:
                what += f", owned by {names((event.owner,))}"
        case happenings.GroupCreated():
            what = "created"
        case happenings.GroupRemoved():
            what = "removed"
        case _:
            raise AssertionError(f"an unknown event: {event!r}")
    return (
        f"+{_span(event.at_ms - since_ms)} {event.group_id} {event.generation_id} "
        f"[{event.trigger}{who}{reason}] {what}"
    )


def _metadata_changed(event: happenings.MetadataChanged) -> str:
    changes = [f"+{topic}" for topic in event.topics_added] + [f"-{topic}" for topic in event.topics_removed]
    if event.protocols_before != event.protocols_after:
        before = "/".join(event.protocols_before) or "what is not known"
        changes.append(f"protocols {before} -> {'/'.join(event.protocols_after)}")
    changes += ["owned partitions"] * event.owned_changed + ["user data"] * event.user_data_changed
    return f"changed: {', '.join(changes) or 'nothing of note'}"
