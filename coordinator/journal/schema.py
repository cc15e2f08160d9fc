"""The types of entries and their fields, as data; `docs/journal.schema.json` and the list in
`docs/journal.md` are made from it: `python -m muster.coordinator.journal.schema docs`.

A leaf, as `entries` is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import CUT, VERSION

Shape = Mapping[str, Any]
"""A JSON Schema."""

_TEXT: Final[Shape] = {"type": "string"}
_NUMBER: Final[Shape] = {"type": "integer"}
_COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
_FLAG: Final[Shape] = {"type": "boolean"}
_MEMBER: Final[Shape] = {"$ref": "#/$defs/member"}
_GROUP_STATE: Final[Shape] = {
    "enum": ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"],
}


def _or_null(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def _list_of(shape: Shape) -> Shape:
    return {"type": "array", "items": shape}


def _row(*shapes: Shape) -> Shape:
    """An array with one element of each shape."""
    return {"type": "array", "prefixItems": list(shapes), "minItems": len(shapes), "maxItems": len(shapes)}


def _table(shape: Shape) -> Shape:
    """An object with such values."""
    return {"type": "object", "additionalProperties": shape}


class Field(NamedTuple):
    """One field of a type."""

    name: str
    shape: Shape
    text: str
    optional: bool = False
    """Left out where nothing is known; the others are always there."""


class EntryType(NamedTuple):
    """What one type of entries tells."""

    name: str
    text: str
    fields: tuple[Field, ...] = ()
    of_group: bool | None = True
    """False for what concerns a whole shard or broker, None for what may."""


_POSITIONS: Final[Shape] = _list_of(_row(_TEXT, _COUNT, _COUNT, _COUNT))


def _type(name: str, text: str, *fields: Field, of_group: bool | None = True) -> EntryType:
    return EntryType(name, text, fields, of_group)


_SILENT = Field("silent_ms", _COUNT, "how long ago the member was last heard of")
_SESSION = Field("session_timeout_ms", _COUNT, "the member's session timeout")
_HEARTBEATS = Field(
    "heartbeat_interval_ms", _or_null(_COUNT), "between its heartbeats, as observed; null: too few came"
)
_FORMER = Field(
    "former_member_id",
    _or_null(_TEXT),
    "a former member last heard of over the same connection: most likely the same client",
)
_EPOCH = Field("epoch", _COUNT, "of the shard's lease: grows whenever a broker takes it")

_CUT = Field(
    CUT,
    _table(_COUNT),
    "lists that had more than is written, and how many elements each had",
    optional=True,
)

TYPES: Final = (
    _type("group_created", "A group came into being, without members."),
    _type("group_removed", "An empty group went away."),
    _type(
        "state_changed",
        "The group went from one state to another.",
        Field("from_state", _GROUP_STATE, "before"),
        Field("to_state", _GROUP_STATE, "now"),
        Field("phase_ms", _COUNT, "how long the group was in from_state"),
        Field(
            "waiting_for",
            _list_of(_MEMBER),
            "members that have yet to send JoinGroup (on entering PreparingRebalance), that did not send it "
            "in time (on leaving it), or that have yet to send SyncGroup (on entering and leaving "
            "CompletingRebalance); 100 at most",
        ),
        Field(
            "pending_member_ids",
            _list_of(_TEXT),
            "ids that were issued and not come back with: waited for too; 1,000 at most",
        ),
        Field(
            "until_ms", _or_null(_COUNT), "when the group stops waiting, epoch time; null: it does not wait"
        ),
    ),
    _type(
        "member_id_issued",
        "A client was told its member id and is waited for (MEMBER_ID_REQUIRED, KIP-394).",
        Field("expires_ms", _COUNT, "when it is no longer waited for, epoch time"),
        _FORMER,
    ),
    _type(
        "pending_member_removed",
        "A client that was issued a member id, and perhaps not told it, is no longer waited for.",
        Field("waited_ms", _COUNT, "how long it was waited for"),
    ),
    _type(
        "member_added",
        "A member is in the group, waiting for the rebalance to complete.",
        Field("protocols", _list_of(_TEXT), "the assignors it supports, the preferred one first"),
        Field("topics", _or_null(_list_of(_TEXT)), "what it subscribes to; null where that cannot be told"),
        _SESSION,
        Field("rebalance_timeout_ms", _COUNT, "how long it may take to rejoin"),
        _FORMER,
    ),
    _type(
        "member_rejoined",
        "A known member sent the JoinGroup that is waited for; told in groups of up to 100 members.",
        Field("after_ms", _COUNT, "since the rebalance began"),
    ),
    _type(
        "join_refused",
        "A client may not become a member; told once a minute for a client id and host.",
        Field("error", _TEXT, "Kafka's name of the error"),
        Field("size_max", _or_null(_COUNT), "how many members the group may have, when that is why"),
    ),
    _type(
        "member_removed",
        "A member is no longer in the group.",
        _SILENT,
        Field("connected", _FLAG, "whether the connection it was last heard on was still open"),
        Field("disconnected_ms", _or_null(_COUNT), "how long ago that connection closed"),
        Field("late", _COUNT, "its late heartbeats in the ten minutes before"),
        _HEARTBEATS,
        _SESSION,
        Field(
            "requested_by",
            _or_null(_MEMBER),
            "who asked for it over another connection than the member's own: an admin, without member id",
        ),
    ),
    _type(
        "member_disconnected",
        "The connection a member was last heard on has closed.",
        _SILENT,
        Field(
            "after_removal_ms", _or_null(_COUNT), "how long ago it was removed; null: it is still a member"
        ),
    ),
    _type(
        "member_replaced",
        "A static member came back and has a new member id; who still uses the old one is fenced (KIP-345).",
        Field("old_member_id", _TEXT, "the id it had"),
        Field("old_client_host", _TEXT, "where it was before"),
        Field("old_silent_ms", _COUNT, "how long ago the old one was last heard of"),
        Field("old_connected", _FLAG, "whether its connection was still open"),
    ),
    _type(
        "member_fenced",
        "Someone sent a request under an old member id of a static member, or under an instance id that is "
        "not its own (FENCED_INSTANCE_ID); told once a minute for an instance. `member` has it now.",
        Field("api", _TEXT, "Kafka's name of the request"),
        Field("old_member_id", _TEXT, "the id it came under"),
        Field("old_client_id", _TEXT, "who sent it"),
        Field("old_client_host", _TEXT, "and from where"),
    ),
    _type(
        "metadata_changed",
        "A member joined with other metadata than before.",
        Field("topics_added", _list_of(_TEXT), "what it subscribes to now and did not before"),
        Field("topics_removed", _list_of(_TEXT), "and what it did and does not any more"),
        Field("protocols_before", _list_of(_TEXT), "the assignors it supported; empty where not known"),
        Field("protocols_after", _list_of(_TEXT), "and those it supports now"),
        Field("user_data_changed", _FLAG, "whether the assignor's own data has changed"),
        Field("owned_changed", _FLAG, "whether it says that it owns other partitions than before (KIP-429)"),
    ),
    _type(
        "topics_grown",
        "Topics that the members subscribe to have another number of partitions than at the last assignment.",
        Field("topics", _list_of(_row(_TEXT, _COUNT, _COUNT)), "[topic, partitions then, partitions now]"),
    ),
    _type(
        "leader_changed",
        "Another member than before leads the generation that begins, and computes its assignment.",
        Field("old_member_id", _TEXT, "who led the one before"),
    ),
    _type(
        "protocol_chosen",
        "The members' votes fell on another assignor than that of the last generation.",
        Field("protocol", _TEXT, "the chosen one"),
        Field("before", _or_null(_TEXT), "the one before; null: there was none"),
        Field("votes", _table(_COUNT), "how many members voted for each"),
    ),
    _type(
        "assigned",
        "The leader's assignment is in. All is null where it cannot be read: no consumers, or damaged.",
        Field("partitions", _or_null(_COUNT), "how many have an owner now"),
        Field("kept", _or_null(_COUNT), "how many of them have the owner of the last generation"),
        Field("moved", _or_null(_COUNT), "how many another member owned; the others are newly assigned"),
        Field("lost", _or_null(_COUNT), "how many had an owner and have none now"),
        Field(
            "moves",
            _or_null(_list_of(_row(_TEXT, _COUNT, _or_null(_TEXT), _or_null(_TEXT)))),
            "[topic, partition, member id before, member id now], null for nobody; 1,000 at most",
        ),
        Field("owned", _or_null(_table(_COUNT)), "how many partitions each member id has; 1,000 at most"),
        Field("truncated", _FLAG, "whether moves or owned leaves something out"),
    ),
    _type(
        "all_synced",
        "Every member has asked for its assignment.",
        Field("after_ms", _COUNT, "how long after the assignment was in"),
        Field("last", _MEMBER, "who came last"),
    ),
    _type(
        "rebalance_completed",
        "The group is Stable in a new generation, or Empty. Trigger, member and reason are those of the "
        "rebalance's last start.",
        Field("started_ms", _COUNT, "when it began, epoch time"),
        Field("join_ms", _COUNT, "how long the group waited for JoinGroups"),
        Field("assignment_ms", _COUNT, "how long it then waited for the leader's assignment"),
        Field("restarts", _COUNT, "how often it began anew before it completed"),
        Field("members", _COUNT, "how many there are now"),
        Field("dropped", _list_of(_MEMBER), "members that did not rejoin in time; 100 at most"),
        Field("last_joined", _or_null(_MEMBER), "whose JoinGroup came last"),
        Field(
            "joins", _list_of(_row(_MEMBER, _COUNT)), "[member, how long it took to join], the slowest five"
        ),
        Field("lag_before", _COUNT, "records the group was behind as it began, where known", optional=True),
        Field("lag", _COUNT, "records it is behind now, where known", optional=True),
        Field(
            "lag_partitions",
            _POSITIONS,
            "where `lag` is known: [topic, partition, committed offset, records behind], the furthest "
            "behind, 100 at most",
            optional=True,
        ),
    ),
    _type(
        "heartbeat_late",
        "A near miss: a member was silent for so long that it was near its eviction, or far from its pace.",
        Field("late_ms", _COUNT, "how long it had been silent"),
        _HEARTBEATS,
        _SESSION,
    ),
    _type(
        "commit_refused",
        "An OffsetCommit was refused: what its sender had processed will be delivered again. Told twenty "
        "times in ten seconds for a group at most.",
        Field("error", _TEXT, "Kafka's name of the error"),
        Field("committed_generation_id", _NUMBER, "the generation it came under; -1: none"),
        Field("partitions", _COUNT, "how many it named"),
        Field("superseded_ms", _or_null(_COUNT), "how long ago that generation ended; null: not known"),
        Field("owner", _or_null(_MEMBER), "who has the first of these partitions now"),
        Field("topic", _TEXT, "of the first of these partitions"),
        Field("partition", _NUMBER, "its number; -1: it named none"),
    ),
    _type(
        "offsets_removed",
        "Committed offsets went away without a commit in their place.",
        Field("partitions", _list_of(_row(_TEXT, _COUNT)), "[topic, partition]; 1,000 at most"),
    ),
    _type(
        "lag_at_commit",
        "How far behind a group that commits is. They come 10 s after a rebalance, then ever rarer.",
        Field("total", _COUNT, "records in all"),
        Field(
            "partitions",
            _POSITIONS,
            "[topic, partition, committed offset, records behind], the furthest behind, 100 at most",
        ),
        Field(
            "recovered",
            _FLAG,
            "true once after a rebalance: the lag is back at what it was when that began",
            optional=True,
        ),
    ),
    _type(
        "fault_fired",
        "A fault that a test asked for happened.",
        Field("rule", _NUMBER, "the rule's id"),
        Field("api", _TEXT, "the request it hit"),
        Field("action", _TEXT, "what was done"),
        of_group=None,
    ),
    _type(
        "shard_loaded",
        "A broker took over the groups of a shard.",
        _EPOCH,
        Field("groups", _COUNT, "how many there are"),
        Field("took_ms", _COUNT, "how long loading took"),
        Field("from_broker", _or_null(_NUMBER), "who had it before; null: not known"),
        Field(
            "from_silent_ms",
            _COUNT,
            "how long ago another broker, which had it before, was heard of last; where known",
            optional=True,
        ),
        of_group=False,
    ),
    _type(
        "shard_unloaded",
        "A broker gave up the groups of a shard.",
        _EPOCH,
        Field("why", _TEXT, "in words"),
        of_group=False,
    ),
    _type(
        "clock_moved",
        "A test moved the broker's clock. Kept in memory alone.",
        Field("by_ms", _COUNT, "how far"),
        of_group=False,
    ),
)
"""In the order in which they are documented."""

_COMMON: Final = (
    Field("v", {"type": "integer", "minimum": VERSION}, "version of the schema"),
    Field("type", _TEXT, "what happened; pass over types you do not know"),
    Field("at_ms", _NUMBER, "when, epoch time"),
    Field("broker", _NUMBER, "node id of the broker that wrote it"),
    Field("shard", _NUMBER, "which shard of the groups; the partition of __group_events"),
    Field("group", _or_null(_TEXT), "the group's id; null for what concerns a whole shard"),
    Field("generation", _or_null(_NUMBER), "the group's generation right after it"),
    Field("trigger", _or_null(_TEXT), "what made it happen"),
    Field("member", _or_null(_MEMBER), "whom it is about, or who triggered it"),
    Field("reason", _or_null(_TEXT), "what the client gave as a reason (KIP-800)"),
)


def json_schema() -> dict[str, Any]:
    """The schema of a record value in `__group_events`, for any validator (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Value of a record in __group_events, version {VERSION}",
        "description": "Pass over types and fields you do not know: they are added without a new version.",
        **_object(_COMMON),
        "allOf": [
            {
                "if": {"properties": {"type": {"const": each.name}}},
                "then": {"$ref": f"#/$defs/{each.name}"},
            }
            for each in TYPES
        ],
        "$defs": {"member": _member(), **{each.name: _of_type(each) for each in TYPES}},
    }


