"""`muster quotas`, as a user runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.coordinator.testing import Broker
from tests.cli.running import Muster


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def muster(broker: Broker, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(broker.bootstrap, capfd)


def test_quotas_are_set_shown_and_removed(muster: Muster) -> None:
    assert muster.done("quotas", "list") == "no quotas\n"
    words = "quotas set --user alice --producer-byte-rate 1048576 --request-percentage 12.5"
    assert muster.done(*words.split()).splitlines() == [
        "user alice: producer_byte_rate 1048576",
        "user alice: request_percentage 12.5",
    ]
    assert muster.done("quotas", "list").splitlines() == [
        "USER   CLIENT ID  ADDRESS  QUOTA               VALUE",
        "alice  -          -        producer_byte_rate  1048576",
        "alice  -          -        request_percentage  12.5",
    ]
    assert muster.done("quotas", "remove", "--user", "alice", "--producer-byte-rate") == (
        "user alice: producer_byte_rate removed\n"
    )
    assert muster.done("quotas", "remove", "--user", "alice", "--consumer-byte-rate") == "no such quotas\n"
    assert muster.done("quotas", "remove", "--user", "alice", "--all") == (
        "user alice: request_percentage removed\n"
    )
    assert muster.done("quotas", "list") == "no quotas\n"


def test_every_kind_of_entity(muster: Muster) -> None:
    for words, said in {
        "--user alice --client-id etl --consumer-byte-rate 1": "user alice with client id etl",
        "--user-default --client-id etl --consumer-byte-rate 2": "the default user with client id etl",
        "--client-id-default --controller-mutation-rate 0.5": "the default client id",
        "--ip 10.0.0.1 --connection-creation-rate 3": "address 10.0.0.1",
        "--ip-default --connection-creation-rate 4": "the default address",
    }.items():
        assert muster.done("quotas", "set", *words.split()).startswith(f"{said}: ")
    listed = muster("quotas", "list", "--client-id", "etl", "--output", "json").json
    assert listed == [
        {
            "entity": {"user": user, "client_id": "etl", "ip": None, "default": default},
            "quotas": {"consumer_byte_rate": value},
        }
        for user, default, value in ((None, ["user"], 2), ("alice", [], 1))
    ]
    assert muster.done("quotas", "list", "--ip-default", "--output", "csv").splitlines() == [
        "USER,CLIENT ID,ADDRESS,QUOTA,VALUE",
        ",,<default>,connection_creation_rate,4",
    ]
    assert len(muster.done("quotas", "list").splitlines()) == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("set --user alice", "say what it may have: --producer-byte-rate"),
        ("set --producer-byte-rate 1", "say whose quota it is: --user, --client-id or --ip"),
        ("set --user a --user-default --producer-byte-rate 1", "not allowed with argument --user"),
        (
            "set --user a --producer-byte-rate 1.5",
            "'1.5' is not allowed; it takes a whole number",
        ),
        ("set --user a --request-percentage much", "'much' is not allowed; it takes a number above 0"),
        ("set --user a --producer-byte-rate 1_000", "'1_000' is not allowed; it takes a whole number"),
        ("set --user a --request-percentage 0", "'0' is not allowed; it takes a number above 0"),
        ("set --ip 10.0.0.1 --user a --connection-creation-rate 1", "--ip: an address has quotas by itself"),
        ("remove --user a", "say which, or --all of them"),
        ("remove --user a --all --producer-byte-rate", "say which, or --all of them"),
    ],
)
def test_what_is_wrong_is_named(muster: Muster, words: str, why: str) -> None:
    ended = muster("quotas", *words.split())
    assert ended.code == 2
    assert why in ended.err


def test_what_the_broker_refuses_is_told(muster: Muster) -> None:
    ended = muster("quotas", "set", "--user", "alice", "--connection-creation-rate", "1")
    assert ended.code == 1
    assert "user alice: " in ended.err
    assert "connection_creation_rate" in ended.err
