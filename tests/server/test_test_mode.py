"""`/test/...` over HTTP, with which test suites in any language drive a broker."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.web import app
from muster.coordinator.web.binding import prepare
from muster.coordinator.web.test_mode import NOT_IN_TEST_MODE
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.server.test_classic_group import stable_member
from tests.server.test_offsets import codes, commit
from tests.support.each import each
from tests.support.facts import until
from tests.support.leases import TERM_MS
from tests.support.wire import Wire


class Api:
    """Brokers and their HTTP API."""

    def __init__(self, brokers: Brokers, session: aiohttp.ClientSession, url: str) -> None:
        self.brokers = brokers
        self._session = session
        self._url = url

    async def ask(self, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
        """Send a request and return the JSON of the answer."""
        request: dict[str, Any] = {} if body is None else {"json": body}
        async with self._session.request(method, f"{self._url}/test/{path}", **request) as response:
            assert response.content_type == "application/json"
            answer = await response.json()
            assert response.status == status, answer
            return answer

    async def error(self, method: str, path: str, body: object = None, *, status: int = 400) -> str:
        answer = await self.ask(method, path, body, status=status)
        assert list(answer) == ["error"]
        return str(answer["error"])

    @property
    def ports(self) -> list[int]:
        return [broker.port for broker in self.brokers.brokers]


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Api]:
    defaults: dict[str, Any] = {
        "port": 0,
        "http": "127.0.0.1:0",
        "ephemeral": True,
        "test_mode": True,
        "group_initial_rebalance_delay_ms": 0,
        "lease_term_ms": TERM_MS,
        "log_level": "error",
    }
    brokers = Brokers(Settings(**{**defaults, **settings}))
    prepared = await prepare(brokers)
    await brokers.start()
    try:
        for broker in brokers.brokers:
            await broker.runtime.loaded()
        await brokers.brokers[0].catalogue.create("t")
        running = await app.start(prepared)
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                yield Api(brokers, session, running.url)
        finally:
            await running.close()
    finally:
        await brokers.stop()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with served() as api:
        yield api


@pytest.fixture
async def three() -> AsyncIterator[Api]:
    async with served(brokers=3) as api:
        yield api


async def test_outside_of_test_mode_there_is_nothing_and_it_says_why() -> None:
    async with served(test_mode=False) as api:
        for method, path in (("GET", "faults"), ("POST", "clock/advance"), ("DELETE", "faults/1")):
            assert await api.error(method, path, status=404) == NOT_IN_TEST_MODE


async def test_a_fault_from_its_rule_to_its_hits(api: Api) -> None:
    rule = {"api": "OffsetCommit", "group": "g", "nth": 2, "error": "NOT_COORDINATOR"}
    added = await api.ask("POST", "faults", rule)
    assert added == {"id": 1, **rule, "times": 1, "matched": 0, "fired": 0}
    waiting = asyncio.create_task(api.ask("GET", "faults/1?hit=1&timeout=30s"))
    async with await Wire.connect(api.ports[0], client_id="app") as wire:
        answers = [codes(await wire.call(commit(("t", 0, 1)), 8)) for _ in range(2)]
    assert answers == [[0], [ErrorCode.NOT_COORDINATOR]]
    hit = {**added, "matched": 2, "fired": 1}
    assert await waiting == hit
    listed = await api.ask("GET", "faults")
    assert listed["rules"] == [hit]
    (firing,) = listed["history"]
    shown = {name: firing[name] for name in ("rule", "api", "group", "client_id", "action")}
    assert shown == {
        "rule": 1,
        "api": "OffsetCommit",
        "group": "g",
        "client_id": "app",
        "action": "error NOT_COORDINATOR",
    }
    assert await api.ask("DELETE", "faults/1") == hit
    assert "no rule 1; existing rules: none" in await api.error("GET", "faults/1")
    await api.ask("POST", "faults", {"close_after": True})
    assert await api.ask("DELETE", "faults") == {}
    assert await api.ask("GET", "faults") == {"rules": [], "history": [], "held_markers": []}


async def test_a_firing_stands_in_the_journal(api: Api) -> None:
    await api.ask("POST", "faults", {"api": "Heartbeat", "group": "orders", "error": "NOT_COORDINATOR"})
    async with await Wire.connect(api.ports[0], client_id="app") as wire:
        member_id, generation = await stable_member(wire)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        await wire.call(beat, 4)
    journal = api.brokers.brokers[0].journal
    (entry,) = [each for each in journal.of("orders") if each.type == "fault_fired"]
    assert entry.data == {"rule": 1, "api": "Heartbeat", "action": "error NOT_COORDINATOR"}
    assert entry.member is not None
    assert (entry.member.id, entry.member.client_id, entry.generation) == (member_id, "app", generation)


async def test_a_wait_for_hits_ends(api: Api) -> None:
    await api.ask("POST", "faults", {"close_after": True, "times": 2})
    said = await api.error("GET", "faults/1?hit=2&timeout=10ms", status=504)
    assert said == "rule 1 was applied 0 times within 10 ms, not 2"
    said = await api.error("GET", "faults/1?hit=3&timeout=10ms", status=400)
    assert said == "rule 1 has times=2: it is never applied 3 times"


@each(
    "method, path, body, said",
    [
        (
            "POST",
            "faults",
            {"api": "Heartbeet", "close_after": True},
            "api: 'Heartbeet' .*did you mean Heartbeat",
        ),
        ("POST", "faults", {"delay": "soon"}, "delay: "),
        ("POST", "faults", [], "the body must be a JSON object"),
        ("GET", "faults/x", None, "id: 'x' is not a whole number"),
        ("GET", "faults/1?hits=1", None, "hits: no such parameter; it takes hit, timeout"),
        ("POST", "brokers/1/kill?now", None, "now: no such parameter; none is accepted here"),
        ("GET", "faults/1?hit=0", None, "hit: 0 is not allowed"),
        ("GET", "faults/1?hit=1&timeout=2h", None, "timeout: '2h' is not allowed; it takes up to 600 s"),
        ("POST", "clock/advance", {}, "by: a duration is required"),
        ("POST", "clock/advance", {"by": "-1s"}, "by: .*negative"),
        (
            "POST",
            "clock/advance",
            {"by": "1s", "expire": True},
            "expire: no such field; it takes by, expire_all",
        ),
        ("POST", "clock/advance", {"by": "1s", "expire_all": 1}, "expire_all: 1 is not allowed"),
        ("POST", "stall", {"group": "g"}, "member: None is not allowed; it takes text"),
        ("POST", "brokers/7/kill", None, "id: 7 is not a broker here; choose from 1"),
        ("POST", "brokers/1/kill", {"now": 1}, "now: no such field; none is accepted here"),
        (
            "POST",
            "faults",
            {"broker": 7, "close_after": True},
            "broker: 7 is not a broker here; choose from 1",
        ),
        ("POST", "groups/g/move", {"to": 7}, "to: 7 is not a broker here; choose from 1"),
        ("POST", "groups/g/move", {}, "to: None is not a broker here"),
        ("POST", "groups/g/hold", {"limit": "2 days"}, "limit: '2 days' is not allowed"),
        ("POST", "shards/50/hold", None, "shard: there is no shard 50; shards are 0 to 49"),
        ("POST", "shards/x/release", None, "shard: 'x' is not a whole number"),
    ],
)
async def test_what_is_asked_wrongly_is_named(
    api: Api, method: str, path: str, body: object, said: str
) -> None:
    answered = await api.error(method, path, body)
    assert re.search(said, answered), answered


async def test_a_body_that_is_no_json(api: Api) -> None:
    async with api._session.post(f"{api._url}/test/faults", data=b"{") as response:
        assert response.status == 400
        assert (await response.json())["error"].startswith("the body is not JSON: ")


async def test_a_body_that_is_nested_too_deeply(api: Api) -> None:
    async with api._session.post(f"{api._url}/test/faults", data=b"[" * 30_000 + b"]" * 30_000) as response:
        assert response.status == 400
        assert (await response.json())["error"].startswith("the body ")


async def test_the_clock_moves_and_members_can_be_stalled(api: Api) -> None:
    before_ms = (await api.ask("GET", "clock"))["now_ms"]
    async with await Wire.connect(api.ports[0], client_id="web-1") as wire:
        member_id, generation = await stable_member(wire)
        moved = await api.ask("POST", "clock/advance", {"by": "1h"})
        assert moved["now_ms"] >= before_ms + 3_600_000
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE  # it was presumed alive
        said = await api.error("POST", "stall", {"group": "orders", "member": "nobody"}, status=409)
        assert "has no member 'nobody'" in said
        await api.ask("POST", "stall", {"group": "orders", "member": member_id})
        await api.ask("POST", "unstall", {"group": "orders", "member": "web-1"})
        await api.ask("POST", "clock/advance", {"by": "1h"})
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
        await api.ask("POST", "stall", {"group": "orders", "member": member_id})
        await api.ask("POST", "clock/advance", {"by": "1h"})
        assert (await wire.call(beat, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_everything_can_be_made_to_expire(api: Api) -> None:
    async with await Wire.connect(api.ports[0]) as wire:
        member_id, generation = await stable_member(wire)
        await api.ask("POST", "clock/advance", {"by": "1h", "expire_all": True})
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_brokers_are_killed_paused_and_back(three: Api) -> None:
    async def states() -> list[str]:
        return [each["state"] for each in (await three.ask("GET", "brokers"))["brokers"]]

    address = three.brokers.brokers[1].address
    assert await three.ask("POST", "brokers/2/kill") == {"id": 2, "address": address, "state": "down"}
    assert (
        await three.error("POST", "brokers/2/pause", status=409)
        == "broker 2 is not running; restart it first"
    )
    assert (await three.ask("POST", "brokers/3/pause"))["state"] == "paused"
    assert await three.error("POST", "brokers/3/restart", status=409) == (
        "broker 3 is running; stop or kill it first"
    )
    assert await states() == ["running", "down", "paused"]
    assert (await three.ask("POST", "brokers/2/restart"))["state"] == "running"
    assert (await three.ask("POST", "brokers/3/resume"))["state"] == "running"
    assert (await three.ask("POST", "brokers/3/stop"))["state"] == "down"
    assert await states() == ["running", "running", "down"]
    assert (await three.ask("POST", "brokers/3/restart"))["address"] == three.brokers.brokers[2].address


async def test_a_group_is_moved_held_open_and_let_go(three: Api) -> None:
    group = "a/b c"
    path = "groups/a%2Fb%20c"
    shard = three.brokers.shard_faults.lease_of(group=group).number
    for node_id in (1, 2, 3):
        assert await three.ask("POST", f"{path}/move", {"to": node_id}) == {"broker": node_id}
        coordinator = three.brokers.brokers[0].topology.coordinator(group)
        assert coordinator is not None
        assert coordinator.node_id == node_id
    assert await three.ask("POST", f"{path}/hold", {"limit": "1h", "reload": True}) == {"shard": shard}
    shards = await three.ask("GET", "shards")
    assert shards == {"pinned": [{"shard": shard, "broker": 3}], "held": [shard]}
    assert await three.ask("POST", f"{path}/release") == {"was_held": True}
    assert await three.ask("POST", f"shards/{shard}/release") == {"was_held": False}
    assert await three.ask("POST", f"{path}/unpin") == {"was_pinned": True}
    await three.ask("POST", f"shards/{shard}/hold")
    assert (await three.ask("GET", "shards"))["held"] == [shard]
    await three.ask("POST", f"shards/{shard}/release")
    await three.ask("POST", "brokers/2/pause")
    assert await three.error("POST", f"{path}/move", {"to": 2}, status=409) == (
        "to: broker 2 is paused and cannot take over; resume it first"
    )
    await three.ask("POST", "brokers/2/resume")
    await three.ask("POST", "brokers/3/kill")
    assert await three.error("POST", f"{path}/move", {"to": 3}, status=409) == (
        "to: broker 3 is not running; restart it first"
    )
    await three.ask("POST", "brokers/3/restart")
    await until(lambda: len(three.brokers.brokers[0].topology.nodes) == 3, "all to be there")


async def test_markers_are_held_and_let_go(api: Api) -> None:
    for topic in (None, "totals"):
        held = {"transactional_id": "a/b c", "topic": topic}
        assert await api.ask("POST", "transactions/a%2Fb%20c/hold", {"topic": topic}) == held
    assert len((await api.ask("GET", "faults"))["held_markers"]) == 2
    assert api.brokers.faults.marker_holds.cover("a/b c", "orders")
    assert await api.ask("POST", "transactions/a%2Fb%20c/release") == {"was_held": True}
    assert await api.ask("POST", "transactions/a%2Fb%20c/release") == {"was_held": False}
    assert (await api.ask("GET", "faults"))["held_markers"] == []
    said = await api.error("POST", "transactions/etl-1/hold", {"topic": 7}, status=400)
    assert said == "topic: 7 is not allowed; it takes text"
    await api.ask("POST", "transactions/etl-1/hold")
    await api.ask("DELETE", "faults")
    assert not api.brokers.faults.marker_holds.cover("etl-1", "totals")


async def test_the_page_tells_nothing_but_what_works() -> None:
    """Runs every curl command of docs/faults.md, in order."""
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    commands = re.findall(r"^\$ (curl .*?)(?:  +#.*)?$", page, re.MULTILINE)
    assert len(commands) > 15
    # The last of them leave brokers to which nothing can be handed over, so stopping does not wait for that.
    async with served(brokers=3, shutdown_grace_ms=0) as three:
        for command in commands:
            options = shlex.split(command)[1:]
            (url,) = (each for each in options if each.startswith("localhost:9095/"))
            body = json.loads(options[options.index("-d") + 1]) if "-d" in options else None
            method = options[options.index("-X") + 1] if "-X" in options else "POST" if body else "GET"
            path = url.removeprefix("localhost:9095/test/").replace("timeout=30s", "timeout=10ms")
            # The group has no members here, and nothing happens that a fault could apply to.
            expected = 409 if path == "stall" else 504 if "hit=" in path else 200
            await three.ask(method, path, body, status=expected)
