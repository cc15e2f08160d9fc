"""Groups as JSON: the list, one group, its timeline, and why it rebalanced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aiohttp import web

from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.group import Group, GroupView, MemberView
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Explanation, explain, explain_all
from muster.coordinator.journal.explain.names import ids_in
from muster.coordinator.journal.names import Names
from muster.coordinator.observe.lag import PartitionLag
from muster.coordinator.runtime.recorder import member_of
from muster.coordinator.web import facts
from muster.coordinator.web.entries_json import entries_json
from muster.coordinator.web.guard import refusal, route, whole_number
from muster.coordinator.web.keys import BROKERS, LATELY, TALLIES, TRENDS
from muster.coordinator.web.lately import Digest
from muster.coordinator.web.tallies import LastRebalance

GROUPS_MAX: Final = 1_000
MEMBERS_MAX: Final = 2_000
PARTITIONS_MAX: Final = 5_000
_TIMELINE: Final = 300
_TIMELINE_MAX: Final = 1_000
_REBALANCES_MAX: Final = 100
_TOPICS_SHOWN: Final = 20
_TRENDS_MAX: Final = 300
"""Maximum groups in a list that get a lag trend."""
_OFFSET_MINUTES_MAX: Final = 24 * 60 - 1


def add_routes(app: web.Application) -> None:
    """Add `/api/groups` and below. Slashes in a group id are %2F in the path."""
    app.router.add_get("/api/groups", groups)
    app.router.add_get(route("/api/groups/{group}"), group)
    app.router.add_get(route("/api/groups/{group}/timeline"), timeline)
    app.router.add_get(route("/api/groups/{group}/why"), why)


# --- all groups ---------------------------------------------------------------------------------------------


async def groups(request: web.Request) -> web.Response:
    """The groups that brokers of this process coordinate, rebalancing ones first."""
    brokers = request.app[BROKERS]
    wanted = request.query.get("find", "").lower()
    limit = whole_number(request, "limit", GROUPS_MAX, GROUPS_MAX)
    others = facts.elsewhere(brokers)
    found = [each for each in facts.held(brokers) if wanted in each.group.group_id.lower()]
    found.sort(key=lambda each: (_rank(each.group.view()), each.group.group_id))
    await facts.refresh_lag(brokers.running)
    await request.app[LATELY].learn(brokers, request.app[TALLIES], found[:limit])
    listed, turns = [], facts.Turns()
    for number, each in enumerate(found[:limit]):
        await turns.next()
        lags = await each.broker.lag.in_turns(each.group.group_id)
        listed.append(_summary(request, each, lags, trend=number < _TRENDS_MAX))
    return web.json_response(
        {
            "at_ms": facts.any_broker(brokers).clock.now_ms(),
            "groups": listed,
            "more": max(len(found) - limit, 0),
            "brokers": [facts.broker_json(each) for each in brokers.running],
            "elsewhere": [each.to_json() for each in others],
            "loading": facts.loading(brokers),
        }
    )


def _rank(group: GroupView) -> int:
    return 0 if group.is_rebalancing else 1 if group.is_stable else 2


def _summary(
    request: web.Request, held: facts.Held, lags: Sequence[PartitionLag], *, trend: bool = True
) -> dict[str, Any]:
    broker, group, offsets = held.broker, held.group.view(), held.offsets
    now_ms, digest = broker.clock.now_ms(), request.app[LATELY].of(group.group_id)
    lag = _total(lags)
    request.app[TRENDS].note(group.group_id, now_ms, lag)
    points = request.app[TRENDS].of(group.group_id, now_ms, () if digest is None else digest.lags)
    topics = sorted({topic for topic, _ in offsets} | group.subscribed_topics)
    return {
        "group": group.group_id,
        "state": group.state,
        "state_since_ms": _known(group.state_since_ms),
        "type": group.type,
        "generation": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_name,
        "members": group.members,
        "pending_members": len(group.pending),
        "topics": topics[:_TOPICS_SHOWN],
        "more_topics": max(len(topics) - _TOPICS_SHOWN, 0),
        "lag": lag,
        "lag_seconds": _worst(lags),
        "lag_trend": points if trend else None,
        "rebalance": _under_way(group),
        "last_rebalance": _last(request, held.group, digest),
        "rebalances": None if digest is None else digest.how_often(now_ms),
        "broker": broker.node_id,
    }


def _last(request: web.Request, group: Group, digest: Digest | None) -> dict[str, Any] | None:
    """The last completed rebalance: as explained, or as recorded until the journal has been read."""
    tally = request.app[TALLIES].groups.get(group.group_id)
    known = None if digest is None else digest.last
    if tally is None or tally.last is None:
        return known
    if known is not None and known["at_ms"] >= tally.last.at_ms:
        return known
    return {**_recorded(group, tally.last), "diagnosis": None, "certainty": None, "meaning": None}


def _recorded(group: Group, last: LastRebalance) -> dict[str, Any]:
    told = last.to_json()
    if last.member is not None:
        there = [member_of(each) for each in group.identities()]
        names = Names([last.member, *there], {each.id for each in there})
        told["member"] = facts.named(last.member, names)
    return told


def _total(lags: Sequence[PartitionLag]) -> int | None:
    """The total over partitions that have a lag; None if there are none, or if an end has yet to be read."""
    known = [each.lag for each in lags if each.lag is not None]
    return sum(known) if known and not any(each.unread for each in lags) else None


def _worst(lags: Sequence[PartitionLag]) -> float | None:
    """The longest known time lag of lagging partitions; None if none is known, or the total is not."""
    behind = [each.seconds for each in lags if each.lag]
    if _total(lags) is None:
        return None
    if not behind:
        return 0.0
    return max((each for each in behind if each is not None), default=None)


def _known(at_ms: int) -> int | None:
    return at_ms if at_ms >= 0 else None


def _under_way(group: GroupView) -> dict[str, Any] | None:
    """The rebalance in progress, as far as the group itself can tell."""
    return None if group.rebalance is None else group.rebalance._asdict()


# --- one group ----------------------------------------------------------------------------------------------


async def group(request: web.Request) -> web.Response:
    """One group: its members with their assignments, and its offsets with their lag."""
    brokers = request.app[BROKERS]
    held = facts.find(brokers, request.match_info["group"])
    await facts.refresh_lag([held.broker], [request.match_info["group"]])
    await request.app[LATELY].learn(brokers, request.app[TALLIES], [held])
    held = facts.find(brokers, request.match_info["group"])  # it may be gone by now
    group, now_ms = held.group.view(), held.broker.clock.now_ms()
    members: list[dict[str, Any]] = []
    owners: dict[TopicPartition, str] = {}
    turns, names = facts.Turns(), facts.names_of(held.group)
    for member in held.group.member_views():
        await turns.next()
        assigned = facts.assignment_of(group, member)
        owners.update((each, member.member_id) for each in assigned or ())
        if len(members) < MEMBERS_MAX:
            members.append(_member(group, member, names, assigned, now_ms))
    lags = await held.broker.lag.in_turns(group.group_id)
    return web.json_response(
        {
            **_summary(request, held, lags),
            "at_ms": now_ms,
            "leader": group.leader,
            "members": members,
            "more_members": max(group.members - MEMBERS_MAX, 0),
            "pending": [
                {**_identity(each.identity, names), "issued_ms": each.issued_ms}
                for each in group.pending[:MEMBERS_MAX]
            ],
            "partitions": await _partitions(held, owners, lags, turns),
            "more_partitions": max(len({*held.offsets, *owners}) - PARTITIONS_MAX, 0),
            "brokers": [facts.broker_json(each) for each in brokers.running],
        }
    )


def _identity(identity: MemberIdentity, names: Names) -> dict[str, Any]:
    return facts.named(member_of(identity), names)


def _member(
    group: GroupView,
    member: MemberView,
    names: Names,
    assigned: Sequence[TopicPartition] | None,
    now_ms: int,
) -> dict[str, Any]:
    return {
        **_identity(member.identity, names),
        "leader": member.member_id == group.leader,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "silent_ms": max(now_ms - member.heard_ms, 0),
        "connected": member.connection_id is not None,
        "owes": member.owes,
        "topics": facts.topics_of(group, member),
        "assigned": None if assigned is None else _by_topic(assigned),
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


async def _partitions(
    held: facts.Held, owners: dict[TopicPartition, str], lags: Iterable[PartitionLag], turns: facts.Turns
) -> list[dict[str, Any]]:
    """The first committed and assigned partitions, by topic and partition."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in {*held.offsets, *owners}:
        await turns.next()
        by_topic.setdefault(topic, []).append(partition)
    shown: list[TopicPartition] = []
    for topic in sorted(by_topic):
        await turns.next()
        shown += [(topic, partition) for partition in sorted(by_topic[topic])]
        if len(shown) >= PARTITIONS_MAX:
            break
    of_partition = {}
    for each in lags:
        await turns.next()
        of_partition[each.topic, each.partition] = each
    found = []
    for topic, partition in shown[:PARTITIONS_MAX]:
        await turns.next()
        committed, lag = held.offsets.get((topic, partition)), of_partition.get((topic, partition))
        found.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": None if committed is None else committed.offset,
                "committed_ms": None if committed is None else committed.commit_timestamp,
                "metadata": None if committed is None else committed.metadata,
                "end": None if lag is None else lag.end,
                "lag": None if lag is None else lag.lag,
                "lag_seconds": None if lag is None else lag.seconds,
                "member": owners.get((topic, partition)),
            }
        )
    return found


