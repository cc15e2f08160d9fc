"""Which members were last heard of over which connection.

The end of a connection changes nothing in a group, since a client may come back on another one within its
session. It is told as an event: followed by the end of the session it means that the process has died.
"""

from __future__ import annotations

from muster.coordinator.group.classic_member import ClassicMember


class Connections:
    """Open connections that members were heard on."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[int, dict[ClassicMember, str]] = {}

    def __repr__(self) -> str:
        return f"<Connections {len(self._members)}>"

    def heard(self, group_id: str, member: ClassicMember, connection_id: int) -> None:
        if member.connection_id != connection_id:
            self.forget(member)
            member.connection_id = connection_id
            self._members.setdefault(connection_id, {})[member] = group_id

    def forget(self, member: ClassicMember) -> None:
        """The member is gone, or heard on another connection."""
        if member.connection_id is not None:
            members = self._members[member.connection_id]
            del members[member]
            if not members:
                del self._members[member.connection_id]
            member.connection_id = None

    def __contains__(self, connection_id: object) -> bool:
        return connection_id in self._members

    def closed(self, connection_id: int) -> list[tuple[str, ClassicMember]]:
        """The members last heard over a connection that has closed, with their group's id."""
        members = self._members.pop(connection_id, {})
        for member in members:
            member.connection_id = None
        return [(group_id, member) for member, group_id in members.items()]
