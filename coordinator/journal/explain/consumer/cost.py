"""What a rebalance of a consumer group moved, and how long each partition stood still. The group never stops
as a whole: a partition that stays where it is does not stand still at all."""

from __future__ import annotations

from collections.abc import Mapping

from muster.coordinator.journal.explain.facts import Move, moves, partitions
from muster.coordinator.journal.explain.rebalances import Rebalance

Partition = tuple[str, int]


def moved(rebalance: Rebalance) -> list[Move]:
    """The net move of each partition, from the first target of the rebalance to the last."""
    found: dict[Partition, Move] = {}
    for target in rebalance.targets:
        for each in moves(target):
            part = each.topic, each.partition
            before = found.get(part)
            found[part] = each if before is None else each._replace(from_member=before.from_member)
    return sorted(
        (each for each in found.values() if each.from_member != each.to_member),
        key=lambda each: (each.topic, each.partition),
    )


def stood_still(
    rebalance: Rebalance, gone: Mapping[str, int]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """How long (ms) each partition that has an owner again stood still; and since when (epoch ms) each
    released partition has stood still, whether it has an owner again or not. A partition stands still from
    when its member has revoked it until another has it. `gone`: when removed members stopped working; one
    that has come back under its id works again."""
    came: dict[str, int] = {}
    given: dict[Partition, str | None] = {}
    since: dict[Partition, int] = {}
    first: dict[Partition, int] = {}
    still: dict[Partition, int] = {}
    for entry in rebalance.entries:
        who = "" if entry.member is None else entry.member.id
        if entry.type == "partitions_revoked":
            for part in partitions(entry):
                since.setdefault(part, entry.at_ms)
                first.setdefault(part, entry.at_ms)
        elif entry.type in ("member_added", "member_replaced"):
            came[who] = entry.at_ms
        elif entry.type == "target_assigned":
            for each in moves(entry):
                part, former = (each.topic, each.partition), each.from_member
                given[part] = each.to_member
                if former is not None and former in gone and came.get(former, gone[former]) <= gone[former]:
                    since.setdefault(part, gone[former])
                    first.setdefault(part, gone[former])
        elif entry.type == "partitions_assigned":
            is_back = who in gone and came.get(who, gone[who]) > gone[who]
            for part in partitions(entry):
                since_ms = since.pop(part, None)
                if since_ms is None and is_back and given.get(part) != who:
                    since_ms = gone[who]  # it had it before, so no target moved it
                if since_ms is not None:
                    still[part] = still.get(part, 0) + max(entry.at_ms - since_ms, 0)
    return still, first