def _of_type(entry_type: EntryType) -> dict[str, Any]:
    shape = _object((*entry_type.fields, _CUT))
    groups: dict[bool | None, dict[str, Shape]] = {
        True: {"group": _TEXT},
        False: {"group": {"type": "null"}},
        None: {},
    }
    properties = {**groups[entry_type.of_group], **shape["properties"]}
    return {"description": entry_type.text, **shape, "properties": properties}


def _member() -> dict[str, Any]:
    return _object(
        (
            Field("id", _TEXT, "its member id"),
            Field("client_id", _TEXT, "its client.id"),
            Field("host", _TEXT, "where it connects from"),
            Field("instance", _or_null(_TEXT), "its group.instance.id; null for a dynamic member"),
        )
    )


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [field.name for field in fields if not field.optional],
        "properties": {field.name: {"description": field.text, **field.shape} for field in fields},
    }


_BEGIN: Final = "<!-- made by muster.coordinator.journal.schema -->\n"
_END: Final = "<!-- end -->\n"


def page(text: str) -> str:
    """The page with its list of types made anew."""
    before, _, left = text.partition(_BEGIN)
    _, _, behind = left.partition(_END)
    return f"{before}{_BEGIN}{_list()}{_END}{behind}"


def _list() -> str:
    lines = [f"| `{field.name}` | {field.text} |" for field in (*_COMMON, _CUT)]
    common = "\n".join(["| field | |", "|---|---|", *lines])
    types = ["| type | what happened | fields |", "|---|---|---|"]
    for each in TYPES:
        told = "<br>".join(f"`{field.name}`: {field.text}" for field in each.fields)
        types.append(f"| `{each.name}` | {each.text} | {told} |")
    return f"\n{common}\n\n" + "\n".join(types) + "\n\n"


def text() -> str:
    """What the schema's file has in it."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    _docs = Path(sys.argv[1])
    (_docs / "journal.schema.json").write_text(text(), encoding="utf-8")
    _page = _docs / "journal.md"
    _page.write_text(page(_page.read_text(encoding="utf-8")), encoding="utf-8")
