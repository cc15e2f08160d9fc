"""What members are called: by the rules of docs/why.md, as `muster groups` and muster's page call them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.report.words import known

if TYPE_CHECKING:
    import pandas as pd

_ID_TAIL: Final = 6
_SHORT_ID_MAX: Final = 12
_MADE_ID: Final = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)


class Known(NamedTuple):
    """A member."""

    id: str
    client_id: str
    instance: str | None
    is_there: bool
    """It is in the group at the end of the journal."""


class Names:
    """The short names of the members of all groups."""

    def __init__(self, members: Mapping[str, Iterable[Known]]) -> None:
        """By group."""
        self._members: dict[tuple[str, str], Known] = {}
        self._known: dict[tuple[str, str], set[str]] = {}
        self._there: dict[tuple[str, str], set[str]] = {}
        for group, some in members.items():
            for each in some:
                before = self._members.get((group, each.id), each)
                self._members[group, each.id] = each._replace(is_there=each.is_there or before.is_there)
        for (group, id), each in self._members.items():
            one = (
                id if each.instance is None else ""
            )  # one instance is one member, under whatever ids it came
            self._known.setdefault((group, _plain(each)), set()).add(one)
            if each.is_there:
                self._there.setdefault((group, _plain(each)), set()).add(one)

    def short(self, group: object, member_id: object) -> str | None:
        """As web-2, or rdkafka/005299 where several go by that client id; None for nobody."""
        if not known(member_id):
            return None
        group, id = str(group), str(member_id)
        member = self._members.get((group, id)) or Known(id, _client_id(id), None, False)
        plain = _plain(member)
        if member.instance is not None or plain == id:
            return plain
        others = (self._there if member.is_there else self._known).get((group, plain), {id})
        return plain if plain and others == {id} else f"{plain or 'member'}/{id[-_ID_TAIL:]}"


def names_of(sessions: pd.DataFrame, owned: pd.DataFrame) -> Names:
    """From silver.member_sessions and silver.ownership."""
    found: dict[str, list[Known]] = {}
    for frame, end in ((sessions, "ended_ms"), (owned, "until_ms")):
        columns = [
            frame[each].astype("object") for each in ("group", "member_id", "client_id", "instance", end)
        ]
        for group, id, client_id, instance, ended in zip(*columns, strict=True):
            if known(id):
                static = _text(instance)
                found.setdefault(str(group), []).append(
                    Known(str(id), _text(client_id) or "", static, not known(ended))
                )
    return Names(found)


def _text(value: Any) -> str | None:
    return str(value) if known(value) else None


def _plain(member: Known) -> str:
    if member.instance is not None:
        return member.instance
    return member.client_id or (member.id if len(member.id) <= _SHORT_ID_MAX else "")


def _client_id(member_id: str) -> str:
    """What an id of which nothing else is known begins with."""
    made = _MADE_ID.fullmatch(member_id)
    return member_id if made is None else made[1]
