"""How times, amounts and causes are worded."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

_MEANINGS: Final = {
    "crashed": ("a member crashed", "its connection closed without a goodbye, then its session expired"),
    "stalled": (
        "a member stalled",
        "its heartbeats stopped while its connection stayed open: a blocked loop, GC, no CPU",
    ),
    "poll-deadline-missed": (
        "a member missed its poll deadline",
        "it did not poll within max.poll.interval.ms and left",
    ),
    "clean-shutdown": (
        "a member was shut down",
        "somebody closed the consumer: it left, and its connection closed",
    ),
    "evicted-by-admin": (
        "an admin removed a member",
        "asked for over another connection than the member's own",
    ),
    "new-member": ("a new member joined", "a process that the group did not have"),
    "rejoined-after-eviction": (
        "a member that had been put out came back",
        "the second rebalance that the first one brings",
    ),
    "subscription-changed": ("a member changed its topics", "it joined again with another subscription"),
    "assignor-changed": ("a member changed its assignor", "it joined with other assignors"),
    "cooperative-follow-up": (
        "a cooperative rebalance's second half",
        "what was withheld is handed out (KIP-429)",
    ),
    "topics-grown": ("a topic got more partitions", "or its number of partitions changed otherwise"),
    "leader-rejoined": ("the leader joined again", "and nothing is known to have changed"),
    "static-member-replaced": (
        "a static member came back",
        "as a new process under the same group.instance.id",
    ),
    "duplicate-instance-id": ("two processes used one group.instance.id", "they fence each other in turns"),
    "pending-member": ("a client took a member id and did not come back", "everybody waits for it (KIP-394)"),
    "slow-join": ("a member was slow to rejoin", "everybody waits for it"),
    "sync-timeout": ("a member never asked for its assignment", "it joined and sent no SyncGroup in time"),
    "group-full": ("the group was full", "group.max.size keeps a member out (KIP-389)"),
    "rolling-restart": ("static members were restarted in turn", "several came back within ten minutes"),
    "slow-revoke": (
        "a member was slow to revoke partitions",
        "others wait for them (KIP-848); it does not poll, or its callback takes long",
    ),
    "regex-resolved": (
        "a regular expression stood for other topics",
        "topics came or went, or a member brought it",
    ),
    "static-member-away": (
        "a static member left temporarily",
        "it keeps its partitions until its session expires",
    ),
    "fenced": ("a member was fenced", "it used an epoch that it did not have"),
    "upgraded": (
        "a classic group became a consumer group",
        "its first member of the consumer protocol joined (KIP-848)",
    ),
    "downgraded": (
        "a consumer group became a classic one",
        "its last member of the consumer protocol left (KIP-848)",
    ),
    "coordinator-moved": ("the group's coordinator moved", "another broker has the group now"),
    "unknown": ("a cause that is not known", "nothing that the coordinator knows of says why"),
}
"""By diagnosis, as in docs/why.md: who did what, and how it shows."""


def event(diagnosis: str) -> str:
    """What happened, as a clause."""
    return _MEANINGS[diagnosis][0] if diagnosis in _MEANINGS else diagnosis


def meaning(diagnosis: str) -> str:
    """How it shows."""
    return _MEANINGS[diagnosis][1] if diagnosis in _MEANINGS else "a word of docs/why.md"


def known(value: object) -> bool:
    """Whether it is neither None nor NaN nor NaT."""
    return value is not None and value == value


def duration(ms: float | None) -> str:
    """About three digits, and the unit: 850 ms, 47.3 s, 1 h 20 min; – if not known."""
    if ms is None or not known(ms):
        return "–"
    if ms < 0:
        return "−" + duration(-ms)
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 99_950:
        return f"{round(ms / 1_000, 2 if ms < 9_995 else 1):g} s"
    tenths_m = round(ms / 60_000, 1)
    if tenths_m < 60:
        return f"{tenths_m:g} min"
    minutes = round(ms / 60_000)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(ms / 3_600_000), 24)
    return f"{days:,} d" + (f" {hours} h" if hours else "")


def count(number: float | None) -> str:
    """The number with thousands separators."""
    return "–" if number is None or not known(number) else f"{round(number):,}"


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """1 group, 2 groups."""
    return f"{count(number)} {noun if round(number) == 1 else plural or noun + 's'}"


def times(number: float) -> str:
    """Once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(round(number), f"{count(number)} times")


def rate(per_hour: float | None) -> str:
    """A rate per hour."""
    if per_hour is None or not known(per_hour):
        return "–"
    return f"{per_hour:,.0f}" if per_hour >= 99.5 else f"{per_hour:.3g}"


def often(number: float, per_hour: float | None, ms: float) -> str:
    """How often something happened in a time: 7 times in 73 s; 12 times, 2.4 an hour."""
    said = times(number)
    if round(number) == 1:
        return said
    return f"{said} in {duration(ms)}" if per_hour is None else f"{said}, {rate(per_hour)} an hour"


def share(part: float | None) -> str:
    """As a percentage; less than all is never 100 %, more than nothing never 0 %."""
    if part is None or not known(part):
        return "–"
    percent = part * 100
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.9 < percent < 100:
        return ">99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def moment(ms: float | None) -> str:
    """In UTC: 2026-01-31 14:03:12 UTC."""
    if ms is None or not known(ms):
        return "–"
    return datetime.fromtimestamp(math.floor(ms / 1_000), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shortened(text: str, most: int) -> str:
    """At most `most` characters: the middle is removed, since ends tell names apart."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def shown(name: str) -> str:
    """A name with invisible characters escaped: control characters, and those that change the text
    direction."""
    visible = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in name)
    return visible or "(empty name)"
