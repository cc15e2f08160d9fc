"""`muster cluster`: the brokers and who is the controller."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from muster.client.admin import cluster as cluster_calls
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.commands import output
from muster.coordinator.commands.options import actions, command

_JSON = """\
JSON: {"cluster_id": text, "controller": node id or -1,
       "brokers": [{"node_id": number, "host": text, "port": number, "rack": text or null}]}"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)
    command(below, "describe", "show the brokers", _JSON).set_defaults(work=describe)


async def describe(cluster: Cluster, given: Namespace) -> int:
    """Show the brokers."""
    facts = await cluster_calls.describe_cluster(cluster, deadline(given.timeout))
    if given.output == "json":
        brokers = [each._asdict() for each in facts.brokers]
        print(
            output.document(
                {"cluster_id": facts.cluster_id, "controller": facts.controller, "brokers": brokers}
            )
        )
        return 0
    print(f"cluster {facts.cluster_id}\n")
    rows = [
        (each.node_id, each.host, each.port, each.rack, each.node_id == facts.controller)
        for each in facts.brokers
    ]
    print(output.table(("NODE", "HOST", "PORT", "RACK", "CONTROLLER"), rows))
    return 0
