"""Judges a client's admin calls: each must have the same outcome with muster as with Apache Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.interop.story.lines import AdminCall

# What muster does not serve, by feature, with the clients' calls for it, as `plain` normalizes them.
_NOT_SERVED_BY_FEATURE: Final = {
    "delegation tokens": {"describedelegationtoken", "describedelegationtokens"},
    "ACLs": {"createacls", "kafkaacls"},
    "several log directories": {"alterreplicalogdirs"},
    "KRaft": {"describemetadataquorum", "kafkametadataquorum"},
    "KIP-848 groups": {"describeconsumergroupsofkip"},
    "share groups": {"describesharegroups", "listsharegroupoffsets"},
    "Kafka Streams groups": {"describestreamsgroups"},
}
NOT_SERVED: Final = {call: feature for feature, calls in _NOT_SERVED_BY_FEATURE.items() for call in calls}
"""By call name, as `plain` normalizes it."""
SWITCHED_OFF: Final = {
    "describeacls",
    "deleteacls",
    "updatefeatures",
}
"""Calls that muster refuses within the API. Some clients raise these errors and others return them; some ask
for unavailable levels of a feature. tests/kafka checks whether muster answers as Kafka does."""


@dataclass(frozen=True)
class Verdict:
    tried: int
    as_kafka: int
    """Calls with the same outcome as with Apache Kafka; others are unserved, switched off, or problems."""
    problems: tuple[str, ...]


def plain(call: str) -> str:
    """`describe_acls` and `describeAcls` are the same call."""
    return "".join(letter for letter in call.lower() if letter.isalpha())


def judge(calls: Sequence[AdminCall], kafka: Sequence[AdminCall] | None) -> Verdict:
    """`kafka` holds the outcomes of these calls with Apache Kafka; None if not tried: all must succeed.

    A call that fails against Kafka may succeed (clients have bugs that only Kafka's answers trigger).
    """
    excused = set(kafka or ())
    as_kafka = 0
    problems = []
    for call in calls:
        feature = NOT_SERVED.get(plain(call.call))
        if call.ok and feature is not None:
            problems.append(
                f"admin call {call.call} works: take it off the list of what is not served ({feature})"
            )
        elif call.ok or call in excused:
            as_kafka += 1
        elif feature is None and plain(call.call) not in SWITCHED_OFF:
            problems.append(
                f"admin call {call.call} failed: {call.error}; against Apache Kafka: {_said(call, kafka)}"
            )
    if kafka is not None and [call.call for call in calls] != [call.call for call in kafka]:
        problems.append("the admin program did not try the same calls as against Apache Kafka")
    return Verdict(len(calls), as_kafka, tuple(problems))


def _said(call: AdminCall, kafka: Sequence[AdminCall] | None) -> str:
    if kafka is None:
        return "not asked"
    return (
        ", ".join("ok" if each.ok else each.error for each in kafka if each.call == call.call) or "not tried"
    )
