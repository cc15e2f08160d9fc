"""Short names of members, the same as in `muster groups` and on muster's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.names import Names
from muster.pipeline.report.words import known

if TYPE_CHECKING:
    import pandas as pd


class MemberNames:
    """The short names of the members of all groups."""

    def __init__(self, sessions: pd.DataFrame, owned: pd.DataFrame) -> None:
        """From silver.member_sessions and silver.ownership."""
        members: dict[str, dict[str, Member]] = {}
        present: dict[str, set[str]] = {}
        for frame, end in ((sessions, "ended_ms"), (owned, "until_ms")):
            columns = [
                frame[each].astype("object") for each in ("group", "member_id", "client_id", "instance", end)
            ]
            for group, id, client_id, instance, ended in zip(*columns, strict=True):
                if known(id):
                    member = Member(str(id), _text(client_id) or "", "", _text(instance))
                    members.setdefault(str(group), {}).setdefault(member.id, member)
                    if not known(ended):
                        present.setdefault(str(group), set()).add(member.id)
        self._groups = {
            group: Names(some.values(), present.get(group, ())) for group, some in members.items()
        }

    def short(self, group: object, member_id: object) -> str | None:
        """A name such as web-2, or rdkafka/005299 if several share that client id; None for nobody."""
        if not known(member_id):
            return None
        return (self._groups.get(str(group)) or _OF_NOBODY).short(str(member_id))


_OF_NOBODY: Final = Names(())


def _text(value: Any) -> str | None:
    return str(value) if known(value) else None
