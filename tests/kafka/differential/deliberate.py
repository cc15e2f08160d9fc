"""Where muster deliberately answers differently, as random sequences encounter it.

DIFFERENCES.md lists single answers of single stories. Here a rule says which differences are instances of the
same decision, wherever a sequence encounters it; docs/PROOF.md gives the list, and how often each was met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import JoinGroupResponse
from tests.group.scenario import Answer, Step
from tests.kafka.differences import NO_REPLY, Difference
from tests.kafka.differential.generator import TOO_LONG
from tests.kafka.differential.watched import Quirk
from tests.kafka.recording import Fields

Covers = Callable[["Met"], bool]
_MADE_ID: Final = re.compile(r"(?<=Static member )\S+ ")
_GROUP: Final = re.compile(r"groups\[[^\]]*\]")


class Met(NamedTuple):
    """A difference where it was met."""

    difference: Difference
    theirs: Fields
    """All fields of Kafka's reply; empty if there was none."""
    ours: Fields
    steps: Sequence[Step]
    """The steps up to it."""
    answers: Sequence[Sequence[str]] = ()
    """Kafka's answers to each step, as transcript lines."""
    quirks: frozenset[Quirk] = frozenset()
    """The quirks that muster was seen to run into."""


class Deliberate(NamedTuple):
    """One decision."""

    what: str
    why: str
    covers: Covers
    ends: bool = False
    """Whether nothing can be compared after it."""


def _unanswered_by_kafka(api: str, code: ErrorCode) -> Covers:
    def covers(met: Met) -> bool:
        return (
            met.difference.field == "reply"
            and met.difference.theirs == NO_REPLY
            and f" {api}" in met.difference.reply
            and met.ours.get("error_code") == str(code.value)
        )

    return covers


def _zero_bytes(met: Met) -> bool:
    return (
        met.difference.field.endswith("assignment")
        and (met.difference.theirs, met.difference.ours) == ("raw:", "none")
        and met.ours.get("protocol_type", "'consumer'") in ("None", "'consumer'")
    )


def _left_in_memory(met: Met) -> bool:
    """About a group that stays out of sight in Kafka: listing and describing say that it does not exist,
    whatever has joined it since, until something else is written near it; deleting it or its offsets says
    that it exists."""
    if not any(step.options.get("metadata-length") == TOO_LONG for step in met.steps):
        return False
    _, _, api = met.difference.reply.partition(" ")
    codes = (met.theirs.get("error_code"), met.ours.get("error_code"))
    if api.startswith("LIST_GROUPS"):
        return True
    if api.startswith("DESCRIBE_GROUPS"):
        group = _GROUP.match(met.difference.field)
        state = f"{group[0]}.group_state" if group is not None else ""
        states = (met.theirs.get(state), met.ours.get(state))
        return states[0] == "'Dead'" or states == ("'Empty'", "'Dead'")
    if api.startswith("DELETE_GROUPS"):
        return (met.difference.theirs, met.difference.ours) == ("0", "69")
    return api.startswith("OFFSET_DELETE") and codes == ("0", "69")


def _id_repeated(met: Met) -> bool:
    return (
        " JOIN_GROUP" in met.difference.reply
        and met.difference.field == "member_id"
        and met.difference.theirs == "none"
        and met.theirs.get("error_code") != "0"
    )


def _topics_in_another_order(met: Met) -> bool:
    one, other = met.difference.theirs, met.difference.ours
    return met.difference.field.endswith("assignment") and sorted(one.split(",")) == sorted(other.split(","))


def _failed_in_an_upgrade(met: Met) -> bool:
    return (
        " CONSUMER_GROUP_HEARTBEAT" in met.difference.reply
        and met.theirs.get("error_code") == str(ErrorCode.UNKNOWN_SERVER_ERROR.value)
        and any(step.verb == "join" for step in met.steps)
    )


def _woken_by_a_refused_upgrade(met: Met) -> bool:
    api = met.difference.reply.partition(" ")[2]
    return (
        met.steps[-1].verb == "beat"
        and api in ("JOIN_GROUP", "SYNC_GROUP")
        and met.difference.ours == NO_REPLY
        and any(f"{met.steps[-1].actor}: error=" in line for line in met.answers[-1])
    )


def _since(quirk: Quirk) -> Covers:
    def covers(met: Met) -> bool:
        return quirk in met.quirks

    return covers


