"""Which members were last heard from over which connection.

The end of a connection changes nothing in a group, since a client may come back on another one within its
session. It is reported as an event: if the session expires next, the process has died; after a LeaveGroup, it
was shut down. So removed members are remembered as long as their connection is open.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.heard import Heard

_FORMER_MAX: Final = 16
"""Maximum number of former members remembered per connection; the oldest are dropped first."""


class Former(NamedTuple):
    """A member that was removed while its connection was open."""

    group_id: str
    identity: MemberIdentity
    heard_ms: int
    removed_ms: int


class Connections:
    """Open connections that members were heard on."""

    __slots__ = ("_former", "_members")

    def __init__(self) -> None:
        self._members: dict[int, dict[Heard, str]] = {}
        self._former: dict[int, list[Former]] = {}

    def __repr__(self) -> str:
        return f"<Connections {len(self._members)} of members, {len(self._former)} of former ones>"

    def heard(self, group_id: str, member: Heard, connection_id: int) -> None:
        """The member was heard on a connection other than before."""
        self.forget(member)
        member.connection_id = connection_id
        member.disconnected_at_ms = None
        self._members.setdefault(connection_id, {})[member] = group_id
        former = self._former.get(connection_id)
        if former is not None:
            # The client is back.
            self._remember(connection_id, [each for each in former if each.group_id != group_id])

    def forget(self, member: Heard) -> None:
        """The member is gone, or heard on another connection."""
        if member.connection_id is not None:
            members = self._members[member.connection_id]
            del members[member]
            if not members:
                del self._members[member.connection_id]

    def removed(self, group_id: str, member: Heard, now_ms: int) -> None:
        """The member is gone; its connection may end later."""
        connection_id = member.connection_id
        self.forget(member)
        if connection_id is not None:
            former = Former(group_id, member.identity, member.heard_ms, now_ms)
            self._remember(connection_id, [*self._former.get(connection_id, ()), former][-_FORMER_MAX:])

    def _remember(self, connection_id: int, former: list[Former]) -> None:
        if former:
            self._former[connection_id] = former
        else:
            del self._former[connection_id]

    def former_member_id(self, group_id: str, connection_id: int) -> str | None:
        """The id of the last member of this group that was removed while it had this connection, and has had
        no successor on it."""
        for former in reversed(self._former.get(connection_id, ())):
            if former.group_id == group_id:
                return former.identity.member_id
        return None

    def __contains__(self, connection_id: object) -> bool:
        return connection_id in self._members or connection_id in self._former

    def closed(self, connection_id: int) -> tuple[list[tuple[str, Heard]], list[Former]]:
        """A connection has closed. Returns the members last heard on it, with their groups' ids, and those
        that had been removed before."""
        members = self._members.pop(connection_id, {})
        for member in members:
            member.connection_id = None
        present = [(group_id, member) for member, group_id in members.items()]
        return present, self._former.pop(connection_id, [])
