"""Where muster answers otherwise on purpose, as random sequences meet it.

DIFFERENCES.md lists single answers of single stories. Here a rule says which differences are one and the same
decision, wherever a sequence comes upon it; docs/PROOF.md gives the list, and how often each was met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode
from tests.group.scenario import Step
from tests.kafka.differences import NO_REPLY, Difference
from tests.kafka.recording import Fields


class Deliberate(NamedTuple):
    """One decision."""

    what: str
    why: str
    covers: Callable[[Difference, Fields, Sequence[Step]], bool]
    """Asked about a difference, all that muster's reply says, and the steps up to it."""


def _unanswered_by_kafka(api: str, code: ErrorCode) -> Callable[[Difference, Fields, Sequence[Step]], bool]:
    def covers(difference: Difference, ours: Fields, steps: Sequence[Step]) -> bool:
        return (
            difference.field == "reply"
            and difference.theirs == NO_REPLY
            and f" {api}" in difference.reply
            and ours.get("error_code") == str(code.value)
        )

    return covers


def _zero_bytes(difference: Difference, ours: Fields, steps: Sequence[Step]) -> bool:
    return (
        difference.field.endswith("assignment")
        and (difference.theirs, difference.ours) == ("raw:", "none")
        and ours.get("protocol_type", "'consumer'") in ("None", "'consumer'")
    )


RULES: Final[Sequence[Deliberate]] = (
    Deliberate(
        "a parked JoinGroup that its member repeats is answered with REBALANCE_IN_PROGRESS",
        "Kafka forgets the first one, and whoever waits for it waits for its request timeout",
        _unanswered_by_kafka("JOIN_GROUP", ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    Deliberate(
        "a parked SyncGroup that its member repeats is answered with REBALANCE_IN_PROGRESS",
        "the same",
        _unanswered_by_kafka("SYNC_GROUP", ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    Deliberate(
        "the parked SyncGroup of a member that leaves is answered with UNKNOWN_MEMBER_ID",
        "the same",
        _unanswered_by_kafka("SYNC_GROUP", ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Deliberate(
        "a consumer whom the leader assigned nothing at all gets a valid assignment of no partitions",
        "Kafka passes on zero bytes, which the Java client cannot read",
        _zero_bytes,
    ),
)


def reason(difference: Difference, ours: Fields, steps: Sequence[Step]) -> str | None:
    """What the difference is an instance of; None: of nothing that is meant."""
    for rule in RULES:
        if rule.covers(difference, ours, steps):
            return rule.what
    return None
