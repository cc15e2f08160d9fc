"""How many connections an address may have, and how many it may open in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.server.admission import Admission, overrides_of
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.storage.store import BrokerConfigsRow
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.server.conftest import StartBrokers
from tests.support.facts import until
from tests.support.wire import Wire
from tests.support.wire_configs import BROKER, DELETE, SET, Change, altering

HERE, THERE = "127.0.0.1", "127.0.0.2"
LIMIT = "max.connections.per.ip"
NO_ADDRESSES = ("300.1.1.1", "10.0.0", "010.0.0.1", "[12345::1]", "[]", "localhost")


class Socket(asyncio.Transport):
    """Records what happens to a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.aborted = True


def made(rate_of: Callable[[str], float | None] = lambda address: None) -> tuple[Admission, ManualClock]:
    clock = ManualClock()
    return Admission(clock, Unserved(clock), rate_of), clock


def test_an_address_has_so_many_connections() -> None:
    admission, _ = made()
    admission.limit(2, {"10.0.0.9": 3})
    first, second, third = Socket(), Socket(), Socket()
    assert [admission.let_in(each, "10.0.0.1") for each in (first, second, third)] == [True, True, False]
    assert [each.aborted for each in (first, second, third)] == [False, False, True]
    assert admission.let_in(Socket(), "10.0.0.2"), "another address"
    assert [admission.let_in(Socket(), "10.0.0.9") for _ in range(4)] == [True, True, True, False]
    admission.left("10.0.0.1")
    assert admission.let_in(Socket(), "10.0.0.1")
    assert repr(admission) == "<Admission 6 from 3 addresses, 0 held>"


def test_nothing_is_kept_of_addresses_that_are_gone() -> None:
    admission, _ = made()
    admission.let_in(Socket(), "10.0.0.1")
    admission.left("10.0.0.1")
    assert not admission._open


def test_who_comes_too_fast_is_held_until_there_is_room() -> None:
    admission, clock = made(lambda address: 0.2 if address == "10.0.0.1" else None)
    assert [admission.let_in(Socket(), "10.0.0.1") for _ in range(2)] == [True, True]
    late = Socket()
    # Three in ten seconds are 0.3 a second, half as much again as there may be.
    assert not admission.let_in(late, "10.0.0.1")
    assert (late.paused, late.aborted) == (True, False)
    clock.advance(4_999)
    assert not late.aborted
    clock.advance(1)
    assert late.aborted
    assert admission.let_in(Socket(), "10.0.0.2"), "no quota"


def test_what_is_held_is_closed_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.coordinator.server.admission._HELD_MAX", 1)
    admission, _ = made(lambda address: 0.01)
    held, beyond = Socket(), Socket()
    assert not any(admission.let_in(each, "10.0.0.1") for each in (held, beyond))
    assert (held.aborted, beyond.aborted) == (False, True)
    admission.close()
    assert held.aborted


def test_rates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.coordinator.server.admission._RATES_MAX", 3)
    admission, _ = made(lambda address: 100.0)
    for number in range(10):
        admission.let_in(Socket(), f"10.0.0.{number}")
    assert list(admission._rates) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]
    admission.let_in(Socket(), "10.0.0.7")
    admission.let_in(Socket(), "10.0.1.1")
    assert list(admission._rates) == ["10.0.0.9", "10.0.0.7", "10.0.1.1"]


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        (" ", {}),
        ("127.0.0.1:5,[::1]:7", {"127.0.0.1": 5, "::1": 7}),
        (" 127.0.0.1:5 ", {"127.0.0.1": 5}),
        ("[2001:DB8:0:0::1]:3", {"2001:db8::1": 3}),
    ],
)
def test_overrides(text: str, overrides: dict[str, int]) -> None:
    assert overrides_of(text) == overrides


# --- over sockets -------------------------------------------------------------------------------------------


async def served(broker: Broker, address: str = HERE, **how: Any) -> Wire | None:
    """A connection that was answered; None if it was closed."""
    wire = await Wire.connect(broker.port, from_host=address, **how)
    try:
        asked = ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")
        await wire.call(asked, 3)
    except (ConnectionError, asyncio.IncompleteReadError):
        await wire.close()
        return None
    return wire


async def test_connections_of_an_address(start_brokers: StartBrokers) -> None:
    broker = (
        await start_brokers(max_connections_per_ip=1, max_connections_per_ip_overrides=f"{THERE}:2")
    ).brokers[0]
    first = await served(broker)
    assert first is not None
    assert await served(broker) is None
    others = [await served(broker, THERE) for _ in range(3)]
    assert [each is not None for each in others] == [True, True, False]
    await first.close()
    await until(lambda: broker.admission._open[HERE] == 0, "the broker has seen it go")
    again = await served(broker)
    assert again is not None
    for each in (again, *others):
        if each is not None:
            await each.close()


