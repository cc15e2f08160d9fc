"""Groups as JSON: the list, a single group, what happened, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from yarl import URL

from muster.coordinator.observe.lag import Lag, PartitionLag
from muster.coordinator.web import api
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.group_admin import DeleteGroupsRequest
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.support.facts import until


async def test_groups_are_listed_with_state_members_lag_and_last_rebalance(
    shown: Shown, member: Member
) -> None:
    await member.produce(1, 5)
    assert await member.commit({1: 2}) is ErrorCode.NONE
    await shown.journalled("rebalance_completed")
    status, answer = await shown.get("/api/groups")
    assert status == 200
    (group,) = answer["groups"]
    assert (group["group"], group["state"], group["members"]) == ("billing", "Stable", 1)
    assert (group["topics"], group["lag"], group["generation"]) == (["orders"], 3, 1)
    assert (group["protocol"], group["broker"], group["rebalance"]) == ("range", 1, None)
    assert group["last_rebalance"]["cause"] == "member joined"
    assert group["last_rebalance"]["member"]["client_id"] == "web-1"
    (broker,) = answer["brokers"]
    assert (broker["node_id"], broker["address"]) == (1, shown.broker.address)
    assert broker["connections"] == len(shown.broker.connections.open) >= 1
    assert (answer["elsewhere"], answer["more"], answer["loading"]) == ([], 0, 0)


async def test_a_group_that_rebalances_stands_first_and_says_for_whom_it_waits(
    shown: Shown, member: Member
) -> None:
    async with await Member.connect(shown.port, "audit", client_id="auditor") as other:
        await other.alone([])
        async with await Member.connect(shown.port, client_id="web-2") as second:
            await second.ask_to_join()  # parked until web-1 joins again
            await until(lambda: member_group(shown).state == "PreparingRebalance")
            _, answer = await shown.get("/api/groups")
            assert [each["group"] for each in answer["groups"]] == ["billing", "audit"]
            rebalance = answer["groups"][0]["rebalance"]
            assert (rebalance["trigger"], rebalance["waiting_for"]) == ("member joined", 1)
            _, group = await shown.get("/api/groups/billing")
            owes = {each["client_id"]: each["owes"] for each in group["members"]}
            assert owes == {"web-1": "JoinGroup", "web-2": None}
            assert [each["assigned"] for each in group["members"]] == [None, None]
            _, why = await shown.get("/api/groups/billing/why")
            assert (why["outcome"], why["diagnosis"]) == ("under way", "new-member")
            assert [each["member"]["client_id"] for each in why["waiting"]] == ["web-1"]


async def test_sentences_tell_times_in_the_zone_that_is_asked_for(shown: Shown, member: Member) -> None:
    await shown.journalled("rebalance_completed")

    async def begins(query: str) -> str:
        status, why = await shown.get(f"/api/groups/billing/why{query}")
        assert status == 200, query
        told: str = why["lines"][0].split(" · ")[2].split(" ")[0]
        began = datetime.fromtimestamp(why["started_ms"] / 1000, UTC)
        for zone in ("UTC", "Asia/Tokyo", "Asia/Kolkata"):
            if told.startswith(began.astimezone(ZoneInfo(zone)).strftime("%H:%M:%S.")):
                return zone
        return told

    assert await begins("") == "UTC"
    assert await begins("?utc_offset=330") == "Asia/Kolkata"
    assert await begins("?zone=Asia/Tokyo&utc_offset=330") == "Asia/Tokyo"
    assert await begins("?zone=Asia/Kolkata") == "Asia/Kolkata"
    # A browser may know zones that a broker does not.
    for unknown in (
        "Mars/Olympus",
        "Asia",
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "a\0",
        "x" * 5_000,
        "\ud800",
    ):
        zone = quote(unknown, errors="replace")
        assert await begins(f"?zone={zone}&utc_offset=330") == "Asia/Kolkata", unknown
        status, refused = await shown.get(f"/api/groups/billing/why?zone={zone}")
        assert status == 400, unknown
        assert refused["error"].startswith("zone: ")


async def test_members_of_one_client_id_have_one_name_each_in_all_answers(
    shown: Shown, member: Member
) -> None:
    async with await Member.connect(shown.port, client_id="web-1") as twin:
        await twin.ask_to_join()
        await until(lambda: member_group(shown).state == "PreparingRebalance")
        await shown.journalled("member_added")
        names = {each.id: f"web-1/{each.id[-6:]}" for each in (member, twin)}
        _, group = await shown.get("/api/groups/billing")
        assert {each["id"]: each["name"] for each in group["members"]} == names
        _, why = await shown.get("/api/groups/billing/why")
        assert why["names"].items() <= names.items()
        assert f"member {names[twin.id]} (host 127.0.0.1) joined" in why["what"]
        _, past = await shown.get("/api/groups/billing/timeline")
        assert past["names"] == names
        _, latest = await shown.get("/api/events")
        for entries in (past["entries"], latest["entries"]):
            of_members = [each for each in entries if each["group"] == "billing" and each["member"]]
            assert {each["name"] for each in of_members} == set(names.values())
            added = [each for each in of_members if each["type"] == "member_added"][-1]
            assert added["text"].startswith(f"{names[twin.id]} at 127.0.0.1 joined")


def member_group(shown: Shown, group_id: str = "billing"):  # type: ignore[no-untyped-def]
    """The group itself."""
    (found,) = [
        host.machine.groups[group_id]
        for host in shown.broker.runtime.hosts()
        if host.machine is not None and group_id in host.machine.groups
    ]
    return found


async def test_a_group_has_its_members_assignment_and_offsets(shown: Shown, member: Member) -> None:
    await member.produce(0, 4)
    assert await member.commit({0: 4, 1: 0}) is ErrorCode.NONE
    status, group = await shown.get("/api/groups/billing")
    assert status == 200
    (told,) = group["members"]
    assert (told["id"], told["client_id"], told["host"]) == (member.id, "web-1", "127.0.0.1")
    assert (told["assigned"], told["topics"]) == ({"orders": [0, 1, 2]}, ["orders"])
    assert (told["leader"], told["connected"], told["owes"]) == (True, True, None)
    assert told["session_timeout_ms"] == 30_000
    offsets = [(each["partition"], each["offset"], each["end"], each["lag"]) for each in group["partitions"]]
    assert offsets == [(0, 4, 4, 0), (1, 0, 0, 0), (2, None, None, None)]
    assert {each["member"] for each in group["partitions"]} == {member.id}
    assert (group["pending"], group["leader"]) == ([], member.id)


async def test_what_a_client_took_an_id_for_and_left_is_pending(shown: Shown) -> None:
    async with await Member.connect(shown.port) as client:
        await client.ask_for_id()
        _, group = await shown.get("/api/groups/billing")
    assert [each["client_id"] for each in group["pending"]] == ["web-1"]


async def test_the_timeline_has_entries_with_a_text_and_rebalances_with_their_cause(
    shown: Shown, member: Member
) -> None:
    await member.leave()
    await until(
        lambda: (
            len([1 for each in shown.broker.journal.of("billing") if each.type == "rebalance_completed"]) == 2
        )
    )
    status, past = await shown.get("/api/groups/billing/timeline")
    assert status == 200
    assert [each["cause"] for each in past["rebalances"]] == ["member joined", "member left"]
    assert all(each["lines"][0].startswith("billing · ") for each in past["rebalances"])
    types = [each["type"] for each in past["entries"]]
    assert types.index("member_added") < types.index("assigned") < types.index("member_removed")
    assert all(each["text"] for each in past["entries"])
    assert past["names"] == {each["member"]["id"]: each["name"] for each in past["entries"] if each["member"]}
    assert set(past["names"].values()) == {past["rebalances"][0]["member"]["client_id"]}
    assert past["earlier"] == 0
    _, short = await shown.get("/api/groups/billing/timeline?limit=2")
    assert short["entries"] == past["entries"][-2:]
    assert short["earlier"] == len(past["entries"]) - 2
    assert [each["cause"] for each in short["rebalances"]] == ["member joined", "member left"]


async def test_why_explains_the_last_rebalance_or_that_of_a_generation(shown: Shown, member: Member) -> None:
    await member.leave()
    await until(lambda: member_group(shown).state == "Empty")
    await shown.journalled("member_removed")
    _, last = await shown.get("/api/groups/billing/why")
    assert (last["cause"], last["generation"]) == ("member left", 2)
    _, first = await shown.get("/api/groups/billing/why?generation=1")
    assert (first["cause"], first["diagnosis"]) == ("member joined", "new-member")
    status, answer = await shown.get("/api/groups/billing/why?generation=77")
    assert (status, answer["error"]) == (
        404,
        "nothing of a rebalance to generation 77 of group 'billing' is known here",
    )


async def test_a_deleted_group_is_gone_and_its_past_is_not(shown: Shown, member: Member) -> None:
    await member.leave()
    await until(lambda: member_group(shown).state == "Empty")
    await member.wire.call(DeleteGroupsRequest(groups_names=["billing"]), 2)
    await shown.journalled("group_removed")
    status, answer = await shown.get("/api/groups/billing")
    assert (status, answer) == (404, {"error": "there is no group 'billing'"})
    status, past = await shown.get("/api/groups/billing/timeline")
    assert (status, past["entries"][-1]["type"]) == (200, "group_removed")
    assert (await shown.get("/api/groups/never/timeline"))[0] == 404


async def test_a_group_of_another_process_says_which_broker_to_ask_and_where(show: Show) -> None:
    shown = await show(brokers=2, advertised_http="pages.example:8080")
    group = (await shown.groups_of_brokers())[2]
    # As if broker 2 ran in another process, so that it is known only through the cluster.
    shown.brokers._running.discard(1)
    try:
        status, answer = await shown.get(f"/api/groups/{group}")
        assert status == 421
        assert answer["broker"] == {
            "node_id": 2,
            "address": shown.brokers.brokers[1].address,
            "page": "http://pages.example:8080",
        }
        assert "coordinated by broker 2, at http://pages.example:8080" in answer["error"]
        _, listed = await shown.get("/api/groups")
        (other,) = listed["elsewhere"]
        assert (other["node_id"], other["page"]) == (2, "http://pages.example:8080")
        assert 0 < other["group_shards"] < shown.brokers.shards
        assert [each["node_id"] for each in listed["brokers"]] == [1]
    finally:
        shown.brokers._running.add(1)


async def test_brokers_of_one_process_are_shown_together_and_moves_keep_the_past(show: Show) -> None:
    shown = await show(brokers=2)
    await shown.create_topic()
    names = await shown.groups_of_brokers()
    for broker in shown.brokers.brokers:
        async with await Member.connect(broker.port, names[broker.node_id]) as member:
            await member.alone([0])
    _, answer = await shown.get("/api/groups")
    assert {(each["group"], each["broker"]) for each in answer["groups"]} == {
        (name, node_id) for node_id, name in names.items()
    }
    await shown.brokers.stop_one(1)
    lease = shown.broker.topology.group_lease(names[2])
    await until(lambda: shown.broker.membership.serving(lease))
    await shown.broker.runtime.loaded()
    _, answer = await shown.get("/api/groups")
    assert {(each["group"], each["broker"]) for each in answer["groups"]} == {(names[1], 1), (names[2], 1)}
    _, past = await shown.get(f"/api/groups/{names[2]}/timeline")
    kinds = [each["type"] for each in past["entries"]]
    assert kinds.count("member_added") == 1
    assert kinds.index("member_added") < kinds.index("shard_loaded", kinds.index("member_added"))


async def test_a_look_at_groups_takes_their_lag_once_and_in_turns(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may have thousands of partitions."""
    assert await member.commit({0: 0, 1: 0, 2: 0}) is ErrorCode.NONE
    asked: list[str] = []
    in_turns = Lag.in_turns

    async def counted(lag: Lag, group_id: str) -> list[PartitionLag]:
        asked.append(group_id)
        return await in_turns(lag, group_id)

    def at_once(lag: Lag, group_id: str) -> list[PartitionLag]:
        raise AssertionError(f"the lag of {group_id} at once")

    monkeypatch.setattr(Lag, "in_turns", counted)
    monkeypatch.setattr(Lag, "of", at_once)
    for path in ("/api/groups/billing", "/api/groups", "/metrics"):
        asked.clear()
        await shown.text(path)
        assert asked == ["billing"]
    _, group = await shown.get("/api/groups/billing")
    assert [(each["partition"], each["lag"]) for each in group["partitions"]] == [(0, 0), (1, 0), (2, 0)]


