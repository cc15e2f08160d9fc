"""Events: the newest, and new ones as they happen; and what happens to readers that do not keep up."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import aiohttp
import pytest

from muster.coordinator.group.group import Group
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.names import Names
from muster.coordinator.web import events, feed
from muster.coordinator.web.feed import Feed, TooManySubscribers, Watched
from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.support.facts import DEADLINE_S, until


def entry(number: int, group: str | None = "billing", *, shard: int = 7, **data: Any) -> Entry:
    return Entry("member_added", 1_000 + number, 1, shard, group, number, data=data)


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    place: str | None
    data: Any


class Reader:
    """Reads a stream as a browser does."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> Event:
        """Return the next event, skipping comments and settings."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_S):
            while True:
                line = (await self.answer.content.readline()).decode()
                assert line, "the stream has ended"
                if line != "\n":
                    name, _, value = line.rstrip("\n").partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    return Event(fields["event"], fields.get("id"), json.loads(fields["data"]))
                else:
                    fields = {}

    async def ended(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert await self.answer.content.read() == b""


@asynccontextmanager
async def reading(shown: Shown, query: str = "", **headers: str) -> AsyncIterator[Reader]:
    url = f"{shown.page.url}/api/events/stream{query}"
    async with shown.http.get(url, headers=headers) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        yield Reader(answer)


async def test_the_newest_events_of_all_and_of_a_group(shown: Shown, member: Member) -> None:
    await shown.journalled("rebalance_completed")
    _, everything = await shown.get("/api/events?limit=1000")
    types = [each["type"] for each in everything["entries"]]
    assert types[0] == "group_created"
    assert "member_added" in types
    _, last = await shown.get("/api/events?group=billing&limit=3")
    assert [each["group"] for each in last["entries"]] == ["billing"] * 3
    assert last["entries"] == [each for each in everything["entries"] if each["group"] == "billing"][-3:]
    assert (await shown.get("/api/events?group=none"))[1] == {"entries": []}


async def test_what_two_brokers_know_is_told_once(show: Show) -> None:
    shown = await show(brokers=2)
    for broker in shown.brokers.brokers:
        broker.journal.add([entry(1), entry(2)])
    shown.brokers.brokers[1].journal.add([entry(3)])
    _, latest = await shown.get("/api/events")
    assert [each["generation"] for each in latest["entries"]] == [1, 2, 3]
    _, latest = await shown.get("/api/events?group=billing&limit=2")
    assert [each["generation"] for each in latest["entries"]] == [2, 3]


async def test_events_come_as_they_happen(shown: Shown) -> None:
    async with reading(shown) as reader, await Member.connect(shown.port) as member:
        await member.alone([0])
        types = []
        while "rebalance_completed" not in types:
            event = await reader.next()
            assert (event.name, event.data["group"], event.data["v"]) == ("entry", "billing", 1)
            types.append(event.data["type"])
        assert types[0] == "group_created"
        assert "member_added" in types


async def test_a_reader_of_one_group_hears_of_it_and_of_its_shard_alone(shown: Shown) -> None:
    shard = shown.broker.topology.group_lease("billing").number
    async with reading(shown, "?group=billing") as reader:
        for each in (
            entry(1, "audit", shard=shard),
            entry(2, None, shard=shard + 1),
            entry(3, None, shard=shard),
            entry(4, shard=shard),
        ):
            shown.broker.journal.add([each])
        assert [(await reader.next()).data["generation"] for _ in range(2)] == [3, 4]


async def test_members_are_named_once_for_all_readers(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shown.journalled("all_synced")
    named: list[str | None] = []
    names_of = events.names_of

    def counted(group: Group | None, entries: Iterable[Entry] = ()) -> Names:
        named.append(None if group is None else group.group_id)
        return names_of(group, entries)

    monkeypatch.setattr(events, "names_of", counted)
    async with reading(shown) as first, reading(shown) as second, reading(shown, "?group=billing") as third:
        await until(lambda: shown.page_feed.subscribers == 3)
        shown.broker.journal.add([entry(1), entry(2)])
        told = [[await reader.next() for _ in range(2)] for reader in (first, second, third)]
    assert [each.data["generation"] for each in told[0]] == [1, 2]
    assert told == [told[0]] * 3
    assert named == ["billing"]
    async with reading(shown, **{"Last-Event-ID": str(told[0][0].place)}) as late:
        assert await late.next() == told[0][1]
    assert named == ["billing"]


async def test_who_comes_back_goes_on_where_it_was(shown: Shown) -> None:
    async with reading(shown) as reader:
        shown.broker.journal.add([entry(1), entry(2), entry(3)])
        first = await reader.next()
    assert first.place is not None
    async with reading(shown, **{"Last-Event-ID": first.place}) as reader:
        shown.broker.journal.add([entry(4)])
        assert [(await reader.next()).data["generation"] for _ in range(3)] == [2, 3, 4]


@pytest.mark.parametrize("place", ["of-another-process", "00000000-1", "x", "", "1-99999999999999999999"])
async def test_who_comes_back_from_nowhere_is_told_of_the_gap(shown: Shown, place: str) -> None:
    shown.broker.journal.add([entry(1)])
    async with reading(shown, **{"Last-Event-ID": place}) as reader:
        event = await reader.next()
        assert (event.name, list(event.data)) == ("gap", ["why"])
        shown.broker.journal.add([entry(2)])
        assert (await reader.next()).data["generation"] == 2


@pytest.mark.parametrize("digits", [19, 5_000])
async def test_a_place_is_no_longer_than_those_that_were_given_out(shown: Shown, digits: int) -> None:
    shown.broker.journal.add([entry(1)])
    async with reading(shown) as reader:
        shown.broker.journal.add([entry(2)])
        place = (await reader.next()).place
    assert place is not None
    mark, _, _ = place.partition("-")
    async with reading(shown, **{"Last-Event-ID": f"{mark}-{'9' * digits}"}) as reader:
        assert (await reader.next()).name == "gap"


async def test_a_reader_that_stops_reading_is_cut_and_nobody_waits_for_it(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_WRITE_S", 0.2)
    monkeypatch.setattr(events, "_FAREWELL_S", 0.1)
    with socket.create_connection(("127.0.0.1", shown.page.port)) as slow:
        slow.sendall(b"GET /api/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        watching = shown.page_feed
        await until(lambda: watching.subscribers == 1)
        # More than the buffers of both sides and the queue can hold.
        big = "x" * 20_000
        number = 0
        async with asyncio.timeout(DEADLINE_S):
            while watching.subscribers:
                number += 1
                shown.broker.journal.add([entry(number, big=big)])
                assert await member.heartbeat() is ErrorCode.NONE
        slow.settimeout(DEADLINE_S)
        with suppress(ConnectionError):
            while slow.recv(65_536):
                pass


async def test_a_reader_that_takes_nothing_is_counted(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_WRITE_S", 0.2)
    with socket.create_connection(("127.0.0.1", shown.page.port)) as slow:
        slow.sendall(b"GET /api/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        watching = shown.page_feed
        await until(lambda: watching.subscribers == 1)
        # More than the buffers of both sides can hold; the queue can.
        shown.broker.journal.add([entry(number, big="x" * 20_000) for number in range(feed.WAITING_MAX)])
        await until(lambda: watching.subscribers == 0)
    assert "muster_event_streams_cut_total 1.0" in await shown.text("/metrics")


async def test_a_reader_that_falls_behind_is_told_so_at_the_end(shown: Shown) -> None:
    async with reading(shown) as reader:
        await until(lambda: shown.page_feed.subscribers == 1)
        # In one turn of the loop, so that none of it can be written in between.
        shown.broker.journal.add([entry(number) for number in range(feed.WAITING_MAX + 1)])
        event = await reader.next()
        assert (event.name, event.data["why"]) == (
            "cut",
            "the stream is read too slowly: connect again",
        )
        await reader.ended()
    assert shown.page_feed.cut == 1


async def test_streams_end_with_the_server(shown: Shown) -> None:
    async with reading(shown) as reader:
        closing = asyncio.create_task(shown.page.close())
        event = await reader.next()
        assert (event.name, event.data) == ("end", {"why": "the broker stops"})
        await reader.ended()
        async with asyncio.timeout(DEADLINE_S):
            await closing


async def test_only_so_many_streams(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SUBSCRIBERS_MAX", 1)
    async with reading(shown):
        status, answer = await shown.get("/api/events/stream")
        assert (status, answer["error"]) == (503, "no more streams: 1 are open already")
    await until(lambda: shown.page_feed.subscribers == 0)


async def test_a_quiet_stream_shows_signs_of_life(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SIGN_OF_LIFE_S", 0.01)
    monkeypatch.setattr(events, "_LOOK_S", 0.01)
    async with reading(shown) as reader:
        async with asyncio.timeout(DEADLINE_S):
            while await reader.answer.content.readline() != b": still here\n":
                pass


# --- the feed alone -----------------------------------------------------------------------------------------


async def test_places_are_found_as_long_as_entries_are_kept() -> None:
    made = Feed(kept_max=3)
    watching = made.subscribe()
    made.observe([entry(number) for number in range(5)])
    places = [made.place(each) for each in await watching.next(0)]
    assert len(places) == 5

    def after(place: str) -> tuple[bool, list[int]]:
        found = made.subscribe(after=place)
        return found.missed, [each.entry.generation or 0 for each in found._waiting]

    assert after(places[4]) == (False, [])
    assert after(places[3]) == (False, [4])
    assert after(places[1]) == (False, [2, 3, 4])
    assert after(places[0]) == (True, [2, 3, 4])


async def test_a_subscription_gets_what_is_its_own_in_order() -> None:
    made = Feed(waiting_max=2)
    mine = made.subscribe(Watched("billing", 7))
    made.observe([entry(1), entry(2, "audit"), entry(3, None, shard=8)])
    assert [each.entry.generation for each in await mine.next(1)] == [1]
    assert await mine.next(0) == []
    made.observe([entry(4), entry(5)])
    assert not mine.ended
    made.observe([entry(6, "audit")])
    assert not mine.ended
    made.observe([entry(7)])
    assert (mine.ended, mine.fell_behind, made.cut) == (True, True, 1)
    assert await mine.next(1) == []
    made.give_back(mine)
    assert made.subscribers == 0


async def test_who_is_cut_off_is_counted_once() -> None:
    made = Feed(waiting_max=1)
    stuck, slow = made.subscribe(), made.subscribe()
    made.cut_off(stuck)
    made.observe([entry(1), entry(2)])
    assert (stuck.fell_behind, slow.fell_behind, made.cut) == (True, True, 2)
    made.cut_off(slow)
    assert made.cut == 2


def test_after_the_end_nobody_waits() -> None:
    made = Feed()
    made.close()
    assert made.subscribe().ended


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SUBSCRIBERS_MAX", 0)
    with pytest.raises(TooManySubscribers, match="0 are open already"):
        Feed().subscribe()