async def test_only_addresses_with_overrides_are_let_in_where_others_may_have_none(
    start_brokers: StartBrokers,
) -> None:
    settings = {"max_connections_per_ip": 0, "max_connections_per_ip_overrides": f"{THERE}:1"}
    broker = (await start_brokers(**settings)).brokers[0]
    assert await served(broker) is None
    there = await served(broker, THERE)
    assert there is not None
    await there.close()


async def test_refused_limits_of_addresses(start_brokers: StartBrokers) -> None:
    """As in Kafka, 0 is allowed beside overrides alone."""
    broker = (await start_brokers()).brokers[0]
    overrides = "max.connections.per.ip.overrides"
    let_in = (overrides, SET, f"{HERE}:9")
    async with await Wire.connect(broker.port) as wire:

        async def alter(*changes: Change) -> int:
            (answer,) = (await wire.call(altering((BROKER, "1", changes)), 1)).responses
            return int(answer.error_code)

        for address in NO_ADDRESSES:
            assert await alter((overrides, SET, f"{address}:5")) == ErrorCode.INVALID_REQUEST, address
        assert await alter((LIMIT, SET, "0")) == ErrorCode.INVALID_REQUEST
        assert await alter((LIMIT, SET, "0"), let_in) == ErrorCode.NONE
        assert await alter((overrides, DELETE, None)) == ErrorCode.INVALID_REQUEST
        assert await alter((LIMIT, DELETE, None), (overrides, DELETE, None)) == ErrorCode.NONE


@pytest.mark.parametrize("own", [("max.connections.per.ip.overrides", f"{HERE}:9"), (LIMIT, "9")])
async def test_a_limit_that_suits_another_broker_alone_locks_nobody_out(
    start_brokers: StartBrokers, own: tuple[str, str]
) -> None:
    first, second = (await start_brokers(brokers=2)).brokers
    async with await Wire.connect(first.port) as wire:
        for resource, change in ("1", (own[0], SET, own[1])), ("", (LIMIT, SET, "0")):
            (answer,) = (await wire.call(altering((BROKER, resource, [change])), 1)).responses
            assert answer.error_code == ErrorCode.NONE
    await until(lambda: second.configs.text(LIMIT) == "0", "the other broker to hear of it")
    wire_of_second = await served(second)
    assert wire_of_second is not None
    async with wire_of_second:
        (answer,) = (await wire_of_second.call(altering((BROKER, "", [(LIMIT, DELETE, None)])), 1)).responses
    assert answer.error_code == ErrorCode.NONE


async def test_a_stored_limit_that_lets_nobody_in_leaves_the_setting_in_force(
    start_brokers: StartBrokers,
) -> None:
    """Overrides that another broker blanked for all do not open one that lets in only some addresses."""
    broker = (
        await start_brokers(max_connections_per_ip=0, max_connections_per_ip_overrides=f"{THERE}:1")
    ).brokers[0]
    blank = BrokerConfigsRow("", {"max.connections.per.ip.overrides": " "})
    await broker.store.update_broker_configs(blank, expected={})
    await broker.configs.refresh()
    assert await served(broker) is None
    there = await served(broker, THERE)
    assert there is not None
    await there.close()


async def test_blank_overrides_are_none(start_brokers: StartBrokers) -> None:
    first, second = (await start_brokers(brokers=2)).brokers
    blank = ("max.connections.per.ip.overrides", SET, " ")
    async with await Wire.connect(first.port) as wire:
        (answer,) = (await wire.call(altering((BROKER, "", [blank])), 1)).responses
    assert answer.error_code == ErrorCode.NONE
    await first.catalogue.create("t")
    await until(lambda: second.catalogue.by_name("t"), "the other broker to hear of the topic")


async def test_a_quota_of_an_address(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.quotas.alter(frozenset({("ip", THERE)}), {"connection_creation_rate": 1.0})
    wires = [await served(broker, THERE) for _ in range(10)]
    assert None not in wires
    reader, late = await asyncio.open_connection(HERE, broker.port, local_addr=(THERE, 0))
    late.write(bytes(1_000_000))
    await until(lambda: len(broker.admission._held) == 1, "it is held")
    another = await served(broker)
    assert another is not None, "another address"
    assert (reader.at_eof(), reader.exception()) == (False, None), "nothing of it was read"
    late.transport.abort()
    await until(lambda: not broker.admission._held, "it is gone")
    for each in (another, *wires):
        assert each is not None
        await each.close()