async def test_long_lists_are_cut_and_say_so(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await member.commit({0: 0, 1: 0, 2: 0}) is ErrorCode.NONE
    monkeypatch.setattr(api, "PARTITIONS_MAX", 2)
    monkeypatch.setattr(api, "MEMBERS_MAX", 0)
    _, group = await shown.get("/api/groups/billing")
    assert (len(group["partitions"]), group["more_partitions"]) == (2, 1)
    assert (group["members"], group["more_members"]) == ([], 1)
    async with await Member.connect(shown.port, "audit") as other:
        await other.alone([])
        _, answer = await shown.get("/api/groups?limit=1")
        assert (len(answer["groups"]), answer["more"]) == (1, 1)
        _, answer = await shown.get("/api/groups?find=AUD")
        assert [each["group"] for each in answer["groups"]] == ["audit"]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "limit=٣"])
async def test_a_parameter_that_is_no_number_in_range_is_refused(shown: Shown, query: str) -> None:
    status, answer = await shown.get(f"/api/groups?{query}")
    assert status == 400
    assert "is not a whole number from 1 to 1000" in answer["error"]


@pytest.mark.parametrize("name", ["a/b <i>ü?#", "${APP}-{env}", "50%", "a%2Fb", "tab\tline\nnul\0"])
async def test_a_group_id_may_be_anything(shown: Shown, name: str) -> None:
    async with await Member.connect(shown.port, name) as member:
        await member.alone([])
    path = URL(f"{shown.page.url}/api/groups/{quote(name, safe='')}", encoded=True)
    for more in ("", "/timeline", "/why"):
        async with shown.http.get(URL(f"{path}{more}", encoded=True)) as answer:
            assert (answer.status, (await answer.json())["group"]) == (200, name)


async def test_the_group_with_the_empty_id_can_be_asked_for(shown: Shown) -> None:
    async with await Member.connect(shown.port, "") as member:
        assert await member.commit({0: 0}, generation=-1) is ErrorCode.NONE
    status, answer = await shown.get("/api/groups/")
    assert (status, answer["group"], len(answer["partitions"])) == (200, "", 1)
    assert (await shown.get("/api/groups//timeline"))[0] == 200
