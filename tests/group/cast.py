"""The actors of a scenario, and the names that stand for values that differ from run to run."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field

_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass
class Actor:
    """A client and what it remembers."""

    name: str
    member_id: str = ""
    instance_id: str | None = None
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    assigned: list[str] = field(default_factory=list)
    """The partitions of its last assignment, as `orders-0`."""
    lives: int = 0
    """How often it has generated a member id for itself."""

    def forget(self) -> None:
        """Become a new process of the same client: only the settings stay."""
        self.member_id = ""
        self.generation_id = -1
        self.protocol_type = self.protocol_name = None
        self.assigned = []


class Cast:
    """The actors and the symbols of member ids. `suffix` is what a replay appends to group and topic
    names."""

    def __init__(self, names: list[str], suffix: str = "") -> None:
        self.actors = {name: Actor(name) for name in names}
        self.suffix = suffix
        self.topic_names: dict[uuid.UUID, str] = {}
        """Real names of the topics that steps have referred to by id."""
        self._ids: dict[str, str] = {}  # symbol -> id
        self._symbols: dict[str, str] = {}  # id -> symbol

    def rank(self, actor: str) -> int:
        return list(self.actors).index(actor)

    def know_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Remember a topic under its real name, so that responses may refer to it by id."""
        self.topic_names[topic_id] = name

    # --- names of groups and topics -------------------------------------------------------------------------

    def real(self, name: str) -> str:
        return name + self.suffix

    def told(self, name: str) -> str:
        return name.removesuffix(self.suffix) if self.suffix else name

    def topic(self, name: str, topic_id: uuid.UUID) -> str:
        """The scenario's name of a topic that a response gives by name or, in OffsetCommit and OffsetFetch
        v10, by id."""
        return self.told(name or self.topic_names[topic_id])

    def ours(self, name: str) -> bool:
        return name.endswith(self.suffix)

    # --- member ids -----------------------------------------------------------------------------------------

    def bind(self, member_id: str, owner: str | None = None) -> None:
        """Give an id a symbol named after its owner, if it has none."""
        if member_id == "" or member_id in self._symbols:
            return
        owner = owner or self._guess(member_id)
        number = 1
        symbol = f"${owner}"
        while symbol in self._ids:
            number += 1
            symbol = f"${owner}{number}"
        self._ids[symbol] = member_id
        self._symbols[member_id] = symbol

    def knows(self, member_id: str) -> bool:
        """Whether the id has a symbol."""
        return member_id in self._symbols

    def own_id(self, actor: Actor) -> str:
        """The id of a member that generates its own (KIP-1082): the same in every replay, since the order in
        which assignors process members depends on it."""
        if actor.member_id == "":
            actor.lives += 1
            actor.member_id = f"{actor.name}-{actor.lives}"
            self.bind(actor.member_id, actor.name)
        return actor.member_id

    def text(self, text: str) -> str:
        """A coordinator's message, with symbols for member ids and scenario names for real ones."""
        for member_id in sorted(self._symbols, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(member_id)}(?![\w-])", self._symbols[member_id], text)
        return text.replace(self.suffix, "") if self.suffix else text

    def _guess(self, member_id: str) -> str:
        """The owner's name: an id begins with the client id or the instance id."""
        prefix = _UUID.sub("", member_id)
        for actor in self.actors.values():
            if prefix in (actor.name, actor.instance_id):
                return actor.name
        return prefix

    def member_id(self, word: str) -> str:
        """The id that a word in a step stands for."""
        if word == "none":
            return ""
        if word.startswith("$"):
            return self._ids[word]
        return word

    def symbol(self, member_id: str) -> str:
        """The symbol of an id; an id that the coordinator did not generate stands for itself."""
        if member_id == "":
            return "none"
        if member_id not in self._symbols and _UUID.search(member_id) is None:
            return member_id
        self.bind(member_id)
        return self._symbols[member_id]

    def member(self, member_id: str, instance_id: str | None) -> str:
        """`$alice`, or `$alice/instance` for a static member."""
        symbol = self.symbol(member_id)
        return symbol if instance_id is None else f"{symbol}/{instance_id}"
