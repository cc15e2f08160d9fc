"""One entry of the journal, and its JSON: the record value in `__group_events`.

A leaf: readers of the topic outside the broker use it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

VERSION: Final = 1
"""Of the schema (`docs/journal.schema.json`). Types and fields are added without raising it: readers pass
over what they do not know."""

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
"""The fields of every entry, in the order in which they are written."""

CUT: Final = "cut"
"""Field of an entry with lists that were too long: how many elements each of them had."""

WHOLE_BROKER: Final = -1
"""In place of a shard's number, of what concerns all of a broker's groups. It is kept in memory alone."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class Member(NamedTuple):
    """Who a member is, as an operator would name it."""

    id: str
    client_id: str
    host: str
    """Without the slash that Java puts before an address."""
    instance: str | None = None
    """Its group.instance.id; None for a dynamic member."""

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


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened: to a group, or (`group` is None) to a whole shard of groups or a broker."""

    type: str
    at_ms: int
    """Epoch milliseconds."""
    broker: int
    """Node id of the broker that wrote it."""
    shard: int
    group: str | None
    generation: int | None
    """The group's generation right after it."""
    trigger: str | None = None
    """What made it happen: a value of `group.events.Trigger`."""
    member: Member | None = None
    """Whom it is about, or who triggered it."""
    reason: str | None = None
    """What the client gave as a reason (KIP-800)."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The type's own fields, as JSON values."""

    def to_json(self) -> bytes:
        """Compact UTF-8."""
        member = self.member
        # Keys in the order of COMMON; written out, since every event of every group comes by here.
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
        # What a client sends as UTF-8 may decode to lone surrogates; they have no UTF-8 of their own.
        return text.encode("utf-8", "replace")

    @classmethod
    def from_json(cls, raw: bytes) -> Entry:
        """Raises ValueError with what is wrong. Types and fields it does not know are kept as they are."""
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

    def members(self, field: str) -> list[Member]:
        """A field that lists members; empty where the entry does not have it. Raises ValueError."""
        value = self.data.get(field) or ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{field} is no list of members: {value!r:.200}")
        return [Member.from_json(each) for each in value]


def _optional(value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = value.get(name)
    # bool is an int in Python, and no number in JSON.
    if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
        raise ValueError(
            f"{name} is {found!r:.200}, and should be {'a string' if kind is str else 'an integer'}"
        )
    return found


def _required(value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = _optional(value, name, kind)
    if found is None:
        raise ValueError(f"{name} is missing")
    return found