def _id_of_nobody(met: Met) -> bool:
    """In v0 of ConsumerGroupHeartbeat a broker generates an id even for a member that it refuses."""
    words = [_MADE_ID.sub(" ", each) for each in (met.difference.theirs, met.difference.ours)]
    return met.difference.field == "error_message" and met.steps[-1].version == 0 and words[0] == words[1]


def _words_of_a_regex(met: Met) -> bool:
    words = met.difference.theirs, met.difference.ours
    return met.difference.field == "error_message" and all("SubscribedTopicRegex" in each for each in words)


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
        "Kafka leaves one in memory, which can be deleted, and which nobody can list or describe for a "
        "while, not even once clients ask to join it",
        _left_in_memory,
    ),
    Deliberate(
        "a refused JoinGroup repeats the member id that it was sent",
        "Kafka does so too, but for classic members of consumer groups",
        _id_repeated,
    ),
    Deliberate(
        "an assignment of a classic member of a consumer group has its topics in the order of their names",
        "Kafka's is that of a hash table, and means nothing to clients",
        _topics_in_another_order,
    ),
    Deliberate(
        "a group goes over while somebody joins who does not offer the protocol of the last generation",
        "Kafka has told its members to rejoin by the time that it fails, and stays a classic group",
        _failed_in_an_upgrade,
        ends=True,
    ),
    Deliberate(
        "members go on waiting in a classic group whose upgrade is refused",
        "Kafka answers them with REBALANCE_IN_PROGRESS before it looks at all that may refuse it",
        _woken_by_a_refused_upgrade,
        ends=True,
    ),
    Deliberate(
        "a refused JoinGroup leaves an empty consumer group as it is",
        "Kafka forgets the group in memory before it looks at the member id; its records stay, and a reload "
        "has it again",
        _since(Quirk.FORGOTTEN),
        ends=True,
    ),
    Deliberate(
        "an assignor that as many members prefer as another stays the same, and so does the epoch",
        "Kafka finds a winner by one hash table and compares it with that of another, so each heartbeat "
        "makes a new epoch while the tie lasts",
        _since(Quirk.TIE),
        ends=True,
    ),
    Deliberate(
        "a member that joins anew under another instance id is assigned its target",
        "in some groups Kafka begins it with nothing, and what it is to have is nobody's until the next "
        "epoch",
        _since(Quirk.OTHER_INSTANCE),
        ends=True,
    ),
    Deliberate(
        "a regular expression that matches nothing gives a new epoch if its members are to have other topics",
        "in Kafka nobody has these until something else gives a new epoch",
        _since(Quirk.STRANDED),
        ends=True,
    ),
    Deliberate(
        "an upgrade gives a new epoch if it cuts a rebalance short, or if partitions are nobody's",
        "where a static member's return upgrades the group, Kafka's epoch stays, and partitions of members "
        "that left, or that were added, are nobody's until the next epoch",
        _since(Quirk.CUT_SHORT),
        ends=True,
    ),
    Deliberate(
        "where all members of a consumer group speak the classic protocol, a new epoch has them rejoin",
        "only a JoinGroup can make its target then, and in Kafka nobody is told to send one",
        _since(Quirk.CLASSIC_ALONE),
        ends=True,
    ),
    Deliberate(
        "a static member whose return leaves a classic group leads it; below JoinGroup v9, or while somebody "
        "has not its target, that rebalances",
        "in Kafka no member is told that it leads, so nobody sees that the topics change; nor is one that "
        "waits for partitions told when it may have them",
        _since(Quirk.UNLED),
        ends=True,
    ),
    Deliberate(
        "a target is made for members that subscribe to different topics, whoever makes it",
        "while a target is due, Kafka takes a group for one whose members subscribe alike, as it was before "
        "the heartbeat, and assigns partitions to members that do not subscribe to them; nobody has them "
        "until the next epoch",
        _since(Quirk.OLD_KIND),
        ends=True,
    ),
    Deliberate(
        "the id that a broker makes is a UUID as usually written",
        "Kafka writes some in base64; ids mean nothing",
        _id_of_nobody,
    ),
    Deliberate(
        "a regular expression that is none is refused in other words",
        "they are those of the library that reads it",
        _words_of_a_regex,
    ),
)


def is_forgotten_by_kafka(answer: Answer) -> bool:
    """Whether Kafka sends no such answer, so nobody need wait: a JoinGroup never gets
    REBALANCE_IN_PROGRESS."""
    response = answer.response
    return isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def reason(met: Met, rules: Sequence[Deliberate]) -> Deliberate | None:
    """The decision that explains the difference; None: it is unintended."""
    return next((rule for rule in rules if rule.covers(met)), None)
