"""`/test/...`: the clock, faults, brokers, shards and markers, for test suites in any language. Only in test
mode. Requests and responses are JSON; see `docs/faults.md`. An invalid request gets 400 with `{"error":
text}`, where the text names the field; one that is impossible in the current state 409; one that timed out
504.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiohttp import web

from muster.coordinator.journal.explain.names import listed
from muster.coordinator.peers.marker_holds import MarkerHold
from muster.coordinator.runtime.holds import HOLD_DEFAULT_MS
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.listener import BindError
from muster.coordinator.server.test_mode.advancing import ClockFixed
from muster.coordinator.server.test_mode.faults import (
    FaultError,
    NotAsThingsAre,
    Rule,
    read_count,
    read_duration,
)
from muster.coordinator.storage.store import StoreError
from muster.coordinator.web.facts import group_of, names_of
from muster.coordinator.web.guard import TEST_PREFIX, refusal, route

NOT_IN_TEST_MODE: Final = "this broker is not in test mode: start it with muster serve --test-mode"
_ADVANCE_MAX_MS: Final = 1_000 * 365 * 86_400_000
_WAIT_DEFAULT: Final = "30s"
_WAIT_MAX_MS: Final = 600_000
_HOLD_MAX_MS: Final = 86_400_000

Body = dict[str, Any]
Work = Callable[[web.Request, Body], Awaitable[object]]


def add_routes(app: web.Application, brokers: Brokers) -> None:
    """Add the routes; outside test mode, one that says so."""
    if not brokers.settings.test_mode:
        app.router.add_route("*", f"{TEST_PREFIX}{{rest:.*}}", _refuse)
        return
    staging = Staging(brokers)
    for method, path, work, fields in (
        ("GET", "faults", staging.list_faults, ""),
        ("POST", "faults", staging.add_fault, None),
        ("DELETE", "faults", staging.clear_faults, ""),
        ("GET", "faults/{id}", staging.show_fault, "hit timeout"),
        ("DELETE", "faults/{id}", staging.remove_fault, ""),
        ("GET", "clock", staging.show_clock, ""),
        ("POST", "clock/advance", staging.advance, "by expire_all"),
        ("POST", "stall", staging.stall, "group member"),
        ("POST", "unstall", staging.unstall, "group member"),
        ("GET", "brokers", staging.list_brokers, ""),
        ("POST", "brokers/{id}/{action:stop|kill|pause|resume|restart}", staging.act_on_broker, ""),
        ("GET", "shards", staging.list_shards, ""),
        ("POST", "groups/{group}/move", staging.move, "to"),
        ("POST", "groups/{group}/unpin", staging.unpin, ""),
        ("POST", "groups/{group}/hold", staging.hold, "limit reload"),
        ("POST", "groups/{group}/release", staging.release, ""),
        ("POST", "transactions/{id}/hold", staging.hold_markers, "topic"),
        ("POST", "transactions/{id}/release", staging.release_markers, ""),
        ("POST", "shards/{shard}/hold", staging.hold, "limit reload"),
        ("POST", "shards/{shard}/release", staging.release, ""),
    ):
        known = None if fields is None else fields.split()
        handler = _handler(work, [], known) if method == "GET" else _handler(work, known, [])
        app.router.add_route(method, route(TEST_PREFIX + path), handler)


async def _refuse(request: web.Request) -> web.StreamResponse:
    raise refusal(web.HTTPNotFound, NOT_IN_TEST_MODE)


def _handler(
    work: Work, fields: list[str] | None, parameters: list[str] | None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler for `work`. `fields`, `parameters`: those that the body and the query may have; None if
    `work` checks them."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await _body(request)
            _check_known("field", body, fields)
            _check_known("parameter", request.query, parameters)
            return web.json_response(await work(request, body))
        except (NotAsThingsAre, LookupError, ClockFixed, StoreError, BindError) as error:
            raise refusal(web.HTTPConflict, str(error)) from None
        except (FaultError, ValueError) as error:
            raise refusal(web.HTTPBadRequest, str(error)) from None
        except TimeoutError as error:
            raise refusal(web.HTTPGatewayTimeout, str(error)) from None

    return handle


async def _body(request: web.Request) -> Body:
    """The request's JSON object; empty without a body. Raises FaultError."""
    text = await request.text()
    try:
        given = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise FaultError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise FaultError("the body is nested too deeply") from None
    if not isinstance(given, dict):
        raise FaultError("the body must be a JSON object")
    return given


def _check_known(what: str, given: Iterable[str], known: list[str] | None) -> None:
    for name in given:
        if known is not None and name not in known:
            there = f"it takes {', '.join(known)}" if known else "none is accepted here"
            raise FaultError(f"{name}: no such {what}; {there}")


