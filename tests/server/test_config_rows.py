"""Who is notified of config rows, and when."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import BrokerConfigsRow
from muster.protocol.errors import ErrorCode, KafkaError


async def test_listeners_are_told_of_the_first_rows_and_of_others_alone() -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    told: list[Rows] = []
    rows.listeners.append(told.append)
    await rows.refresh()
    await rows.refresh()
    assert told == [{}]
    await store.update_broker_configs(BrokerConfigsRow("1", {"a": "b"}), expected={})
    await rows.refresh()
    await rows.refresh()
    assert told == [{}, {"1": {"a": "b"}}]


async def test_a_listener_that_failed_is_told_again() -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    told: list[Rows] = []

    def failing(found: Rows) -> None:
        told.append(found)
        if len(told) == 1:
            raise RuntimeError("once")

    rows.listeners.append(failing)
    with pytest.raises(RuntimeError, match="once"):
        await rows.refresh()
    await rows.refresh()
    await rows.refresh()
    assert told == [{}, {}]


async def test_a_listener_that_fails_keeps_nothing_from_those_behind_it() -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    told: list[Rows] = []

    def failing(found: Rows) -> None:
        raise RuntimeError(f"the {['second', 'first'][not told]}")

    rows.listeners += [failing, told.append, failing, told.append]
    with pytest.raises(RuntimeError, match="the first"):
        await rows.refresh()
    assert told == [{}, {}]


async def test_a_change_that_another_broker_has_undone_is_made() -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    await rows.change("1", lambda _: {"a": "b"})
    await store.update_broker_configs(BrokerConfigsRow("1", {"a": "c"}), expected={"a": "b"})
    await rows.change("1", lambda _: {"a": "b"})
    assert await store.broker_configs() == [BrokerConfigsRow("1", {"a": "b"})]


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_change_is_refused_for_what_the_store_holds_alone(validate_only: bool) -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    await rows.change("1", lambda _: {"a": "8"})

    def doubled(before: Mapping[str, str]) -> Mapping[str, str]:
        if before != {"a": "16"}:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"it is {before['a']}")
        return {"a": "32"}

    with pytest.raises(KafkaError, match="it is 8"):
        await rows.change("1", doubled, validate_only=validate_only)
    await store.update_broker_configs(BrokerConfigsRow("1", {"a": "16"}), expected={"a": "8"})
    await rows.change("1", doubled, validate_only=validate_only)
    kept = "16" if validate_only else "32"
    assert await store.broker_configs() == [BrokerConfigsRow("1", {"a": kept})]


async def test_rows_that_are_to_stay_as_they_are_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await store.open()
    rows = ConfigRows(store)
    kept = {str(number): lambda _: {"a": "b"} for number in range(50)}
    await rows.change_all(kept)
    reads = 0
    read = store.broker_configs

    async def counted() -> list[BrokerConfigsRow]:
        nonlocal reads
        reads += 1
        return await read()

    monkeypatch.setattr(store, "broker_configs", counted)
    await rows.change_all(kept)
    assert reads == 1
