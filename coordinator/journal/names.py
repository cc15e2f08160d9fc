"""What the members of a group are called, wherever people read of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from muster.coordinator.journal.entries import Member

_ID_TAIL: Final = 6
_SHORT_ID_MAX: Final = 12
_MADE_ID: Final = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)
"""A member id as coordinators make it: the client id, a dash, a UUID."""


class Names:
    """The short names of one group's members. Every view of the group takes them from here: commands, the
    page, log lines and tests.

    A static member goes by its group.instance.id. A dynamic member goes by its client id, as web-2, while it
    is the only one in the group with that client id; otherwise by client id and the end of its member id, as
    web-2/3f9a1c. A member that has gone keeps the plain name unless another one has, or had, the same client
    id. So a plain name always means the one member that has it now.
    """

    def __init__(self, members: Iterable[Member], present: Collection[str] | None = None) -> None:
        """`members` are all that are known, `present` the ids of those in the group now; None: all of
        them."""
        self._members = {each.id: each for each in members}
        self._present = frozenset(self._members if present is None else present)
        for each in self._present - self._members.keys():
            self._members[each] = _unknown(each)
        self._known: dict[str, set[str]] = {}
        self._there: dict[str, set[str]] = {}
        for member in self._members.values():
            # One instance is one member, under whatever ids it came.
            one = member.id if member.instance is None else ""
            self._known.setdefault(_plain(member), set()).add(one)
            if member.id in self._present:
                self._there.setdefault(_plain(member), set()).add(one)

    def of_id(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def short(self, member: Member | str | None) -> str:
        """As web-2, or web-2/3f9a1c where several go by that client id."""
        if not member:
            return "nobody"
        if isinstance(member, str):
            member = self._members.get(member) or _unknown(member)
        plain = _plain(member)
        if member.instance is not None or plain == member.id:
            return plain
        there = self._there if member.id in self._present else self._known
        is_alone = there.get(plain, {member.id}) == {member.id}
        return plain if plain and is_alone else f"{plain or 'member'}/{member.id[-_ID_TAIL:]}"

    def long(self, member: Member | None) -> str:
        """As web-2 (host 10.0.0.7), or web-2 (host 10.0.0.7, instance web-2)."""
        if member is None:
            return "a member"
        instance = "" if member.instance is None else f", instance {member.instance}"
        return f"{self.short(member)} (host {member.host or '-'}{instance})"

    def by_id(self, ids: Iterable[str]) -> dict[str, str]:
        """Member id -> short name."""
        return {each: self.short(each) for each in dict.fromkeys(ids)}

    def meant(self, name: str) -> list[Member]:
        """The members that somebody may mean: by member id, or else by short name, or else by instance id or
        client id, or else by client id and the end of the member id. Where the group has members, only those
        in it."""
        there = sorted(self._members.values(), key=lambda each: each.id)
        there = [each for each in there if each.id in self._present] or there
        for found in (
            [each for each in there if each.id == name],
            [each for each in there if self.short(each) == name],
            [each for each in there if name in (each.instance, each.client_id)],
            [each for each in there if f"{_plain(each) or 'member'}/{each.id[-_ID_TAIL:]}" == name],
        ):
            if found:
                return found
        return []


def _plain(member: Member) -> str:
    if member.instance is not None:
        return member.instance
    return member.client_id or (member.id if len(member.id) <= _SHORT_ID_MAX else "")


def _unknown(member_id: str) -> Member:
    """A member of which only the id is known; that begins with its client id."""
    made = _MADE_ID.fullmatch(member_id)
    return Member(member_id, member_id if made is None else made[1], "")
