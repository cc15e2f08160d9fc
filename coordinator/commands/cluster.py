"""`muster cluster`: describe brokers, check readiness, drain and undrain."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any, Final

from muster.client.admin import cluster as cluster_calls
from muster.client.admin.cluster import ClusterDescription, Leases
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.commands import output
from muster.coordinator.commands.options import actions, command, number
from muster.coordinator.commands.progress import Progress
from muster.coordinator.commands.run import Failed

_LOOK_AGAIN_S: Final = 0.1
_SHARDS: Final = ("group_shards", "transaction_shards", "data_shards")

_DESCRIBE: Final = """\
For muster brokers it also shows which are drained, how many group, transaction and data shards each has and
how many it is still loading (clients are directed to it afterwards), and how many milliseconds ago it renewed
its registration. A broker that does not renew for a lease term is no longer listed.

JSON: {"cluster_id": text, "controller": node id or -1,
       "brokers": [{"node_id": number, "host": text, "port": number, "rack": text or null,
                    "drained": true or false, "group_shards": number, "transaction_shards": number,
                    "data_shards": number, "loading": number, "renewed_ago_ms": number,
                    "term_ms": number}],
       "answered_by": {"node_id": number, "version": text such as "0.1.0 (compiled)"} or null,
       with --leases also
       "leases": [{"kind": "group", "transaction", "data" or "replicas", "number": number,
                   "holder": node id or null, "epoch": number or null, "remaining_ms": number or null,
                   "announced": true, false or null}]}
       Fields that only muster brokers report are null for others."""

_READY: Final = """\
For health checks. Asks one broker, the first of --bootstrap-server that responds. It is ready when it is
registered in the cluster, has loaded all its shards, and can claim those it lacks. A broker other than muster
is ready when it responds.

JSON: {"node_id": number, null if not a muster broker, "ready": true or false, "why": text or null}"""

_DRAIN: Final = """\
Hands the broker's shards over without a rebalance. It takes no more until `muster cluster undrain`, even
after a restart. Returns once it has none; if --timeout ends first, the handover goes on.

JSON: {"node_id": number, "drained": true}"""

_UNDRAIN: Final = """\
Undoes `muster cluster drain`: the other brokers hand its share of the shards back.

JSON: {"node_id": number, "drained": false}"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)
    describing = command(below, "describe", "show the brokers and what each serves", _DESCRIBE)
    describing.add_argument("--leases", action="store_true", help="also show every shard's lease")
    describing.set_defaults(work=describe)
    command(below, "ready", "check whether a broker is ready for clients", _READY).set_defaults(work=ready)
    for action, what, description, work in (
        ("drain", "take a broker out of service", _DRAIN, drain),
        ("undrain", "put a drained broker back into service", _UNDRAIN, undrain),
    ):
        parser = command(below, action, what, description)
        parser.add_argument("node", type=number(0), metavar="NODE", help="node id of the broker")
        parser.set_defaults(work=work)


# --- describe -----------------------------------------------------------------------------------------------


async def describe(cluster: Cluster, given: Namespace) -> int:
    """Show the brokers."""
    facts = await cluster_calls.describe_cluster(cluster, deadline(given.timeout), leases=True)
    brokers = [each._asdict() | _served(facts.leases, each.node_id) for each in facts.brokers]
    leases = None if facts.leases is None else [each._asdict() for each in facts.leases.leases]
    answered_by = None if facts.leases is None else _answered_by(facts.leases)
    if given.output == "json":
        shown = {
            "cluster_id": facts.cluster_id,
            "controller": facts.controller,
            "brokers": brokers,
            "answered_by": answered_by,
        }
        print(output.document({**shown, "leases": leases} if given.leases else shown))
        return 0
    by = ", described by node {node_id}, muster {version}"
    print(f"cluster {facts.cluster_id}{by.format(**answered_by) if answered_by else ''}\n")
    print(_brokers_table(facts, brokers))
    if facts.leases is not None:
        without = sum(each.holder is None for each in facts.leases.leases)
        if without:
            print(f"\n{without} shards have no broker at the moment")
        if given.leases:
            columns = ("SHARD", "NUMBER", "BROKER", "EPOCH", "REMAINING MS", "LOADED")
            print(f"\n{output.table(columns, facts.leases.leases)}")
    elif given.leases:
        print("\nno leases to show: these are not muster brokers, or you may not describe the cluster")
    return 0


def _answered_by(leases: Leases) -> dict[str, Any]:
    return {"node_id": leases.answering, "version": leases.version}


