"""Where muster answers otherwise on purpose, as random sequences meet it.

DIFFERENCES.md lists single answers of single stories. Here a rule says which differences are one and the same
decision, wherever a sequence comes upon it; docs/PROOF.md gives the list, and how often each was met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import JoinGroupResponse
from tests.group.scenario import Answer, Step
from tests.kafka.differences import NO_REPLY, Difference
from tests.kafka.differential.generator import TOO_LONG
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


def _left_in_memory(difference: Difference, ours: Fields, steps: Sequence[Step]) -> bool:
    said = (difference.theirs, difference.ours)
    _, _, api = difference.reply.partition(" ")
    return any(step.options.get("metadata-length") == TOO_LONG for step in steps) and (
        (api.startswith("DELETE_GROUPS") and said == ("0", "69"))
        or (
            api.startswith("DESCRIBE_GROUPS")
            and (
                said in (("69", "0"), ("'Dead'", "'Empty'"))
                or (difference.field.endswith("error_message") and difference.ours == "None")
            )
        )
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
    Deliberate(
        "a commit that is refused for the length of its metadata leaves no group behind",
        "Kafka leaves one in memory, which can be deleted, and which nobody can describe, not even once "
        "clients ask to join it",
        _left_in_memory,
    ),
)


def is_forgotten_by_kafka(answer: Answer) -> bool:
    """Whether Kafka has none like it, so that nobody need wait: it tells no JoinGroup of a rebalance."""
    response = answer.response
    return isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def reason(difference: Difference, ours: Fields, steps: Sequence[Step]) -> str | None:
    """What the difference is an instance of; None: of nothing that is meant."""
    for rule in RULES:
        if rule.covers(difference, ours, steps):
            return rule.what
    return None
