"""What a request is about: the groups, topics, members and transactional ids that it names. Rules for faults
match on them.

A topic is named by its name or, in newer versions, by its id; a request for all topics (a null list) names
every one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from muster.protocol.types import ZERO_UUID

Name = str | UUID


_MEMBER_IDS: Final = ("member_id", "group_instance_id", "instance_id")


class Listed(NamedTuple):
    """A list in a request, and what each of its elements names (None: nothing of this kind)."""

    attribute: str
    name_of: Callable[[Any], Name | None]


def by(attribute: str) -> Callable[[Any], Name | None]:
    """Names an element by the attribute, or by topic id if it has one."""

    def name_of(element: Any) -> Name | None:
        topic_id = getattr(element, "topic_id", ZERO_UUID)
        name: str | None = getattr(element, attribute)
        return name if topic_id == ZERO_UUID else topic_id

    return name_of


def itself(element: str) -> Name:
    """For a list of plain names."""
    return element


TOPICS: Final = (Listed("topics", by("name")),)
TOPICS_BY_TOPIC: Final = (Listed("topics", by("topic")),)


class Names(NamedTuple):
    """Where the requests of an API name what they are about."""

    group: str = ""
    """The field that names one group, unless it is empty."""
    groups: Listed | None = None
    topics: tuple[Listed, ...] = ()
    topics_in_groups: bool = False
    """Each group lists its own topics."""
    null_is_none: bool = False
    """A null list names nothing, instead of all topics."""
    members: bool = False
    """Members are named, in `member_id` and `group_instance_id`, or `instance_id`."""
    about_groups: Callable[[Any], bool] = lambda request: True
    """Whether the values in the group fields are groups."""
    transactional_id: str = ""
    """The field that names one transactional id, unless it is empty or null."""
    transactional_ids: Listed | None = None
    about_transactions: Callable[[Any], bool] = lambda request: True
    """Whether the values in the transactional id fields are transactional ids."""
    empty_is_all_until: int = -1
    """The last version without a null list; up to it, an empty list asks for all topics."""

    @property
    def names_groups(self) -> bool:
        return bool(self.group) or self.groups is not None

    @property
    def names_transactions(self) -> bool:
        return bool(self.transactional_id) or self.transactional_ids is not None

    def groups_of(self, request: Any) -> list[str]:
        """The groups named, in the request's order."""
        return _named(request, self.group, self.groups) if self.about_groups(request) else []

    def transactional_ids_of(self, request: Any) -> list[str]:
        """The transactional ids named, in the request's order."""
        if not self.about_transactions(request):
            return []
        return _named(request, self.transactional_id, self.transactional_ids)

    def topics_of(self, version: int, request: Any) -> list[Name] | None:
        """The topics named, in the request's order; None: all topics."""
        named: list[Name] = []
        for holder in (request, *(request.groups if self.topics_in_groups else ())):
            for listed in self.topics:
                elements = getattr(holder, listed.attribute, ())
                if elements is None and self.null_is_none:
                    continue
                if elements is None or (version <= self.empty_is_all_until and not elements):
                    return None
                named += (name for name in map(listed.name_of, elements) if name is not None)
        return named

    def members_of(self, request: Any) -> list[str]:
        """The member ids and group instance ids named."""
        if not self.members:
            return []
        holders = (request, *getattr(request, "members", ()))
        found = (getattr(holder, each, None) for holder in holders for each in _MEMBER_IDS)
        return [each for each in found if each]


def _named(request: Any, field: str, listed: Listed | None) -> list[str]:
    """The value of the field, unless it is empty, then the names in the list."""
    one = getattr(request, field) if field else None
    named: list[Any] = [one] if one else []
    if listed is not None:
        named += map(listed.name_of, getattr(request, listed.attribute))
    return named