# --- what happened ------------------------------------------------------------------------------------------


async def timeline(request: web.Request) -> web.Response:
    """A group's known history: the newest entries, and every rebalance with its cause."""
    group_id = request.match_info["group"]
    limit = whole_number(request, "limit", _TIMELINE, _TIMELINE_MAX)
    zone = _zone(request)
    entries, names, now_ms = _past(request, group_id)
    body = await asyncio.to_thread(_timeline_json, group_id, entries, names, limit, now_ms, zone)
    return web.Response(body=body, content_type="application/json")


def _past(request: web.Request, group_id: str) -> tuple[list[Entry], Names, int]:
    """The entries of a group that is coordinated here, or was when it was removed; its members' names, and
    the time. Raises like `facts.find`."""
    brokers = request.app[BROKERS]
    entries = facts.journalled(brokers, group_id)
    try:
        broker, group, _ = facts.find(brokers, group_id)
    except web.HTTPNotFound:
        if not any(each.group == group_id for each in entries):
            raise
        broker, group = facts.any_broker(brokers), None
    return entries, facts.names_of(group, entries), broker.clock.now_ms()


def _zone(request: web.Request) -> tzinfo:
    """The time zone for times in sentences: the one named `zone`; where that is missing, or unknown here,
    `utc_offset` minutes east of UTC; or UTC. Raises HTTPBadRequest."""
    name, offset = request.query.get("zone"), _utc_offset(request)
    known = None if name is None else _named_zone(name)
    if name is not None and known is None and offset is None:
        raise refusal(web.HTTPBadRequest, f"zone: {name[:40]!r} is no time zone known here")
    return known or offset or UTC


