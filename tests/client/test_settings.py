"""The settings of a consumer: each is checked, and errors name the setting."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Literal, get_type_hints

import pytest

from muster.client import Consumer, RebalanceListener, SubscriptionPattern
from muster.client.assignors import assignor
from muster.client.consume.settings import ConsumerOptions, ConsumerSettings, parse_reset
from muster.client.fetch.positions import EARLIEST, LATEST, ResetStrategy
from muster.client.network.connection import Address
from tests.support.each import each

Protocol = Literal["classic", "consumer", "auto"]


def test_the_options_are_the_settings() -> None:
    settings = {each.name for each in dataclasses.fields(ConsumerSettings) if each.init}
    assert get_type_hints(ConsumerOptions).keys() == settings - {"bootstrap_servers"}


def test_defaults_are_those_of_the_java_consumer() -> None:
    settings = ConsumerSettings.of("a:1,b:2", {})
    assert settings.bootstrap_servers == (Address("a", 1), Address("b", 2))
    assert [each.name for each in settings.assignors] == ["range", "cooperative-sticky"]
    assert settings.auto_offset_reset == LATEST
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (45_000, 3_000)
    assert (settings.max_poll_interval_ms, settings.max_poll_records) == (300_000, 500)


def test_consumers_do_not_share_their_assignors() -> None:
    one, two = ConsumerSettings.of("a:1", {}), ConsumerSettings.of("a:1", {})
    assert not {id(each) for each in one.assignors} & {id(each) for each in two.assignors}
    own = assignor("roundrobin")
    assert ConsumerSettings.of("a:1", {"assignors": [own]}).assignors == (own,)


@each(
    "given, meant",
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("none", None),
        ("by_duration:PT1H", ResetStrategy.by_duration(timedelta(hours=1))),
        ("by_duration:P2DT3H4M5.5S", ResetStrategy.by_duration(timedelta(2, 5.5, hours=3, minutes=4))),
        ("by_duration:P1D", ResetStrategy.by_duration(timedelta(1))),
        ("by_duration:PT0S", ResetStrategy.by_duration(timedelta())),
        (timedelta(minutes=2), ResetStrategy.by_duration(timedelta(minutes=2))),
    ],
)
def test_where_to_begin(given: Any, meant: ResetStrategy | None) -> None:
    assert parse_reset(given) == meant


@each(
    "given",
    [
        "first",
        "",
        "EARLIEST",
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:-PT1H",
        "by_duration:P1M",
        "by_duration:P1DT",
        "by_duration:P99999999999D",
        timedelta(seconds=-1),
        None,
        3,
    ],
)
def test_where_nobody_can_begin(given: Any) -> None:
    with pytest.raises(ValueError, match=r"auto_offset_reset=.*: it takes 'earliest'"):
        parse_reset(given)


@each(
    "options, why",
    [
        ({"group_id": " "}, "group_id=' ': it takes text that is not blank"),
        ({"group_instance_id": "a"}, "group_instance_id requires a group_id"),
        (
            {"group_id": "g", "group_instance_id": "a b"},
            "group_instance_id='a b': it takes up to 249 letters",
        ),
        ({"group_id": "g", "group_instance_id": ".."}, "group_instance_id='..': it takes up to 249 letters"),
        ({"group_id": "g", "group_instance_id": " "}, "group_instance_id=' ': it takes up to 249 letters"),
        ({"max_poll_records": 0}, "max_poll_records=0: it takes records, a whole number from 1"),
        ({"fetch_max_bytes": True}, "fetch_max_bytes=True: it takes bytes"),
        ({"session_timeout_ms": 4.5}, "session_timeout_ms=4.5: it takes milliseconds"),
        ({"metadata_max_age_ms": 2**31}, "metadata_max_age_ms=2147483648"),
        ({"isolation_level": "serializable"}, "'read_uncommitted' or 'read_committed'"),
        ({"heartbeat": "process"}, "heartbeat='process': it takes 'loop' or 'thread'"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit='false': it takes True or False"),
        ({"client_id": None}, "client_id=None: it takes text"),
        ({"client_id": "a" * 32_768}, "client_id='a+': it takes Unicode text of at most 32767 bytes"),
        ({"client_rack": "\udc80"}, r"client_rack='\\udc80': it takes Unicode text of at most 32767 bytes"),
        ({"group_id": "é" * 16_384}, "group_id='é+': it takes Unicode text of at most 32767 bytes"),
        ({"group_id": "\ud800"}, r"group_id='\\ud800': it takes Unicode text of at most 32767 bytes"),
        ({"assignors": []}, "assignors=.*at least one"),
        ({"assignors": "range"}, "assignors='range': it takes a list"),
        ({"assignors": ["best"]}, "assignors: 'best' is none of"),
        ({"assignors": ["range", "range"]}, "assignors=.*each name once"),
        (
            {"heartbeat_interval_ms": 45_000},
            r"heartbeat_interval_ms \(45000\) must be less than session_timeout_ms",
        ),
        ({"request_timeout_ms": 500}, r"fetch_max_wait_ms \(500\) must be less than request_timeout_ms"),
        ({"revocation_grace_ms": 300_000}, "must be less than max_poll_interval_ms"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Consumer("a:1", **options)


def test_other_mistakes_of_a_constructor() -> None:
    with pytest.raises(TypeError, match=r"Consumer has no setting 'group'; did you mean group_id\?$"):
        Consumer(group="g")  # type: ignore[call-overload]
    for servers in ("", "a", [], 3, ["a:1", "b"]):
        with pytest.raises(ValueError, match="bootstrap_servers"):
            Consumer(servers)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="value_deserializer=3: it takes a function"):
        Consumer(value_deserializer=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="group_id: subscribing requires one"):
        Consumer(topics="t")
    with pytest.raises(ValueError, match="listener: "):
        Consumer(group_id="g", listener=RebalanceListener())
    with pytest.raises(ValueError, match="listener=5: it takes a RebalanceListener"):
        Consumer(group_id="g", topics="t", listener=5)  # type: ignore[call-overload]


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ConsumerSettings.of("a:1", {}).group_id = "g"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["assignors", "session_timeout_ms", "heartbeat_interval_ms"])
def test_what_the_broker_says_in_the_consumer_protocol_is_not_given(name: str) -> None:
    given: dict[str, Any] = {name: ["range"] if name == "assignors" else 6_000}
    how = "the coordinator assigns" if name == "assignors" else "the broker sets it"
    with pytest.raises(ValueError, match=f"{name} is given with group_protocol='consumer', where {how} "):
        Consumer("a:1", group_id="g", group_protocol="consumer", **given)
    protocols: tuple[Protocol, ...] = ("classic", "auto")
    for protocol in protocols:
        Consumer("a:1", group_id="g", group_protocol=protocol, **given)


def test_who_assigns_goes_with_the_protocol() -> None:
    with pytest.raises(ValueError, match="group_protocol='next'"):
        Consumer("a:1", group_protocol="next")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="group_remote_assignor=' '"):
        Consumer("a:1", group_protocol="consumer", group_remote_assignor=" ")
    with pytest.raises(ValueError, match="group_remote_assignor is given with group_protocol='classic'"):
        Consumer("a:1", group_remote_assignor="uniform")
    with pytest.raises(ValueError, match=r"set group_protocol='consumer' or 'auto', or give re.compile"):
        Consumer("a:1", group_id="g", topics=SubscriptionPattern("t.*"))
    protocols: tuple[Protocol, ...] = ("consumer", "auto")
    for protocol in protocols:
        Consumer("a:1", group_id="g", group_protocol=protocol, group_remote_assignor="uniform")
        Consumer("a:1", group_id="g", group_protocol=protocol, topics=SubscriptionPattern("t.*"))