class Staging:
    """The routes' handlers. Each returns the JSON response."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    # --- faults ---------------------------------------------------------------------------------------------

    async def add_fault(self, request: web.Request, body: Body) -> object:
        rule_id = self._brokers.add_fault(Rule.read(body))
        return self._brokers.faults.status(rule_id).to_json()

    async def list_faults(self, request: web.Request, body: Body) -> object:
        faults = self._brokers.faults
        return {
            "rules": [each.to_json() for each in faults.rules()],
            "history": [each.to_json() for each in faults.history],
            "held_markers": [each.to_json() for each in faults.marker_holds.holds()],
        }

    async def clear_faults(self, request: web.Request, body: Body) -> object:
        self._brokers.faults.clear()
        return {}

    async def show_fault(self, request: web.Request, body: Body) -> object:
        """With `?hit=N`, wait until it has been applied N times, for at most `?timeout=`."""
        rule_id = _number("id", request.match_info["id"])
        faults = self._brokers.faults
        if "hit" in request.query:
            times = read_count("hit", _number("hit", request.query["hit"]))
            limit_ms = read_duration("timeout", request.query.get("timeout", _WAIT_DEFAULT), _WAIT_MAX_MS)
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await faults.hit(rule_id, times)
            except TimeoutError:
                raise TimeoutError(
                    f"rule {rule_id} was applied {faults.fired(rule_id)} times within {limit_ms} ms, "
                    f"not {times}"
                ) from None
        return faults.status(rule_id).to_json()

    async def remove_fault(self, request: web.Request, body: Body) -> object:
        faults, rule_id = self._brokers.faults, _number("id", request.match_info["id"])
        status = faults.status(rule_id)
        faults.remove(rule_id)
        return status.to_json()

    async def hold_markers(self, request: web.Request, body: Body) -> object:
        topic = None if body.get("topic") is None else _text("topic", body)
        hold = MarkerHold(request.match_info["id"], topic)
        self._brokers.faults.marker_holds.hold(hold)
        return hold.to_json()

    async def release_markers(self, request: web.Request, body: Body) -> object:
        return {"was_held": self._brokers.faults.marker_holds.release_all(request.match_info["id"])}

    # --- the clock ------------------------------------------------------------------------------------------

    async def show_clock(self, request: web.Request, body: Body) -> object:
        return {"now_ms": self._brokers.now_ms()}

    async def advance(self, request: web.Request, body: Body) -> object:
        if body.get("by") is None:
            raise FaultError("by: a duration is required, such as 45s or 7 days")
        by_ms = read_duration("by", body["by"], _ADVANCE_MAX_MS)
        await self._brokers.advance(by_ms, expire_all=_flag("expire_all", body))
        return {"now_ms": self._brokers.now_ms()}

    async def stall(self, request: web.Request, body: Body) -> object:
        self._brokers.stall(*self._member(body))
        return {}

    async def unstall(self, request: web.Request, body: Body) -> object:
        self._brokers.unstall(*self._member(body))
        return {}

    def _member(self, body: Body) -> tuple[str, str]:
        """The group, and the id of the member that `member` names. If it names nobody, it is passed on
        unchanged."""
        group_id, named = _text("group", body), _text("member", body)
        group = group_of(self._brokers, group_id)
        names = names_of(group)
        meant = [] if group is None else names.meant(named)
        if len(meant) > 1:
            several = listed([names.short(each) for each in meant])
            raise FaultError(
                f"member: {named} is the name of {len(meant)} members: {several}; use a member id"
            )
        return group_id, meant[0].id if meant else named

    # --- brokers --------------------------------------------------------------------------------------------

    async def list_brokers(self, request: web.Request, body: Body) -> object:
        return {"brokers": [self._broker(index) for index in range(len(self._brokers.brokers))]}

    async def act_on_broker(self, request: web.Request, body: Body) -> object:
        index, action = self._index("id", request.match_info["id"]), request.match_info["action"]
        brokers = self._brokers
        broker = brokers.brokers[index]
        brokers.check_runs(index, f"broker {broker.node_id}", runs=action != "restart")
        if action == "restart":
            await brokers.start_one(index)
        elif action == "stop":
            await brokers.stop_one(index)
        elif action == "kill":
            await brokers.kill_one(index)
        elif action == "pause":
            broker.pause()
        else:
            broker.resume()
        return self._broker(index)

    def _broker(self, index: int) -> Body:
        broker = self._brokers.brokers[index]
        runs = broker in self._brokers.running
        state = "down" if not runs else "paused" if broker.paused else "running"
        return {"id": broker.node_id, "address": broker.address, "state": state}

    def _index(self, name: str, given: object) -> int:
        return self._brokers.index_of(name, _number(name, given) if isinstance(given, str) else given)

    # --- shards ---------------------------------------------------------------------------------------------

    async def list_shards(self, request: web.Request, body: Body) -> object:
        faults = self._brokers.shard_faults
        pinned = [{"shard": number, "broker": node_id} for number, node_id in sorted(faults.pinned().items())]
        return {"pinned": pinned, "held": faults.held()}

    async def move(self, request: web.Request, body: Body) -> object:
        index = self._index("to", body.get("to"))
        await self._brokers.move_coordinator(request.match_info["group"], index)
        return {"broker": self._brokers.brokers[index].node_id}

    async def unpin(self, request: web.Request, body: Body) -> object:
        return {"was_pinned": self._brokers.unpin(request.match_info["group"])}

    async def hold(self, request: web.Request, body: Body) -> object:
        faults = self._brokers.shard_faults
        lease = faults.lease_of(**_which(request))
        limit_ms = HOLD_DEFAULT_MS
        if body.get("limit") is not None:
            limit_ms = read_duration("limit", body["limit"], _HOLD_MAX_MS)
        await faults.hold(lease, limit_ms, reload=_flag("reload", body))
        return {"shard": lease.number}

    async def release(self, request: web.Request, body: Body) -> object:
        faults = self._brokers.shard_faults
        return {"was_held": faults.release(faults.lease_of(**_which(request)))}


def _which(request: web.Request) -> Body:
    group, shard = request.match_info.get("group"), request.match_info.get("shard")
    return {"group": group} if group is not None else {"shard": _number("shard", shard or "")}


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise FaultError(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


def _text(name: str, body: Body) -> str:
    given = body.get(name)
    if not isinstance(given, str):
        raise FaultError(f"{name}: {given!r} is not allowed; it takes text")
    return given


def _flag(name: str, body: Body) -> bool:
    given = body.get(name, False)
    if not isinstance(given, bool):
        raise FaultError(f"{name}: {given!r} is not allowed; it takes true or false")
    return given