def _served(leases: Leases | None, node_id: int) -> dict[str, Any]:
    """The fields that only muster brokers report."""
    names = ("drained", *_SHARDS, "loading", "renewed_ago_ms", "term_ms")
    if leases is None:
        return dict.fromkeys(names)
    registration = leases.registrations[node_id]
    values = (
        registration.drained,
        len(leases.of(node_id, "group")),
        len(leases.of(node_id, "transaction")),
        len(leases.of(node_id, "data")) + len(leases.of(node_id, "replicas")),
        sum(not each.announced for each in leases.of(node_id)),
        registration.registered_ago_ms,
        registration.term_ms,
    )
    return dict(zip(names, values, strict=True))


def _brokers_table(facts: ClusterDescription, brokers: list[dict[str, Any]]) -> str:
    fields = ["node_id", "host", "port", "rack", "controller"]
    columns = ["NODE", "HOST", "PORT", "RACK", "CONTROLLER"]
    if facts.leases is not None:
        fields += ["drained", *_SHARDS, "loading", "renewed_ago_ms"]
        shards = [each.replace("_", " ").upper() for each in _SHARDS]
        columns += ["DRAINED", *shards, "LOADING", "RENEWED MS AGO"]
    rows = [each | {"controller": each["node_id"] == facts.controller} for each in brokers]
    return output.table(columns, [[row[name] for name in fields] for row in rows])


# --- ready --------------------------------------------------------------------------------------------------


async def ready(cluster: Cluster, given: Namespace) -> int:
    """Report whether one broker is ready."""
    facts = await cluster_calls.describe_cluster_once(cluster, deadline(given.timeout), leases=True)
    node_id = None if facts.leases is None else facts.leases.answering
    why = None if facts.leases is None else _why_not_ready(facts.leases)
    if given.output == "json":
        print(output.document({"node_id": node_id, "ready": why is None, "why": why}))
        return int(why is not None)
    if why is not None:
        raise Failed(f"broker {node_id} is not ready: {why}")
    print("ready" if node_id is None else f"broker {node_id} is ready")
    return 0


def _why_not_ready(leases: Leases) -> str | None:
    if leases.answering not in leases.registrations:
        return "its registration in the cluster has expired"
    loading = sum(not each.announced for each in leases.of(leases.answering))
    return f"it is still loading {loading} shards" if loading else leases.why_short or None


# --- drain and undrain --------------------------------------------------------------------------------------


async def drain(cluster: Cluster, given: Namespace) -> int:
    """Drain a broker and wait until it holds no leases."""
    until = deadline(given.timeout)
    registrations = (await _leases(cluster, given.node, until)).registrations
    if all(each.drained for node_id, each in registrations.items() if node_id != given.node):
        raise Failed(
            f"broker {given.node} is the only one not drained: no other broker can take its shards"
            if len(registrations) > 1
            else f"broker {given.node} is the only one in the cluster: no other broker can take its shards"
        )
    await cluster_calls.set_drained(cluster, given.node, True, until)
    left = None
    with Progress(given.prog, "shard") as progress:
        while remaining := len((await _leases(cluster, given.node, until)).of(given.node)):
            if deadline(_LOOK_AGAIN_S) >= until:
                raise Failed(f"broker {given.node} still has {remaining} shards after {given.timeout:g} s")
            progress.advance(0 if left is None else max(left - remaining, 0))
            left = remaining
            await asyncio.sleep(_LOOK_AGAIN_S)
    return _done(given, True)


async def undrain(cluster: Cluster, given: Namespace) -> int:
    """Let a broker take leases again."""
    until = deadline(given.timeout)
    await _leases(cluster, given.node, until)
    await cluster_calls.set_drained(cluster, given.node, False, until)
    return _done(given, False)


async def _leases(cluster: Cluster, node_id: int, until: float) -> Leases:
    """The leases; fails unless this is a muster cluster that has the broker."""
    facts = await cluster_calls.describe_cluster(cluster, until, leases=True)
    if facts.leases is None:
        raise Failed(
            "only muster brokers can be drained; the broker that responded is not one, or you may not "
            "describe the cluster"
        )
    if node_id not in facts.leases.registrations:
        there = ", ".join(str(each) for each in facts.leases.registrations)
        raise Failed(f"broker {node_id} is not in the cluster; its brokers are {there}")
    return facts.leases


def _done(given: Namespace, drained: bool) -> int:
    if given.output == "json":
        print(output.document({"node_id": given.node, "drained": drained}))
    else:
        print(f"broker {given.node} {'is drained: it has no shards' if drained else 'takes shards again'}")
    return 0