def _named_zone(name: str) -> tzinfo | None:
    """The IANA time zone of a name, which has summer time when it had; None if it is unknown here."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # no file, no name of one, no file of a zone
        return None


def _utc_offset(request: web.Request) -> tzinfo | None:
    """As `utc_offset` says; None without it. Raises HTTPBadRequest."""
    text = request.query.get("utc_offset")
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (
        digits.isascii() and digits.isdecimal() and len(digits) < 5 and int(digits) <= _OFFSET_MINUTES_MAX
    ):
        most = _OFFSET_MINUTES_MAX
        why = f"utc_offset: {text[:40]!r} is not a whole number of minutes from -{most} to {most}"
        raise refusal(web.HTTPBadRequest, why)
    return timezone(timedelta(minutes=int(text))) if int(text) else UTC


def _timeline_json(
    group_id: str, entries: Sequence[Entry], names: Names, limit: int, now_ms: int, zone: tzinfo
) -> bytes:
    explained = explain_all(entries, now_ms=now_ms, names=names)
    told = json.dumps(
        {
            "group": group_id,
            "at_ms": now_ms,
            "rebalances": [_explanation_json(each, zone) for each in explained[-_REBALANCES_MAX:]],
            "names": names.by_id(ids_in(entries)),
            "earlier": max(len(entries) - limit, 0),
        }
    ).encode()
    return told[:-1] + b', "entries": ' + entries_json(entries[-limit:], lambda _: names) + b"}"


def _explanation_json(explanation: Explanation, zone: tzinfo) -> dict[str, Any]:
    return {**explanation.to_json(), "lines": explanation.lines(zone)}


async def why(request: web.Request) -> web.Response:
    """Explains the last rebalance of a group, or that of a `generation`."""
    group_id = request.match_info["group"]
    wanted = whole_number(request, "generation", None, 2**31 - 1)
    zone = _zone(request)
    entries, names, now_ms = _past(request, group_id)
    explanation = await asyncio.to_thread(
        explain, entries, group=group_id, generation=wanted, now_ms=now_ms, names=names
    )
    if explanation is None:
        which = "no rebalance" if wanted is None else f"nothing of a rebalance to generation {wanted}"
        raise refusal(web.HTTPNotFound, f"{which} of group {group_id!r} is known here")
    return web.json_response(_explanation_json(explanation, zone))
