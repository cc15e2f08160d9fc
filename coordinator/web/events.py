"""`/api/events` and `/api/events/stream`: what happens in groups, as journal entries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.names import Names
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.web.entries_json import NamesOf, entries_json, entry_json
from muster.coordinator.web.facts import any_broker, group_of, journalled, names_of, newest
from muster.coordinator.web.feed import Feed, Numbered, Subscription, TooManySubscribers, Watched
from muster.coordinator.web.guard import refusal, whole_number
from muster.coordinator.web.keys import BROKERS, FEED

LATEST_MAX: Final = 1_000
_LATEST: Final = 100
_SIGN_OF_LIFE_S: Final = 15.0
"""A comment is sent after this long without an entry, so that proxies keep the connection and we notice its
end."""
_LOOK_S: Final = 1.0
"""How often to check that a reader is still there while there is nothing to send."""
_WRITE_S: Final = 10.0
"""A reader that takes nothing for this long, with a full buffer, is disconnected."""
_FAREWELL_S: Final = 1.0
_CHUNK_BYTES: Final = 256 * 1024
_COME_BACK_MS: Final = 2_000


def add_routes(app: web.Application) -> None:
    """Add `/api/events` and its stream."""
    app.router.add_get("/api/events", latest)
    app.router.add_get("/api/events/stream", stream, allow_head=False)


# --- the newest ---------------------------------------------------------------------------------------------


async def latest(request: web.Request) -> web.Response:
    """The last `limit` entries, newest last, of one `group` or of all."""
    limit = whole_number(request, "limit", _LATEST, LATEST_MAX)
    group = request.query.get("group")
    brokers = request.app[BROKERS]
    entries = newest(brokers, limit) if group is None else journalled(brokers, group)[-limit:]
    body = await asyncio.to_thread(entries_json, entries, _names(brokers, entries))
    return web.Response(body=b'{"entries": ' + body + b"}", content_type="application/json")


# --- the stream ---------------------------------------------------------------------------------------------


async def stream(request: web.Request) -> web.StreamResponse:
    """Entries as they arrive (server-sent events), of one `group` or of all."""
    feed = request.app[FEED]
    group = request.query.get("group")
    watched = None
    if group is not None:
        watched = Watched(group, any_broker(request.app[BROKERS]).topology.group_lease(group).number)
    try:
        subscription = feed.subscribe(watched, request.headers.get("Last-Event-ID"))
    except TooManySubscribers as error:
        raise refusal(web.HTTPServiceUnavailable, f"no more streams: {error}") from None
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"},
    )
    try:
        await response.prepare(request)
        await _write(response, f"retry: {_COME_BACK_MS}\n\n".encode())
        if subscription.missed:
            await _write(
                response,
                _event("gap", {"why": "events since then are no longer kept: read everything again"}),
            )
        await _send(request, response, feed, subscription)
    except TimeoutError:
        feed.cut_off(subscription)
        await _say_farewell(request, response, subscription)
    except ConnectionError:
        pass  # it went away
    finally:
        feed.give_back(subscription)
    return response


async def _send(
    request: web.Request, response: web.StreamResponse, feed: Feed, subscription: Subscription
) -> None:
    quiet_since = time.monotonic()
    while not subscription.ended:
        some = await subscription.next(_LOOK_S)
        if request.transport is None or request.transport.is_closing():
            return  # it went away; with nothing to write, nobody else would notice
        if not some and not subscription.ended and time.monotonic() >= quiet_since + _SIGN_OF_LIFE_S:
            quiet_since = time.monotonic()
            await _write(response, b": still here\n\n")
        chunk = bytearray()
        # Naming the members of a large group takes a while, so the first reader does it for all.
        names_of = _names(request.app[BROKERS], [each.entry for each in some if each.event is None])
        for each in some:
            if each.event is None:
                each.event = _entry_event(feed, each, names_of(each.entry.group))
            chunk += each.event
            if len(chunk) >= _CHUNK_BYTES:
                await _write(response, bytes(chunk))
                chunk.clear()
        if chunk:
            await _write(response, bytes(chunk))
    await _write(response, _last_event(subscription))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError if the reader does not take it."""
    async with asyncio.timeout(_WRITE_S):
        await response.write(data)


async def _say_farewell(
    request: web.Request, response: web.StreamResponse, subscription: Subscription
) -> None:
    """Send the last event. Earlier data comes first, so whether it gets through is up to the reader."""
    try:
        async with asyncio.timeout(_FAREWELL_S):
            await response.write(_last_event(subscription))
    except (TimeoutError, ConnectionError):
        pass
    if request.transport is not None:
        request.transport.abort()


def _last_event(subscription: Subscription) -> bytes:
    if subscription.fell_behind:
        return _event("cut", {"why": "the stream is read too slowly: connect again"})
    return _event("end", {"why": "the broker stops"})


def _event(name: str, value: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def _names(brokers: Brokers, entries: Sequence[Entry]) -> NamesOf:
    """The names of members in the groups of these entries."""
    by_group: dict[str | None, list[Entry]] = {}
    for each in entries:
        by_group.setdefault(each.group, []).append(each)
    names = {
        group_id: names_of(None if group_id is None else group_of(brokers, group_id), some)
        for group_id, some in by_group.items()
    }
    return names.__getitem__


def _entry_event(feed: Feed, each: Numbered, names: Names) -> bytes:
    # The JSON has no line breaks, so it fits one data line.
    return b"id: %b\nevent: entry\ndata: %b\n\n" % (feed.place(each).encode(), entry_json(each.entry, names))
