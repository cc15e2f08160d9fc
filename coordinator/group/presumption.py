"""Members that count as alive while a test moves the clock.

A stock client's clock does not move with the broker's: it cannot send the heartbeats that are due meanwhile.
So whoever is about to move the clock says up to when, and members that were heartbeating are presumed alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.coordinator.group.group import Group
from muster.coordinator.group.heard import Heard


class Presumption:
    """The members that count as alive until a future moment."""

    def __init__(
        self,
        groups: Iterable[Group],
        until_ms: int,
        now_ms: int,
        stalled: frozenset[tuple[str, str]],
        clients: frozenset[str],
    ) -> None:
        self.until_ms = until_ms
        self._clients = clients
        self._excepted: set[tuple[str, str]] = set(stalled)
        groups = list(groups)
        for group in groups:
            for member in group.members.values():
                if member.is_late(now_ms - member.session_from_ms):
                    self._excepted.add((group.group_id, member.member_id))
        for group, member in self._alive(groups):
            if not member.waits:  # else it has no session until it is answered
                self._keep(group, member)

    def __repr__(self) -> str:
        return f"<Presumption until {self.until_ms} but for {len(self._excepted)}>"

    def _holds(self, group: Group, member: Heard) -> bool:
        return (
            (member.connection_id is not None or self._will_come_back(member))
            and not member.is_new
            and (group.group_id, member.member_id) not in self._excepted
        )

    def _will_come_back(self, member: Heard) -> bool:
        """Whether it has not been heard from since the shard was loaded, but its client is connected
        elsewhere."""
        unheard = member.connection_id is None and member.disconnected_at_ms is None
        return unheard and member.client_id in self._clients

    def _alive(self, groups: Iterable[Group]) -> Iterator[tuple[Group, Heard]]:
        for group in groups:
            for member in group.members.values():
                if self._holds(group, member):
                    yield group, member

    def _keep(self, group: Group, member: Heard) -> None:
        group.keep_session(member, self.until_ms)

    def keeps(self, group: Group, member_id: str) -> bool:
        """Whether a member whose session has expired stays all the same; if so, it gets another session."""
        member = group.members.get(member_id)
        if member is None or member.waits or not self._holds(group, member):
            return False
        self._keep(group, member)
        return True

    def disconnected(self, group: Group, member: Heard, now_ms: int) -> None:
        """The member's connection has closed: as far as anybody can know, it is silent from now on."""
        if not member.is_new and (group.group_id, member.member_id) not in self._excepted:
            group.restart_session(member, now_ms)

    def end(self, groups: Iterable[Group], now_ms: int) -> None:
        """The moment has come: every member that counted as alive counts as heard from just now."""
        for group, member in self._alive(groups):
            member.heard_ms = now_ms
            if not member.waits:
                # The pause was not the client's doing.
                member.heartbeats_from_ms += now_ms - member.session_from_ms
                group.restart_session(member, now_ms)
