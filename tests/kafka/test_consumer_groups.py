"""Consumer groups (KIP-848) as others see them: listed, described and deleted, their offsets committed and
fetched in every version, and their group configs in force."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, versions
from muster.protocol.messages.classic_group import JoinGroupRequest, LeaveGroupRequest
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_configs import GROUP, SET, altering, describing
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_INTERVAL, _HEARTBEAT = "consumer.assignment.interval.ms", "consumer.heartbeat.interval.ms"


def configure(side: Side, group: str, **configs: str) -> None:
    """Give a group configs of intervals; returns once they are in force."""
    wanted = {f"consumer.{name}.interval.ms": value for name, value in configs.items()}
    changes = [(name, SET, value) for name, value in wanted.items()]
    answer = side.quietly(altering((GROUP, side.name(group), changes)), 1)
    assert answer.responses[0].error_code == 0

    def are_described() -> bool:
        (found,) = side.quietly(describing((GROUP, side.name(group)), keys=list(wanted)), 4).results
        return {each.name: each.value for each in found.configs} == wanted

    until(are_described, f"configs of {group}")
    side.settle()


def _joining(
    side: Side, group: str, member: str, *topics: str, **fields: Any
) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=side.name(group),
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[side.name(topic) for topic in topics],
        topic_partitions=[],
        **fields,
    )


def _beat(side: Side, group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=side.name(group), member_id=member, member_epoch=epoch, **fields
    )


def _sort_members(answer: Any) -> None:
    for group in answer.groups:
        group.members.sort(key=lambda member: member.member_id)


def _seen(side: Side, when: str, *groups: str) -> None:
    """Look at the groups with everything that describes groups."""
    names = [side.name(group) for group in groups]
    for version in range(versions(ApiKey.CONSUMER_GROUP_DESCRIBE).last + 1):
        described = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=True)
        side.ask(f"{when}: described, v{version}", described, version, arranged=_sort_members)
    for version in range(versions(ApiKey.DESCRIBE_GROUPS).last + 1):
        asked = DescribeGroupsRequest(groups=names, include_authorized_operations=version > 2)
        side.ask(f"{when}: described as classic, v{version}", asked, version)
    for types in ([], ["consumer"], ["CLASSIC"], ["classic", "Consumer"]):
        for states in ([], ["Empty"], ["stable"], ["Assigning", "Reconciling"]):
            answer = side.quietly(ListGroupsRequest(types_filter=types, states_filter=states), 5)
            listed = sorted(
                (each.group_id, each.group_type, each.group_state, each.protocol_type)
                for each in answer.groups
                if each.group_id in names
            )
            told = [tuple(name.replace(side.name(""), "") for name in each) for each in listed]
            side.note(f"{when}: {types} {states}", told, of=(answer, 5))


def groups_seen(side: Side) -> None:
    side.create(t=2)
    side.coordinate(side.name("g"), side.name("c"))
    configure(side, "g", assignment="0", heartbeat="6000")
    classic = JoinGroupRequest.Protocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")
    joining = JoinGroupRequest(
        group_id=side.name("c"),
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[classic],
    )
    member_id = side.quietly(joining, 3).member_id
    leaving = LeaveGroupRequest(group_id=side.name("c"), member_id=member_id)
    assert side.quietly(leaving, 2).error_code == 0
    _seen(side, "before", "g", "c", "none")
    side.ask("the first joins", _joining(side, "g", "m1", "t"), 1)
    _seen(side, "with one", "g", "c")
    side.ask("the second joins", _joining(side, "g", "m2", "t", instance_id="i", rack_id="r"), 1)
    _seen(side, "with two", "g")
    side.ask("the first has nothing new", _beat(side, "g", "m1", 2), 1)
    _seen(side, "revoking", "g")
    side.ask("the first is not deleted", DeleteGroupsRequest(groups_names=[side.name("g")]), 2)
    side.ask("the second leaves for a while", _beat(side, "g", "m2", -2, instance_id="i"), 1)
    _seen(side, "without the second", "g")
    side.ask("the second leaves for good", _beat(side, "g", "m2", -1, instance_id="i"), 1)
    side.ask("the first leaves", _beat(side, "g", "m1", -1), 1)
    _seen(side, "empty", "g")
    side.ask("deleted", DeleteGroupsRequest(groups_names=[side.name("g"), side.name("c")]), 2)
    _seen(side, "deleted", "g", "c")


def members_removed(side: Side) -> None:
    """Remove members of the consumer protocol with LeaveGroup, as an administrator does."""
    side.create(t=2)
    side.coordinate(side.name("r"))
    configure(side, "r", assignment="0")
    for member, fields in (("m1", {}), ("m2", {"instance_id": "i"}), ("m3", {"instance_id": "j"})):
        side.ask(f"{member} joins", _joining(side, "r", member, "t", **fields), 1)
    Leaving = LeaveGroupRequest.MemberIdentity
    leaving = {
        "a dynamic one": [Leaving(member_id="m1")],
        "nobody": [Leaving(member_id="none")],
        "a static one by its member id": [Leaving(member_id="m2")],
        "a static one by its instance id": [Leaving(member_id="", group_instance_id="i")],
        "a static one by both": [Leaving(member_id="m3", group_instance_id="j")],
        "a static one by another's": [Leaving(member_id="m1", group_instance_id="j")],
        "an instance that is not there": [Leaving(member_id="", group_instance_id="x")],
        "several": [Leaving(member_id="m1"), Leaving(member_id="", group_instance_id="j")],
    }
    for title, members in leaving.items():
        for version in (3, 5):
            request = LeaveGroupRequest(group_id=side.name("r"), members=members)
            side.ask(f"{title}, v{version}", request, version)
        _described(side, f"after {title}", "r")
    side.ask("m1 again, v0", LeaveGroupRequest(group_id=side.name("r"), member_id="m1"), 0)


def _described(side: Side, when: str, group: str) -> None:
    asked = ConsumerGroupDescribeRequest(group_ids=[side.name(group)], include_authorized_operations=False)
    side.ask(f"{when}: described", asked, 1, arranged=_sort_members)


def _commit(side: Side, topic_id: Any, member: str, epoch: int, version: int) -> OffsetCommitRequest:
    topic = {"topic_id": topic_id} if version >= 10 else {"name": side.name("t")}
    return OffsetCommitRequest(
        group_id=side.name("o"),
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[
            OffsetCommitRequest.Topic(
                **topic,
                partitions=[
                    OffsetCommitRequest.Partition(
                        partition_index=index, committed_offset=5, committed_metadata=""
                    )
                    for index in range(2)
                ],
            )
        ],
    )


def _fetch(side: Side, member: str | None, epoch: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.Group(
                group_id=side.name("o"),
                member_id=member,
                member_epoch=epoch,
                topics=[OffsetFetchRequest.Group.Topics(name=side.name("t"), partition_indexes=[0, 1])],
            )
        ]
    )


def offsets_in_every_version(side: Side) -> None:
    ids = side.create(t=2, u=1)
    side.coordinate(side.name("o"))
    configure(side, "o", assignment="0")
    senders = (("m1", 2), ("m1", 0), ("m1", 1), ("m1", 3), ("m1", -1), ("m2", 2), ("", -1), ("", 0))
    for when in ("no group", "a member", "nobody left"):
        if when == "a member":
            side.ask("joins", _joining(side, "o", "m1", "t"), 1)
        if when == "nobody left":
            side.ask("leaves", _beat(side, "o", "m1", -1), 1)
        for version in range(versions(ApiKey.OFFSET_COMMIT).first, versions(ApiKey.OFFSET_COMMIT).last + 1):
            for member, epoch in senders if when == "a member" else senders[:1] + senders[4:]:
                if when == "no group" and (member, epoch) == ("", -1):
                    continue  # it would make one
                title = f"{when}: commit of {member!r} at {epoch}, v{version}"
                side.ask(title, _commit(side, ids["t"], member, epoch, version), version)
        for member, epoch in (*senders, (None, -1), (None, 1)):
            side.ask(f"{when}: fetch of {member!r} at {epoch}", _fetch(side, member, epoch), 9)
        side.ask(f"{when}: fetch, v8", _fetch(side, None, -1), 8)
        old = OffsetFetchRequest(
            group_id=side.name("o"),
            topics=[OffsetFetchRequest.Topic(name=side.name("t"), partition_indexes=[0, 1])],
        )
        for version in range(1, 8):
            side.ask(f"{when}: fetch, v{version}", old, version)
        for topic in ("t", "u"):
            deleted = OffsetDeleteRequest.Topic(
                name=side.name(topic), partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=0)]
            )
            asked = OffsetDeleteRequest(group_id=side.name("o"), topics=[deleted])
            side.ask(f"{when}: offsets of {topic} deleted", asked, 0)


@pytest.mark.parametrize("story", [groups_seen, members_removed, offsets_in_every_version])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
