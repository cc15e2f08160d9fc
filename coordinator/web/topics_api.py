"""Topics as JSON: the list, one with its partitions and readers, and a look at its records."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import StoreError
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.web import facts, records, topic_facts
from muster.coordinator.web.guard import check_named, refusal, whole_number
from muster.coordinator.web.keys import BROKERS, LOOKS
from muster.coordinator.web.topic_facts import Measured
from muster.protocol.errors import KafkaError

TOPICS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 1_000
_MEASURED_MAX: Final = 2_000
"""Maximum partitions measured for a list of topics; topics beyond that have no figures."""
_GROUPS_SHOWN: Final = 10
_READERS_SHOWN: Final = 20
_RECORDS: Final = 20
_LOOK_S: Final = 5.0
_OFFSET_MAX: Final = 2**63 - 1


def add_routes(app: web.Application) -> None:
    """Add `/api/topics` and below."""
    app.router.add_get("/api/topics", topics)
    app.router.add_get("/api/topics/{topic}", topic)
    app.router.add_get("/api/topics/{topic}/partitions/{partition}/records", look)


# --- all topics ---------------------------------------------------------------------------------------------


async def topics(request: web.Request) -> web.Response:
    """The topics of the cluster by name, from after `after` on."""
    brokers = request.app[BROKERS]
    wanted, after = request.query.get("find", "").lower(), request.query.get("after", "")
    limit = whole_number(request, "limit", TOPICS_MAX, TOPICS_MAX)
    broker = facts.any_broker(brokers)
    found = [each for each in broker.catalogue.topics() if wanted in each.name.lower() and each.name > after]
    found.sort(key=lambda each: each.name)
    shown = found[:limit]
    groups = await topic_facts.groups_of_topics(brokers)
    measured = await topic_facts.measure(brokers, _to_measure(shown))
    return await _answer(
        {
            "at_ms": broker.clock.now_ms(),
            "topics": [_summary(each, groups.get(each.name, []), measured) for each in shown],
            "more": len(found) - len(shown),
            "elsewhere": [each.to_json() for each in facts.elsewhere(brokers)],
        }
    )


def _to_measure(some: list[Topic]) -> list[tuple[Topic, int]]:
    """Partitions to measure: of whole topics, but not of those kept as rows of the store, where each
    partition would need a query."""
    found: list[tuple[Topic, int]] = []
    for each in some:
        if not each.internal and len(found) + each.partitions <= _MEASURED_MAX:
            found += [(each, number) for number in range(each.partitions)]
    return found


def _summary(topic: Topic, groups: list[str], measured: dict[PartitionId, Measured]) -> dict[str, Any]:
    none = Measured()
    parts = [measured.get(PartitionId(topic.topic_id, each), none) for each in range(topic.partitions)]
    starts = [each.start for each in parts if each.start is not None]
    ends = [each.end for each in parts if each.end is not None]
    sizes = [each.size_bytes for each in parts if each.size_bytes is not None]
    known = len(ends) == topic.partitions
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.internal,
        "partitions": topic.partitions,
        "cleanup_policy": ",".join(topic.config.cleanup_policy),
        "retention_ms": topic.config.retention_ms,
        "records": sum(ends) - sum(starts) if known else None,
        "end": sum(ends) if known else None,
        "size_bytes": sum(sizes) if len(sizes) == topic.partitions else None,
        "groups": groups[:_GROUPS_SHOWN],
        "more_groups": max(len(groups) - _GROUPS_SHOWN, 0),
    }


# --- one topic ----------------------------------------------------------------------------------------------


async def topic(request: web.Request) -> web.Response:
    """One topic: its partitions from number `skip` on, with their leaders and readers."""
    brokers = request.app[BROKERS]
    limit = whole_number(request, "limit", PARTITIONS_MAX, PARTITIONS_MAX)
    skip = whole_number(request, "skip", 0, 2**31 - 1, lowest=0)
    found = topic_facts.named(brokers, request.match_info["topic"])
    numbers = range(found.partitions)[skip : skip + limit]
    of_all = _to_measure([found])  # the totals are of all partitions, whichever are listed
    measured = await topic_facts.measure(brokers, of_all or [(found, each) for each in numbers])
    readers = await topic_facts.readers(brokers, found.name)
    broker = facts.any_broker(brokers)
    partitions = []
    turns = facts.Turns()
    for number in numbers:
        await turns.next()
        leader = broker.leader(found, number)
        bounds = measured.get(PartitionId(found.topic_id, number), Measured())
        reading = readers.get(number, [])
        partitions.append(
            {
                "partition": number,
                "leader": leader.node_id if leader.node_id >= 0 else None,
                "leader_epoch": leader.epoch if leader.node_id >= 0 else None,
                **bounds._asdict(),
                "readers": [each.to_json(bounds.end) for each in reading[:_READERS_SHOWN]],
                "more_readers": max(len(reading) - _READERS_SHOWN, 0),
            }
        )
    groups = (await topic_facts.groups_of_topics(brokers)).get(found.name, [])
    return await _answer(
        {
            **_summary(found, groups, measured),
            "at_ms": facts.any_broker(brokers).clock.now_ms(),
            "created_ms": found.created_ms or None,
            "configs": dict(found.configs),
            "partitions": partitions,
            "more_partitions": max(found.partitions - skip - limit, 0),
            "elsewhere": [each.to_json() for each in facts.elsewhere(brokers)],
        }
    )


# --- its records --------------------------------------------------------------------------------------------


async def look(request: web.Request) -> web.Response:
    """The newest records of a partition, those below `before`, or those from `offset` on."""
    brokers = request.app[BROKERS]
    check_named(request, "records are not shown")
    if not brokers.settings.http_records:
        raise refusal(web.HTTPForbidden, "records are not shown here: http_records is false")
    limit = whole_number(request, "limit", _RECORDS, records.RECORDS_MAX)
    before = whole_number(request, "before", None, _OFFSET_MAX, lowest=0)
    offset = whole_number(request, "offset", None, _OFFSET_MAX, lowest=0)
    if before is not None and offset is not None:
        raise refusal(web.HTTPBadRequest, "before and offset: one of them at most")
    topic = topic_facts.named(brokers, request.match_info["topic"])
    number = _partition(request, topic)
    found = await _look(request, brokers, topic, number, before, offset, limit)
    return await _answer(
        {
            "at_ms": facts.any_broker(brokers).clock.now_ms(),
            "topic": topic.name,
            "partition": number,
            **found._asdict(),
        }
    )


def _partition(request: web.Request, topic: Topic) -> int:
    """The partition in the path. Raises HTTPNotFound."""
    text = request.match_info["partition"]
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < topic.partitions):
        why = f"{topic.name} has no partition {text[:40]!r}: its partitions are 0 to {topic.partitions - 1}"
        raise refusal(web.HTTPNotFound, why)
    return int(text)


async def _look(
    request: web.Request,
    brokers: Brokers,
    topic: Topic,
    number: int,
    before: int | None,
    offset: int | None,
    limit: int,
) -> records.Look:
    name = f"{topic.name}-{number}"
    try:
        async with asyncio.timeout(_LOOK_S), request.app[LOOKS]:
            broker = topic_facts.leader_here(brokers, topic, number)
            if offset is not None:
                return await records.since(broker, topic, number, offset=offset, limit=limit)
            return await records.newest(broker, topic, number, before=before, limit=limit)
    except TimeoutError:
        why = f"reading {name} timed out after {_LOOK_S:.0f} s: the disk or database is slow or busy"
        raise refusal(web.HTTPServiceUnavailable, why) from None
    except KafkaError as error:
        raise topic_facts.as_http(error, name) from None
    except (OSError, StoreError) as error:
        raise refusal(web.HTTPServiceUnavailable, f"{name} cannot be read: {error}") from None


async def _answer(told: dict[str, Any]) -> web.Response:
    """The response, written out in a thread since it may be long."""
    return web.json_response(text=await asyncio.to_thread(json.dumps, told))
