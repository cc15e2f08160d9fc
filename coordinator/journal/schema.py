"""The entry types and their fields, as data. `python -m muster.coordinator.journal.schema docs` generates
`docs/journal.schema.json` and the list in `docs/journal.md`.

A leaf module, like `entries`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import CUT, REJOINS_TOLD_MAX, VERSION

Shape = Mapping[str, Any]
"""A JSON Schema."""

_TEXT: Final[Shape] = {"type": "string"}
_NUMBER: Final[Shape] = {"type": "integer"}
_COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
_FLAG: Final[Shape] = {"type": "boolean"}
_MEMBER: Final[Shape] = {"$ref": "#/$defs/member"}
_GROUP_STATE: Final[Shape] = {
    "enum": [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Assigning",
        "Reconciling",
        "Stable",
        "Dead",
    ],
}
_GROUP_TYPE: Final[Shape] = {"enum": ["classic", "consumer"]}


def _or_null(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def _list_of(shape: Shape) -> Shape:
    return {"type": "array", "items": shape}


def _row(*shapes: Shape) -> Shape:
    """An array with one element of each shape."""
    return {"type": "array", "prefixItems": list(shapes), "minItems": len(shapes), "maxItems": len(shapes)}


def _table(shape: Shape) -> Shape:
    """An object with values of this shape."""
    return {"type": "object", "additionalProperties": shape}


class Field(NamedTuple):
    """One field of a type."""

    name: str
    shape: Shape
    text: str
    optional: bool = False
    """Left out if unknown; other fields are always present."""


class EntryType(NamedTuple):
    """An entry type."""

    name: str
    text: str
    fields: tuple[Field, ...] = ()
    of_group: bool | None = True
    """False if it concerns a whole shard or broker; None if it may."""


_MOVES: Final[Shape] = _list_of(_row(_TEXT, _COUNT, _or_null(_TEXT), _or_null(_TEXT)))
_PARTITIONS: Final[Shape] = _list_of(_row(_TEXT, _COUNT))
_POSITIONS: Final[Shape] = _list_of(_row(_TEXT, _COUNT, _COUNT, _COUNT))


def _type(name: str, text: str, *fields: Field, of_group: bool | None = True) -> EntryType:
    return EntryType(name, text, fields, of_group)


_SILENT = Field("silent_ms", _COUNT, "how long ago the member was last heard from")
_SESSION = Field("session_timeout_ms", _COUNT, "the member's session timeout")
_HEARTBEATS = Field(
    "heartbeat_interval_ms", _or_null(_COUNT), "average time between its heartbeats; null: too few so far"
)
_FORMER = Field(
    "former_member_id",
    _or_null(_TEXT),
    "a former member last seen on the same connection: most likely the same client",
)
_PRODUCER = Field("producer_id", _NUMBER, "producer id of the transaction")
_EPOCH = Field("epoch", _COUNT, "epoch of the shard's lease: grows whenever a broker takes it over")

_CUT = Field(
    CUT,
    _table(_COUNT),
    "lists that were cut, and their full lengths",
    optional=True,
)

TYPES: Final = (
    _type("group_created", "A group was created, without members."),
    _type("group_removed", "An empty group was removed."),
    _type(
        "state_changed",
        "The group changed its state. Consumer groups (KIP-848) are Empty, Assigning, Reconciling or Stable, "
        "and never wait as a whole group.",
        Field("from_state", _GROUP_STATE, "before"),
        Field("to_state", _GROUP_STATE, "now"),
        Field("phase_ms", _COUNT, "how long the group was in from_state"),
        Field(
            "waiting_for",
            _list_of(_MEMBER),
            "members that have yet to send JoinGroup (on entering PreparingRebalance), that did not "
            "send it in time (on leaving it), or that have yet to send SyncGroup (on becoming Stable); at "
            "most 100",
        ),
        Field(
            "pending_member_ids",
            _list_of(_TEXT),
            "ids that were issued but not used to join yet; waited for too; at most 1,000",
        ),
        Field("until_ms", _or_null(_COUNT), "when the group stops waiting, epoch ms; null: it does not wait"),
        Field(
            "leader",
            _or_null(_MEMBER),
            "the member whose assignment it waits for (on entering CompletingRebalance); null otherwise. "
            "Earlier versions left it out",
            optional=True,
        ),
    ),
    _type(
        "member_id_issued",
        "A client was told its member id and is waited for (MEMBER_ID_REQUIRED, KIP-394).",
        Field("expires_ms", _COUNT, "when the wait ends, epoch ms"),
        _FORMER,
    ),
    _type(
        "pending_member_removed",
        "A client that was issued a member id, and possibly never received it, is no longer waited for.",
        Field("waited_ms", _COUNT, "how long the group waited for it"),
    ),
    _type(
        "member_added",
        "A member joined and waits for the rebalance to complete.",
        Field("protocols", _list_of(_TEXT), "the assignors it supports, in order of preference"),
        Field("topics", _or_null(_list_of(_TEXT)), "topics it subscribes to; null if unknown"),
        _SESSION,
        Field("rebalance_timeout_ms", _COUNT, "how long it may take to rejoin"),
        _FORMER,
    ),
    _type(
        "member_rejoined",
        "A known member sent the JoinGroup that the group waits for; recorded for groups of at most "
        f"{REJOINS_TOLD_MAX} members.",
        Field("after_ms", _COUNT, "time since the rebalance began"),
    ),
    _type(
        "join_refused",
        "A client was refused as a member; recorded once a minute per client id and host.",
        Field("error", _TEXT, "Kafka's name of the error"),
        Field("size_max", _or_null(_COUNT), "the size limit, if that is why"),
        Field(
            "protocol_types",
            _or_null(_row(_TEXT, _TEXT)),
            "[its protocol type, the group's], if they differ and that is why",
        ),
        Field(
            "offered",
            _or_null(_list_of(_TEXT)),
            "the assignors it supports, if the members share none of them and that is why",
        ),
        Field("shared", _or_null(_list_of(_TEXT)), "the assignors that all members support, if that is why"),
    ),
    _type(
        "member_removed",
        "A member was removed from the group.",
        _SILENT,
        Field("connected", _FLAG, "whether the connection it was last seen on was still open"),
        Field("disconnected_ms", _or_null(_COUNT), "how long ago that connection closed"),
        Field("late", _COUNT, "late heartbeats in the ten minutes before"),
        _HEARTBEATS,
        _SESSION,
        Field(
            "requested_by",
            _or_null(_MEMBER),
            "who requested it over a connection other than the member's own: an admin, without member id",
        ),
        Field("away", _FLAG, "whether it had left temporarily: a static member of a consumer group"),
    ),
    _type(
        "member_disconnected",
        "The connection a member was last seen on closed.",
        _SILENT,
        Field(
            "after_removal_ms",
            _or_null(_COUNT),
            "how long ago the member was removed; null: it is still a member",
        ),
    ),
    _type(
        "member_replaced",
        "A static member returned and has a new member id; requests under the old one are fenced (KIP-345).",
        Field("old_member_id", _TEXT, "its former member id"),
        Field("old_client_host", _TEXT, "its former host"),
        Field("old_silent_ms", _COUNT, "how long ago the former process was last heard from"),
        Field("old_connected", _FLAG, "whether its connection was still open"),
        Field("protocol", _GROUP_TYPE, "the protocol it speaks now"),
    ),
    _type(
        "member_fenced",
        "A request came under a former member id of a static member, or under an instance id that "
        "belongs to another (FENCED_INSTANCE_ID), or under an epoch that the member of a consumer group "
        "does not have (FENCED_MEMBER_EPOCH); recorded once a minute per instance or member. `member` is "
        "the current owner.",
        Field("api", _TEXT, "Kafka's name of the request"),
        Field("old_member_id", _TEXT, "the member id it came under"),
        Field("old_client_id", _TEXT, "client id of its sender"),
        Field("old_client_host", _TEXT, "host of its sender"),
        Field("error", _TEXT, "Kafka's name of the error"),
        Field("sent_epoch", _or_null(_NUMBER), "the member epoch in the request, if that is why"),
        Field("member_epoch", _or_null(_NUMBER), "the epoch the member has"),
    ),
    _type(
        "metadata_changed",
        "A member joined with changed metadata; in a consumer group, its heartbeat changed its subscription "
        "or the server-side assignor it asks for.",
        Field("topics_added", _list_of(_TEXT), "newly subscribed topics"),
        Field("topics_removed", _list_of(_TEXT), "topics no longer subscribed"),
        Field("protocols_before", _list_of(_TEXT), "the assignors it supported before; empty if unknown"),
        Field("protocols_after", _list_of(_TEXT), "the assignors it supports now"),
        Field("user_data_changed", _FLAG, "whether the assignor's own data changed"),
        Field("owned_changed", _FLAG, "whether its owned partitions changed (KIP-429)"),
        Field(
            "regex",
            _or_null(_TEXT),
            "the regular expression it now subscribes to (KIP-848); null: unchanged",
        ),
    ),
    _type(
        "topics_grown",
        "Subscribed topics have a different number of partitions than the last assignment was based on.",
        Field("topics", _list_of(_row(_TEXT, _COUNT, _COUNT)), "[topic, partitions before, partitions now]"),
    ),
    _type(
        "leader_changed",
        "The new generation has a different leader, which computes the assignment.",
        Field("old_member_id", _TEXT, "the previous leader"),
    ),
    _type(
        "protocol_chosen",
        "The members' votes chose a different assignor than in the last generation.",
        Field("protocol", _TEXT, "the chosen assignor"),
        Field("before", _or_null(_TEXT), "the previous assignor; null: there was none"),
        Field("votes", _table(_COUNT), "number of votes for each"),
    ),
    _type(
        "assigned",
        "The leader's assignment arrived. All fields but `protocol` are null if it cannot be read: another "
        "protocol type, or damaged.",
        Field("partitions", _or_null(_COUNT), "partitions that have an owner now"),
        Field("kept", _or_null(_COUNT), "partitions that kept their owner"),
        Field("moved", _or_null(_COUNT), "partitions that changed owners; the others are newly assigned"),
        Field("lost", _or_null(_COUNT), "partitions that had an owner and have none now"),
        Field(
            "moves",
            _or_null(_MOVES),
            "[topic, partition, former member id, new member id], null for no owner; at most 1,000",
        ),
        Field("owned", _or_null(_table(_COUNT)), "number of partitions of each member id; at most 1,000"),
        Field("truncated", _FLAG, "whether moves or owned was cut"),
        Field("protocol", _or_null(_TEXT), "the assignor"),
    ),
    _type(
        "all_synced",
        "Every member has requested its assignment.",
        Field("after_ms", _COUNT, "time since the assignment arrived"),
        Field("last", _MEMBER, "the last to request it"),
    ),
    _type(
        "rebalance_completed",
        "The group is Stable in a new generation, or Empty; every member of a consumer group has its target "
        "assignment. Trigger, member and reason are those of the rebalance's last start.",
        Field("started_ms", _COUNT, "when it began, epoch ms"),
        Field("join_ms", _COUNT, "how long the group waited for JoinGroups; 0 for a consumer group"),
        Field(
            "assignment_ms",
            _COUNT,
            "how long it then waited for the leader's assignment; 0 for a consumer group",
        ),
        Field("restarts", _COUNT, "how often it restarted before it completed"),
        Field("members", _COUNT, "number of members now"),
        Field(
            "dropped",
            _list_of(_MEMBER),
            "members that did not rejoin, or revoke partitions, in time; at most 100",
        ),
        Field(
            "last_joined",
            _or_null(_MEMBER),
            "the last to send JoinGroup, or in a consumer group to reach its target",
        ),
        Field(
            "joins",
            _list_of(_row(_MEMBER, _COUNT)),
            "[member, time it took to join, or to reach its target], the slowest five",
        ),
        Field(
            "target_ms",
            _or_null(_COUNT),
            "how long a consumer group waited for its target assignment, in all its epochs; null: a classic "
            "group",
        ),
        Field(
            "reconcile_ms",
            _or_null(_COUNT),
            "how long it then waited, in all its epochs, for members to reach it; null: a classic group",
        ),
        Field("lag_before", _COUNT, "the group's lag in records at the start, if known", optional=True),
        Field("lag", _COUNT, "the group's lag in records now, if known", optional=True),
        Field(
            "lag_partitions",
            _POSITIONS,
            "if `lag` is known: [topic, partition, committed offset, lag in records], the largest lag "
            "first, at most 100",
            optional=True,
        ),
    ),
    _type(
        "epoch_bumped",
        "A consumer group (KIP-848) has a new epoch, `generation`: its target assignment is to be computed "
        "anew. `trigger`, `member` and `reason` say why.",
        Field("members", _COUNT, "number of members now"),
        Field(
            "restarts",
            _COUNT,
            "number of epochs since the group was last Stable or Empty; 0: a rebalance begins",
        ),
    ),
    _type(
        "target_assigned",
        "The coordinator computed a consumer group's target assignment; its members reach it one by one. "
        "Trigger, member and reason are those of the epoch.",
        Field("assignor", _TEXT, "the server-side assignor"),
        Field("partitions", _COUNT, "partitions that have an owner in it"),
        Field("kept", _COUNT, "partitions with the same owner as in the previous target"),
        Field("moved", _COUNT, "partitions with another owner; the others are newly assigned"),
        Field("lost", _COUNT, "partitions that had an owner in the previous target and have none in this"),
        Field(
            "moves",
            _MOVES,
            "[topic, partition, former member id, new member id], null for no owner; at most 1,000",
        ),
        Field("owned", _table(_COUNT), "number of partitions of each member id; at most 1,000"),
        Field("truncated", _FLAG, "whether moves or owned was cut"),
    ),
    _type(
        "revocation_requested",
        "A member of a consumer group has to revoke partitions; their next owners wait for it.",
        Field("partitions", _PARTITIONS, "[topic, partition]; at most 1,000"),
        Field(
            "until_ms",
            _or_null(_COUNT),
            "when it is removed if it has not done so, epoch ms; null: it speaks the classic protocol, and "
            "rejoins",
        ),
    ),
    _type(
        "partitions_revoked",
        "A member of a consumer group has revoked partitions: they are free for their next owners.",
        Field("partitions", _PARTITIONS, "[topic, partition]; at most 1,000"),
        Field("after_ms", _or_null(_COUNT), "time since it was told to; null: it was not, or unknown"),
    ),
    _type(
        "partitions_assigned",
        "A member of a consumer group was assigned partitions that it did not have.",
        Field("partitions", _PARTITIONS, "[topic, partition]; at most 1,000"),
        Field(
            "still_held",
            _PARTITIONS,
            "[topic, partition] of its target that another member has yet to revoke; at most 1,000",
        ),
        Field("member_epoch", _NUMBER, "the member's epoch now"),
    ),
    _type(
        "protocol_migrated",
        "A group that had members became one of the other type (KIP-848).",
        Field("from_type", _GROUP_TYPE, "before"),
        Field("to_type", _GROUP_TYPE, "now"),
        Field("members", _COUNT, "number of members, before and now"),
    ),
    _type(
        "heartbeat_late",
        "A near miss: a member was silent until close to its session timeout, or far longer than its "
        "usual interval.",
        Field("late_ms", _COUNT, "how long it had been silent"),
        _HEARTBEATS,
        _SESSION,
    ),
    _type(
        "commit_refused",
        "An OffsetCommit was refused: what its sender had processed will be delivered again. Recorded "
        "at most twenty times in ten seconds per group.",
        Field("error", _TEXT, "Kafka's name of the error"),
        Field("committed_generation_id", _NUMBER, "the generation in the request; -1: none"),
        Field("partitions", _COUNT, "number of partitions in the request"),
        Field("superseded_ms", _or_null(_COUNT), "how long ago that generation ended; null: unknown"),
        Field("owner", _or_null(_MEMBER), "current owner of the first of these partitions"),
        Field("topic", _TEXT, "topic of the first of these partitions"),
        Field("partition", _NUMBER, "its number; -1: the request named none"),
    ),
    _type(
        "offsets_removed",
        "Committed offsets were removed without a new commit.",
        Field("partitions", _PARTITIONS, "[topic, partition]; at most 1,000"),
    ),
    _type(
        "lag_at_commit",
        "The lag of a group that commits. Recorded 10 s after a rebalance, then ever less often.",
        Field("total", _COUNT, "total lag in records"),
        Field(
            "partitions",
            _POSITIONS,
            "[topic, partition, committed offset, lag in records], the largest lag first, at most 100",
        ),
        Field(
            "recovered",
            _FLAG,
            "true once after a rebalance: the lag is back at its level when that began",
            optional=True,
        ),
    ),
    _type(
        "fault_fired",
        "A fault injected by a test took effect.",
        Field("rule", _NUMBER, "the rule's id"),
        Field("api", _TEXT, "the request it applied to"),
        Field("action", _TEXT, "what was done"),
        of_group=None,
    ),
    _type(
        "shard_loaded",
        "A broker took over the groups of a shard.",
        _EPOCH,
        Field("groups", _COUNT, "number of groups"),
        Field("took_ms", _COUNT, "how long loading took"),
        Field("from_broker", _or_null(_NUMBER), "the previous broker; null: unknown"),
        Field(
            "from_silent_ms",
            _COUNT,
            "how long ago another broker that had it before was last heard from; if known",
            optional=True,
        ),
        of_group=False,
    ),
    _type(
        "shard_unloaded",
        "A broker gave up the groups of a shard.",
        _EPOCH,
        Field("why", _TEXT, "the reason, in words"),
        of_group=False,
    ),
    _type(
        "transaction_aborted",
        "A transaction was aborted because its producer did not end it. Kept in memory only.",
        Field("transactional_id", _TEXT, "whose it was"),
        _PRODUCER,
        Field("producer_epoch", _NUMBER, "its epoch from now on, which fences the producer"),
        Field("partitions", _COUNT, "how many partitions it had"),
        Field("open_ms", _COUNT, "how long ago its first partition was added"),
        of_group=False,
    ),
    _type(
        "transaction_ended_by_client",
        "A client, such as muster transactions abort, ended a transaction on partitions, bypassing "
        "its coordinator. Kept in memory only.",
        _PRODUCER,
        Field("producer_epoch", _NUMBER, "its epoch"),
        Field("committed", _FLAG, "whether it was committed; as a rule it is aborted"),
        Field("partitions", _PARTITIONS, "topics and partitions; at most 1,000"),
        of_group=False,
    ),
    _type(
        "clock_moved",
        "A test moved the broker's clock. Kept in memory only.",
        Field("by_ms", _COUNT, "by how much"),
        of_group=False,
    ),
)
"""In the order in which they are documented."""

_COMMON: Final = (
    Field("v", {"type": "integer", "minimum": VERSION}, "schema version"),
    Field("type", _TEXT, "the entry type; ignore types you do not know"),
    Field("at_ms", _NUMBER, "epoch ms"),
    Field("broker", _NUMBER, "node id of the broker that wrote it"),
    Field(
        "shard", _NUMBER, "the shard of the groups; the partition of __group_events; negative if none has it"
    ),
    Field("group", _or_null(_TEXT), "the group id; null for events of a whole shard"),
    Field("generation", _or_null(_NUMBER), "the group's generation right after the event"),
    Field("trigger", _or_null(_TEXT), "what caused it"),
    Field("member", _or_null(_MEMBER), "the member it is about, or that triggered it"),
    Field("reason", _or_null(_TEXT), "the reason given by the client (KIP-800)"),
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a record value in `__group_events`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Value of a record in __group_events, version {VERSION}",
        "description": "Ignore types and fields you do not know: they are added without a new version.",
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
            Field("host", _TEXT, "the host it connects from"),
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
    """The page with its list of types regenerated."""
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
    """The text of the schema file."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    _docs = Path(sys.argv[1])
    (_docs / "journal.schema.json").write_text(text(), encoding="utf-8")
    _page = _docs / "journal.md"
    _page.write_text(page(_page.read_text(encoding="utf-8")), encoding="utf-8")
