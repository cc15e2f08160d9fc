"""A journal entry and its JSON: the record value in `__group_events`.

A leaf module: readers of the topic outside the broker use it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

VERSION: Final = 1
"""Schema version (`docs/journal.schema.json`). New types and fields do not raise it: readers ignore those
they do not know."""

COMMON: Final = (
    "v",
    "type",
    "at_ms",
    "broker",
    "shard",
    "group",
    "generation",
    "trigger",
    "member",
    "reason",
)
"""The fields of every entry, in the order they are written."""

MOMENTS: Final = ("started_ms", "until_ms", "expires_ms")
"""The types' own fields that are moments, not durations, by the same clock as `at_ms`."""

CUT: Final = "cut"
"""Field of an entry whose lists were cut: the full length of each."""

REJOINS_TOLD_MAX: Final = 100
"""Each JoinGroup of a known member has an entry in groups of up to this many members."""

WHOLE_BROKER: Final = -1
"""Stands for the shard number in entries about all groups of a broker. Kept in memory only."""
TRANSACTIONS: Final = -2
"""Stands for the shard number in entries about transactions, which are no group's. Kept in memory only."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class Member(NamedTuple):
    """A member's identity, as an operator would name it."""

    id: str
    client_id: str
    host: str
    """Without the slash that Java puts in front of an address."""
    instance: str | None = None
    """group.instance.id; None for a dynamic member."""

    def to_json(self) -> dict[str, str | None]:
        return {"id": self.id, "client_id": self.client_id, "host": self.host, "instance": self.instance}

    @classmethod
    def from_json(cls, value: object) -> Member:
        """Raises ValueError."""
        match value:
            case {
                "id": str(member_id),
                "client_id": str(client_id),
                "host": str(host),
                "instance": str(instance),
            }:
                return cls(member_id, client_id, host, instance)
            case {"id": str(member_id), "client_id": str(client_id), "host": str(host), "instance": None}:
                return cls(member_id, client_id, host)
        raise ValueError(f"not a member: {value!r:.200}")


class Entry(NamedTuple):
    """An event of a group, or (`group` is None) of a whole shard or broker."""

    type: str
    at_ms: int
    """Epoch milliseconds by the broker's clock, which is behind the date after a suspend."""
    broker: int
    """Node id of the broker that wrote it."""
    shard: int
    group: str | None
    generation: int | None
    """The group's generation right after the event."""
    trigger: str | None = None
    """What caused it: a value of `group.events.Trigger`."""
    member: Member | None = None
    """The member it is about, or that triggered it."""
    reason: str | None = None
    """The reason given by the client (KIP-800)."""
    data: Mapping[str, Any] = MappingProxyType({})
    """The type's own fields, as JSON values."""

    def to_json(self) -> bytes:
        """Compact UTF-8."""
        member = self.member
        # Keys in the order of COMMON; written out for speed, since every event passes here.
        text = _encode(
            {
                "v": VERSION,
                "type": self.type,
                "at_ms": self.at_ms,
                "broker": self.broker,
                "shard": self.shard,
                "group": self.group,
                "generation": self.generation,
                "trigger": self.trigger,
                "member": None if member is None else member.to_json(),
                "reason": self.reason,
                **self.data,
            }
        )
        # Text from clients may decode to lone surrogates, which UTF-8 cannot encode.
        return text.encode("utf-8", "replace")

    @classmethod
    def from_json(cls, raw: bytes) -> Entry:
        """Raises ValueError with what is wrong. Unknown types and fields are kept."""
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"not an object: {raw[:200]!r}")
        version = _required(value, "v", int)
        if version < VERSION:
            raise ValueError(f"v is {version}, and the first version is {VERSION}")
        member = value.get("member")
        return cls(
            type=_required(value, "type", str),
            at_ms=_required(value, "at_ms", int),
            broker=_required(value, "broker", int),
            shard=_required(value, "shard", int),
            group=_optional(value, "group", str),
            generation=_optional(value, "generation", int),
            trigger=_optional(value, "trigger", str),
            member=None if member is None else Member.from_json(member),
            reason=_optional(value, "reason", str),
            data={name: each for name, each in value.items() if name not in COMMON},
        )

    def dated(self, at_ms: int) -> Entry:
        """The entry, with all its times moved so that it happened at `at_ms`."""
        by_ms = at_ms - self.at_ms
        moved = {name: each + by_ms for name in MOMENTS if isinstance(each := self.data.get(name), int)}
        return self._replace(at_ms=at_ms, data={**self.data, **moved})

    def members(self, field: str) -> list[Member]:
        """A field that lists members; empty if the entry lacks it. Raises ValueError."""
        value = self.data.get(field) or ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{field} is not a list of members: {value!r:.200}")
        return [Member.from_json(each) for each in value]


def _optional(value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = value.get(name)
    # bool is an int in Python, but not a number in JSON.
    if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
        raise ValueError(f"{name} is {found!r:.200}, expected {'a string' if kind is str else 'an integer'}")
    return found


def _required(value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = _optional(value, name, kind)
    if found is None:
        raise ValueError(f"{name} is missing")
    return found
