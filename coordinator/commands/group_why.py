"""`muster groups why`: why a group rebalanced."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from muster.client.network.cluster import Cluster
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands import group_events, output
from muster.coordinator.commands.group_events import GroupEvents
from muster.coordinator.commands.options import command, number
from muster.coordinator.commands.run import Failed
from muster.coordinator.journal.explain import explain
from muster.coordinator.journal.explain.names import names_in

_LOOK_BACK_MS: Final = 60 * 60_000
"""How far before --since to read: earlier events may explain later ones."""

_DESCRIPTION: Final = """\
Reads the topic __group_events, where muster records what happens; docs/why.md says how causes are inferred
and lists the diagnoses. Exit codes: 0 explained; 1 no events of the group, or the broker is not muster.

JSON: {"group": text, "type": "classic" or "consumer", "generation": number (of a consumer group, its epoch),
  "started_ms": epoch ms, "ended_ms": epoch ms or null,
  "outcome": "completed", "under way", "interrupted" or "no rebalance", "state": Kafka's name,
  "rebalanced": boolean, "cause": text, "diagnosis": text, "certainty": "certain", "likely" or "possible",
  "member": member or null, "what": text, "meaning": text, "evidence": [text],
  "alternatives": [{"diagnosis": text, "certainty": text, "why": text}], "also": [text],
  "waiting": [{"member": member, "pending": boolean, "since_ms": epoch ms, "until_ms": epoch ms or null,
    "partitions": [[topic, partition]], "waiters": [member],
    "disconnected_ms": epoch ms or null}],
  "phases": object or null, "moved": object or null, "cost": object or null, "before": text or null,
  "since": [text], "names": {member id: short name}, "interrupted": text or null}
  where a member is {"id": text, "client_id": text, "host": text, "instance": text or null}"""


def declare(below: Any) -> None:
    """Add the action."""
    parser = command(below, "why", "explain why a group rebalanced", _DESCRIPTION, output=("text", "json"))
    group_events.add_arguments(parser, "only events this recent, such as 1h or 90 min")
    parser.add_argument(
        "--generation", type=number(0), metavar="N", help="explain this generation (default: the last)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also print the member ids and client ids of those named"
    )
    parser.set_defaults(work=why)


async def why(cluster: Cluster, given: Namespace) -> int:
    """Explain the last rebalance, or that of a given generation."""
    asked_ms = wall_ms()
    since_ms = None if given.since is None else max(asked_ms - given.since, 0)
    async with GroupEvents(cluster, given) as events:
        entries = await events.read(None if since_ms is None else max(since_ms - _LOOK_BACK_MS, 0))
        names = names_in(entries, await events.members())
    explanation = explain(
        entries, group=given.group, generation=given.generation, now_ms=asked_ms, names=names
    )
    if explanation is None and given.generation is not None and any(each.group for each in entries):
        raise Failed(
            f"the journal does not say how group {given.group} reached generation {given.generation}"
        )
    if explanation is None:
        if any(each.group for each in entries):
            raise Failed(
                f"the journal has no rebalance of group {given.group}; muster groups timeline "
                f"{given.group} shows what it has"
            )
        raise Failed(group_events.nothing_known(given.group, since_ms))
    if since_ms is not None and explanation.ended_ms is not None and explanation.ended_ms < since_ms:
        raise Failed(group_events.nothing_known(given.group, since_ms))
    if given.output == "json":
        print(output.document(explanation.to_json()))
    else:
        print("\n".join([*explanation.lines(), *(explanation.member_lines() if given.verbose else ())]))
    return 0
