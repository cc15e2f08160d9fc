"""The cluster as JSON: its brokers, and the shards they lead."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from aiohttp import web

from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.web import cluster_facts, facts
from muster.coordinator.web.guard import refusal, whole_number
from muster.coordinator.web.keys import BROKERS

SHARDS_MAX: Final = 1_000


def add_routes(app: web.Application) -> None:
    """Add `/api/brokers` and `/api/shards`."""
    app.router.add_get("/api/brokers", brokers)
    app.router.add_get("/api/shards", shards)


async def brokers(request: web.Request) -> web.Response:
    """The live brokers of the cluster, of this process and of others."""
    known = request.app[BROKERS]
    broker = facts.any_broker(known)
    topology = broker.topology
    leases = topology.leases
    return web.json_response(
        {
            "at_ms": broker.clock.now_ms(),
            "cluster_id": broker.cluster_id,
            "brokers": cluster_facts.nodes(known),
            "shards": Counter(lease.kind.value for lease in leases),
            "without_broker": sum(lease not in topology.holders for lease in leases),
        }
    )


async def shards(request: web.Request) -> web.Response:
    """The holder of each shard, by kind and number."""
    kinds = _kinds(request)
    limit = whole_number(request, "limit", SHARDS_MAX, SHARDS_MAX)
    skip = whole_number(request, "skip", 0, 2**31 - 1, lowest=0)
    node_id = whole_number(request, "broker", None, 2**31 - 1, lowest=0)
    known = request.app[BROKERS]
    broker = facts.any_broker(known)
    grants, fresh = await cluster_facts.grants(broker)
    partitions = await cluster_facts.partitions_led(broker)
    here = cluster_facts.shards_here(known)
    found: list[dict[str, Any]] = []
    for lease in (each for each in broker.topology.leases if each.kind in kinds):
        grant = grants.get(lease)
        if node_id is not None and (grant is None or grant.node_id != node_id):
            continue
        status = here.get(lease)
        found.append(
            {
                "kind": lease.kind.value,
                "number": lease.number,
                "broker": None if grant is None else grant.node_id,
                "epoch": None if grant is None else grant.epoch,
                "announced": None if grant is None else grant.announced,
                "remaining_ms": grant.remaining_ms if grant is not None and fresh else None,
                "state": None if status is None else status.state,
                "failure": None if status is None else status.failure,
                "groups": _keys(status, lease, LeaseKind.GROUP),
                "transactional_ids": _keys(status, lease, LeaseKind.TRANSACTION),
                "partitions": None if partitions is None else partitions[lease],
            }
        )
    return web.json_response(
        {
            "at_ms": broker.clock.now_ms(),
            "shards": found[skip : skip + limit],
            "more": max(len(found) - skip - limit, 0),
        }
    )


def _keys(shard: cluster_facts.ShardHere | None, lease: Lease, kind: LeaseKind) -> int | None:
    """Number of keys in the shard, if it is of that kind."""
    return None if shard is None or lease.kind is not kind else shard.keys


def _kinds(request: web.Request) -> list[LeaseKind]:
    """The kinds in the query. Raises HTTPBadRequest."""
    wanted = request.query.get("kind")
    if wanted is None:
        return list(LeaseKind)
    if wanted not in list(LeaseKind):
        raise refusal(
            web.HTTPBadRequest, f"kind: {wanted[:40]!r} is not allowed; it takes {', '.join(LeaseKind)}"
        )
    return [LeaseKind(wanted)]
