"""Turns events of the group core into journal entries, and those into the rows that are stored.

The core's event classes and their fields are named as in the schema, so nothing here knows a type:
`MemberAdded` is written as `member_added`, with the fields that the class adds to `Event`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from muster.coordinator.base.log import Logger
from muster.coordinator.group.events import Event, MemberIdentity
from muster.coordinator.journal.entries import CUT, Entry, Member
from muster.coordinator.runtime.ring import Journal
from muster.coordinator.storage.store import JournalRow

_log: Final = Logger(part="groups")

_TEXT_MAX: Final = 1_000
"""Characters. Clients choose client ids, member ids and reasons, which may be 32 KB each."""
_TAIL: Final = 60
"""Characters kept from the end of a long text, which tells member ids apart."""
_MEMBERS_MAX: Final = 100
_ELEMENTS_MAX: Final = 1_000
"""Of a list; lists of members are limited to `_MEMBERS_MAX`."""
_BEHIND_MS: Final = 1_000
"""A clock that is behind the date by less keeps time."""
_LISTS_OF_MEMBERS: Final = frozenset({"waiting_for", "dropped"})


class Recorder:
    """Makes the entries of one broker, and keeps them in its journal."""

    def __init__(
        self,
        broker: int,
        journal: Journal,
        *,
        stored: bool = True,
        lag: Callable[[str], Mapping[str, Any]] = lambda group_id: {},
        behind_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`stored`: whether entries are stored as well (the setting group.events). `lag` is called at the end
        of a group's rebalance for the entry's fields `lag_before`, `lag` and `lag_partitions`, as far as
        they are known. `behind_ms` tells how far the clock that entries' times are from is behind the date,
        as after a suspend: rows have the date."""
        self.journal = journal
        self.stored = stored
        self.dropped = 0
        """Number of entries not stored, since there was no room or the store did not answer."""
        self.broker = broker
        self._lag = lag
        self._behind_ms = behind_ms

    def of_events(self, shard: int, events: Sequence[Event]) -> list[Entry]:
        """Turn a shard's events into entries."""
        entries = []
        for event in events:
            try:
                entries.append(self._of_event(shard, event))
            except Exception as error:
                self._not_noted(error)
        return entries

    def _not_noted(self, error: Exception) -> None:
        """An event could not be recorded; its step stands anyway."""
        _log.error("failed to record an event in the journal", broker=self.broker, exc_info=error)
        self.dropped += 1

    def _of_event(self, shard: int, event: Event) -> Entry:
        name, own = _published(type(event))
        data: dict[str, Any] = {}
        for field in own:
            value = getattr(event, field)
            data[field] = value if value.__class__ in _AS_THEY_ARE else _own(field, value, data)
        if name == "rebalance_completed":
            data |= self._lag(event.group_id)
        member, reason = event.member, event.reason
        return Entry(
            name,
            event.at_ms,
            self.broker,
            shard,
            event.group_id,
            event.generation_id,
            event.trigger.value,
            None if member is None else member_of(member),
            None if reason is None else short(reason),
            data,
        )

    def of(
        self,
        type: str,
        at_ms: int,
        shard: int,
        data: Mapping[str, Any],
        *,
        group: str | None = None,
        generation: int | None = None,
        trigger: str | None = None,
        member: Member | None = None,
    ) -> Entry:
        """Make an entry of something that is not an event of the group core."""
        return Entry(type, at_ms, self.broker, shard, group, generation, trigger, member, data=data)

    def show(self, entries: Sequence[Entry]) -> None:
        """The entries are durable, or that was not promised: keep them in memory, and call the listeners."""
        self.journal.add(entries)

    def count_dropped(self, count: int) -> None:
        """Count entries that were not stored."""
        if not self.dropped:
            _log.warning("journal entries dropped", broker=self.broker)
        self.dropped += count

    def rows(self, entries: Iterable[Entry]) -> list[JournalRow]:
        """The rows to store for these entries."""
        rows: list[JournalRow] = []
        if not self.stored:
            return rows
        behind_ms = self._behind_ms()
        if behind_ms < _BEHIND_MS:
            behind_ms = 0
        for entry in entries:
            key = None if entry.group is None else entry.group.encode("utf-8", "replace")
            try:
                rows.append(JournalRow(entry.at_ms + behind_ms, key, entry.to_json()))
            except (TypeError, ValueError) as error:
                self._not_noted(error)
        return rows


def _published(event: type[Event]) -> tuple[str, tuple[str, ...]]:
    """The type's published name, and its fields beside the common ones."""
    found = _known.get(event.__name__)
    if found is None:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()
        own = tuple(field.name for field in fields(event) if field.name not in _COMMON)
        found = _known[event.__name__] = name, own
    return found


_known: Final[dict[str, tuple[str, tuple[str, ...]]]] = {}
_COMMON: Final = frozenset(field.name for field in fields(Event))
_AS_THEY_ARE: Final = frozenset({int, bool, type(None)})


def _own(field: str, value: object, data: dict[str, Any]) -> object:
    """A field's value as JSON; if it had to be cut, its full length is noted in `data`."""
    if isinstance(value, str) and field.endswith("_host"):
        return short(value.lstrip("/"))
    if isinstance(value, Mapping) or (isinstance(value, tuple) and not isinstance(value, MemberIdentity)):
        most = _MEMBERS_MAX if field in _LISTS_OF_MEMBERS else _ELEMENTS_MAX
        if len(value) > most:
            data.setdefault(CUT, {})[field] = len(value)
            value = value[:most] if isinstance(value, tuple) else dict(list(value.items())[:most])
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return short(value)
    if isinstance(value, MemberIdentity):
        return member_of(value).to_json()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {short(key): each for key, each in value.items()}
    return value


def member_of(identity: MemberIdentity) -> Member:
    """The member as the journal writes it."""
    member_id, client_id, host, instance = identity
    return Member(
        short(member_id),
        short(client_id),
        short(host.lstrip("/")),
        None if instance is None else short(instance),
    )


def short(text: str) -> str:
    """Shorten a text that a client chose."""
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - _TAIL - 1]}…{text[-_TAIL:]}"
