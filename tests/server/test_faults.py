"""Fault rules: how they are written, what they match, and when it is their turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.server.apis import APIS
from muster.coordinator.server.test_mode import faults as faults_module
from muster.coordinator.server.test_mode.faults import (
    CLOSE_AFTER,
    CLOSE_BEFORE,
    DROP_RESPONSE,
    About,
    Fault,
    FaultError,
    Faults,
    Firing,
    Rule,
    delay,
    error,
    truncate,
)
from muster.protocol.api import ApiKey, request_class, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest, LeaveGroupRequest
from muster.protocol.messages.configs import DescribeConfigsRequest
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.server.test_api_versions import smallest_request
from tests.support.each import each

BILLING_ID = UUID(int=7)


def about(request: Message, version: int = 4, *, client_id: str = "app", broker: int = 1) -> About:
    names = {BILLING_ID: "bills"}
    api_key = ApiKey(request.__schema__.api_key)
    return About(broker, APIS[api_key], version, client_id, request, names.get)


def beat(group: str = "billing", member: str = "m", instance: str | None = None) -> About:
    return about(
        HeartbeatRequest(group_id=group, generation_id=1, member_id=member, group_instance_id=instance)
    )


def meet(faults: Faults, request: About) -> list[int]:
    """Carry out the faults that the request meets and return the ids of their rules."""
    met = faults.meet(request, lambda rule: True)
    for fault in met:
        carry_out(faults, fault)
    return [fault.id for fault in met]


def carry_out(faults: Faults, fault: Fault) -> None:
    faults.carried_out(
        fault, Firing(fault.id, 0, 1, "Heartbeat", 4, "billing", "m", None, "app", str(fault.action))
    )


# --- reading ------------------------------------------------------------------------------------------------


@each(
    "given, action",
    [
        ({"error": "NOT_COORDINATOR"}, error(ErrorCode.NOT_COORDINATOR)),
        ({"error": 16}, error(ErrorCode.NOT_COORDINATOR)),
        ({"error": "not_coordinator"}, error(ErrorCode.NOT_COORDINATOR)),
        ({"delay": "1m30s"}, delay(90_000)),
        ({"delay": 0.25}, delay(250)),
        ({"drop_response": True}, DROP_RESPONSE),
        ({"close_before": True, "close_after": False}, CLOSE_BEFORE),
        ({"close_after": True, "error": None}, CLOSE_AFTER),
        ({"truncate": 0}, truncate(0)),
    ],
)
def test_actions(given: dict[str, object], action: object) -> None:
    assert Rule.read(given).action == action


@pytest.mark.parametrize("given", ["OffsetCommit", "offsetcommit", "OFFSET_COMMIT", "OffsetCommitRequest", 8])
def test_an_api_by_any_of_its_names(given: object) -> None:
    assert Rule.read({"api": given, "close_after": True}).api is ApiKey.OFFSET_COMMIT


def test_what_is_written_is_read_again() -> None:
    full = {
        "api": "OffsetCommit",
        "group": "billing",
        "topic": "bills",
        "member": "m-1",
        "client_id": "app",
        "broker": 2,
        "nth": 3,
        "times": None,
    }
    for action in (
        {"delay": "1500ms"},
        {"error": "NOT_COORDINATOR"},
        {"truncate": 9},
        {"close_before": True},
    ):
        rule = Rule.read({**full, **action})
        assert json.loads(json.dumps(rule.to_json())) == {**full, **action}
        assert Rule.read(rule.to_json()) == rule
    assert Rule.read({"drop_response": True}).to_json() == {"drop_response": True, "nth": 1, "times": 1}


@each(
    "given, said",
    [
        (
            {"grop": "billing", "close_after": True},
            "grop: no such field \\(did you mean group\\?\\); choose from api,",
        ),
        (
            {"close_after": True, "delay": "1s"},
            "exactly one of error, delay, .*; given: delay, close_after",
        ),
        ({"group": "billing"}, "exactly one of .*; given: none"),
        ({"close_after": "yes"}, "close_after: 'yes' is not allowed; it takes true"),
        (
            {"api": "OfsetCommit", "close_after": True},
            "api: 'OfsetCommit' .*did you mean OffsetCommit.*; choose from Produce,",
        ),
        ({"api": 4, "close_after": True}, "api: 4 is not a served API; choose from Produce, Fetch,"),
        ({"api": True, "close_after": True}, "api: True is not a served API"),
        ({"api": "Vote", "close_after": True}, "api: 'Vote' is not a served API"),
        (
            {"error": "NOT_CORDINATOR"},
            "error: 'NOT_CORDINATOR' is not a Kafka error code .did you mean NOT_COORDINATOR",
        ),
        ({"error": "NONE"}, "error: 'NONE' is not a Kafka error code"),
        ({"error": 0}, "error: 0 is not a Kafka error code"),
        ({"error": 9_999}, "error: 9999 is not a Kafka error code"),
        ({"delay": "soon"}, "delay: 'soon' is not a valid duration"),
        ({"delay": "2 days"}, "delay: '2 days' is not allowed; it takes up to 86,400 s"),
        ({"delay": []}, "delay: .*not a valid duration"),
        ({"truncate": -1}, "truncate: -1 is not allowed; it takes a whole number, 0 to"),
        ({"truncate": True}, "exactly one|truncate: True"),
        ({"close_after": True, "nth": 0}, "nth: 0 is not allowed; it takes a whole number, 1 to"),
        ({"close_after": True, "times": 1.5}, "times: 1.5 is not allowed"),
        ({"close_after": True, "broker": "1"}, "broker: '1' is not allowed"),
        ({"close_after": True, "group": 7}, "group: 7 is not allowed; it takes text"),
        (
            {"api": "Metadata", "group": "billing", "close_after": True},
            "group: Metadata requests name no group; these do: OffsetCommit, OffsetFetch,",
        ),
        (
            {"api": "Heartbeat", "topic": "bills", "close_after": True},
            "topic: Heartbeat requests name no topic; these do: Produce",
        ),
        (
            {"api": "OffsetFetch", "member": "m", "close_after": True},
            "member: OffsetFetch requests name no",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(FaultError, match=said):
        Rule.read(given)


# --- matching -----------------------------------------------------------------------------------------------


@each(
    "fields, matches",
    [
        ({}, True),
        ({"api": "Heartbeat"}, True),
        ({"api": "JoinGroup"}, False),
        ({"group": "billing"}, True),
        ({"group": "orders"}, False),
        ({"member": "m"}, True),
        ({"member": "web-1"}, True),
        ({"member": "web"}, False),
        ({"client_id": "app"}, True),
        ({"client_id": "ap"}, False),
        ({"broker": 1}, True),
        ({"broker": 2}, False),
        ({"topic": "bills"}, False),
        ({"group": "billing", "member": "m", "client_id": "app"}, True),
        ({"group": "billing", "member": "n", "client_id": "app"}, False),
    ],
)
def test_every_field_given_has_to_match(fields: dict[str, object], matches: bool) -> None:
    request = beat("billing", "m", "web-1")
    assert request.has(Rule.read({**fields, "close_after": True})) is matches


def topics_of_metadata(*names: str | UUID | None, null: bool = False) -> MetadataRequest:
    topics = [
        MetadataRequest.Topic(topic_id=name, name=None)
        if isinstance(name, UUID)
        else MetadataRequest.Topic(name=name)
        for name in names
    ]
    return MetadataRequest(topics=None if null else topics)


def fetching(*topics: str) -> OffsetFetchRequest:
    of = [OffsetFetchRequest.Group.Topics(name=name, partition_indexes=[0]) for name in topics]
    groups = [
        OffsetFetchRequest.Group(group_id="orders", topics=[]),
        OffsetFetchRequest.Group(group_id="billing", topics=of or None),
    ]
    return OffsetFetchRequest(groups=groups)


OWNED = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=BILLING_ID, partitions=[0])


def consumer_beat(**fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, **fields)


@each(
    "request_, version, fields, matches",
    [
        (topics_of_metadata("bills", "x"), 12, {"topic": "bills"}, True),
        (topics_of_metadata("x"), 12, {"topic": "bills"}, False),
        (topics_of_metadata(BILLING_ID), 12, {"topic": "bills"}, True),
        (topics_of_metadata(UUID(int=8)), 12, {"topic": "bills"}, False),
        (topics_of_metadata(null=True), 12, {"topic": "bills"}, True),
        (topics_of_metadata(), 12, {"topic": "bills"}, False),
        (topics_of_metadata(), 0, {"topic": "bills"}, True),
        (fetching("bills"), 8, {"topic": "bills", "group": "billing"}, True),
        (fetching("bills"), 8, {"topic": "x"}, False),
        (fetching(), 8, {"topic": "x"}, True),
        (OffsetFetchRequest(group_id="billing", topics=None), 7, {"topic": "x", "group": "billing"}, True),
        (FindCoordinatorRequest(coordinator_keys=["a", "b"]), 4, {"group": "b"}, True),
        (FindCoordinatorRequest(key="b"), 3, {"group": "b"}, True),
        (FindCoordinatorRequest(key="b", key_type=1), 3, {"group": "b"}, False),
        (
            LeaveGroupRequest(
                group_id="g",
                members=[
                    LeaveGroupRequest.MemberIdentity(member_id="a"),
                    LeaveGroupRequest.MemberIdentity(member_id="b", group_instance_id="web"),
                ],
            ),
            4,
            {"member": "web"},
            True,
        ),
        (
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=kind, resource_name="bills", configuration_keys=None
                    )
                    for kind in (4, 2)
                ]
            ),
            4,
            {"topic": "bills"},
            True,
        ),
        (
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=4, resource_name="bills", configuration_keys=None
                    )
                ]
            ),
            4,
            {"topic": "bills"},
            False,
        ),
        (ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9, {"topic": "bills"}, False),
        (consumer_beat(subscribed_topic_names=["bills"]), 1, {"topic": "bills"}, True),
        (consumer_beat(topic_partitions=[OWNED]), 1, {"topic": "bills"}, True),
        (consumer_beat(), 1, {"topic": "bills"}, False),
        (consumer_beat(), 1, {"member": "m"}, True),
        (consumer_beat(instance_id="i"), 1, {"member": "i"}, True),
        (consumer_beat(), 1, {"group": "g"}, True),
    ],
)
def test_what_requests_name(request_: Message, version: int, fields: dict[str, Any], matches: bool) -> None:
    assert about(request_, version).has(Rule.read({**fields, "close_after": True})) is matches


@each("api_key", sorted(APIS), ids=lambda key: key.name)
def test_every_name_a_request_has_is_known(api_key: ApiKey) -> None:
    """No API has a field for groups, topics or members that rules pass over."""
    named = {declared.name for declared in request_class(api_key).__fields__}
    where = APIS[api_key].names
    topical = {
        "topics",
        "topic_data",
        "topic_names",
        "topic_partitions",
        "resources",
        "subscribed_topic_names",
        "v3_and_below_topics",
    } & named
    listed = {each.attribute for each in where.topics}
    assert topical == listed
    assert ("group_id" in named) == (where.group == "group_id")
    assert ("member_id" in named) == where.members
    first, last = versions(api_key)
    for version in range(first, last + 1):
        everything = about(smallest_request(api_key, version), version)
        assert everything.has(Rule.read({"client_id": "app", "close_after": True}))


# --- turns --------------------------------------------------------------------------------------------------


def test_the_nth_request_so_many_times_or_for_ever() -> None:
    faults = Faults()
    second = faults.add(Rule.read({"close_after": True, "nth": 2}))
    assert [meet(faults, beat()) for _ in range(4)] == [[], [second], [], []]
    faults.clear()
    twice = faults.add(Rule.read({"close_after": True, "nth": 2, "times": 2}))
    assert [meet(faults, beat()) for _ in range(4)] == [[], [twice], [twice], []]
    faults.clear()
    ever = faults.add(Rule.read({"close_after": True, "nth": 3, "times": None}))
    assert [meet(faults, beat()) for _ in range(5)] == [[], [], [ever], [ever], [ever]]
    assert (faults.fired(ever), faults.status(ever).matched) == (3, 5)


def test_what_a_rule_does_not_match_it_does_not_count() -> None:
    faults = Faults()
    rule = faults.add(Rule.read({"close_after": True, "nth": 2, "group": "billing"}))
    met = [meet(faults, beat(group)) for group in ("billing", "orders", "orders", "billing")]
    assert met == [[], [], [], [rule]]


def test_of_several_rules_delays_add_up_and_the_first_of_the_others_fires() -> None:
    faults = Faults()
    error_1 = faults.add(Rule.read({"error": "NOT_COORDINATOR"}))
    delay_1 = faults.add(Rule.read({"delay": "1s"}))
    error_2 = faults.add(Rule.read({"error": "ILLEGAL_GENERATION"}))
    delay_2 = faults.add(Rule.read({"delay": "2s", "times": 2}))
    assert [meet(faults, beat()) for _ in range(3)] == [
        [delay_1, delay_2, error_1],
        [delay_2, error_2],
        [],
    ]


def test_only_apis_of_rules_with_a_turn_left_are_concerned() -> None:
    faults = Faults()
    changes: list[bool] = []
    faults.attach(lambda: changes.append(faults.active))
    assert not faults.active
    rule = faults.add(Rule.read({"api": "Heartbeat", "close_after": True}))
    assert faults.active
    assert [faults.concern(key) for key in (ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP)] == [True, False]
    everything = faults.add(Rule.read({"close_before": True, "group": "orders"}))
    assert faults.concern(ApiKey.JOIN_GROUP)
    faults.remove(everything)
    assert not faults.concern(ApiKey.JOIN_GROUP)
    meet(faults, beat())
    assert not faults.active
    assert changes == [True, True, True, False]
    assert [each.id for each in faults.rules()] == [rule]  # a spent one is still listed


def test_a_request_whose_answer_has_no_place_for_the_error_is_passed_over() -> None:
    faults = Faults()
    rule = faults.add(Rule.read({"error": "NOT_COORDINATOR"}))
    assert faults.meet(beat(), lambda rule: False) == []
    assert faults.status(rule).matched == 0


def test_there_are_a_thousand_rules_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults_module.RULES_MAX == 1_000
    monkeypatch.setattr(faults_module, "RULES_MAX", 2)
    faults = Faults()
    for _ in range(2):
        faults.add(Rule.read({"close_after": True}))
    with pytest.raises(FaultError, match="already 2 rules, the most allowed: remove some"):
        faults.add(Rule.read({"close_after": True}))
    faults.remove(1)
    assert faults.add(Rule.read({"close_after": True})) == 3


def test_a_rule_that_is_not_there_is_said_so() -> None:
    faults = Faults()
    for asked in (faults.remove, faults.fired, faults.status):
        with pytest.raises(FaultError, match="there is no rule 7; existing rules: none"):
            asked(7)


def test_of_many_rules_some_are_named() -> None:
    faults = Faults()
    for _ in range(25):
        faults.add(Rule.read({"close_after": True}))
    with pytest.raises(FaultError, match=r"existing rules: 1, 2, .*, 20 and 5 more"):
        faults.remove(26)


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults()
    faults.add(Rule.read({"close_after": True, "times": None}))
    for _ in range(faults_module.HISTORY_MAX + 5):
        meet(faults, beat())
    assert len(faults.history) == faults_module.HISTORY_MAX
    faults.clear()
    assert not faults.history
    assert not faults.rules()


async def test_waiting_for_hits() -> None:
    faults = Faults()
    rule = faults.add(Rule.read({"close_after": True, "times": None}))
    waiting = asyncio.create_task(faults.hit(rule, 2))
    gone = asyncio.create_task(faults.hit(rule, 3))
    for _ in range(2):
        assert not waiting.done()
        meet(faults, beat())
    await waiting
    await faults.hit(rule, 2)  # already reached
    faults.remove(rule)
    with pytest.raises(FaultError, match=f"rule {rule} was removed"):
        await gone


async def test_whoever_stops_waiting_leaves_nothing_behind() -> None:
    faults = Faults()
    rule = faults.add(Rule.read({"close_after": True}))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await faults.hit(rule)
    meet(faults, beat())
    assert faults.fired(rule) == 1
