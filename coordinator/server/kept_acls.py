"""The ACLs in the store: a row for each resource pattern, with a key for each access to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.security.acls import Access, Acl, Filter, Pattern
from muster.coordinator.security.decisions import Acls
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, PatternType, Permission, ResourceType

_log: Final = Logger(part="authorizer")

_ROW: Final = "acl:"
"""Names of rows: `acl:TOPIC:LITERAL:orders`."""

ACLS_MAX: Final = 20_000
"""In total; every broker keeps them in memory."""
REMOVED_MAX: Final = 10_000
"""ACLs removed by one request, as in Kafka."""

_IN_A_TURN: Final = 1_000
"""ACLs that are looked at before other requests get the loop."""

_Read = tuple[Mapping[str, str], Pattern | None, frozenset[Access]]
"""A row's keys, and what they say; None: the row cannot be read."""


class KeptAcls:
    """The ACLs as last read. `listeners` are called when they have changed."""

    def __init__(self, rows: ConfigRows, *, default: bool) -> None:
        """`default`: whether everyone may do everything with a resource that has no ACLs."""
        self._rows = rows
        self._default = default
        self._read_rows: dict[str, _Read] = {}
        self.in_force: Acls | None = None
        """None until they have been read."""
        self.listeners: list[Callable[[], None]] = []
        rows.listeners.append(self._read)

    def __repr__(self) -> str:
        return f"<KeptAcls {self.in_force!r}>"

    async def create(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; existing ones stay. INVALID_REQUEST above `ACLS_MAX`; raises StoreError."""
        if self._too_many(acls):
            await self._rows.refresh()  # another broker may have removed some a moment ago
            if count := self._too_many(acls):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"there would be {count} ACLs, and at most {ACLS_MAX} are kept: use prefixed ones, or "
                    "remove some",
                )
        by_row: dict[str, dict[str, str]] = {}
        for pattern, access in acls:
            by_row.setdefault(_row(pattern), {})[_key(access)] = ""
        await self._rows.change_all({row: partial(_with, added) for row, added in by_row.items()})

    async def remove(self, filters: Collection[Filter]) -> list[list[Acl]]:
        """Remove what each filter selects; returns the ACLs that each selected. INVALID_REQUEST if they are
        more than `REMOVED_MAX`, and then none is removed; raises StoreError."""
        await self._rows.refresh()  # another broker may have added one a moment ago
        selected = await self._selected(filters)
        by_row: dict[str, set[str]] = {}
        for of_filter in selected:
            for pattern, access in of_filter:
                by_row.setdefault(_row(pattern), set()).add(_key(access))
        await self._rows.change_all({row: partial(_without, removed) for row, removed in by_row.items()})
        return selected

    async def _selected(self, filters: Collection[Filter]) -> list[list[Acl]]:
        """The ACLs in force that each filter selects; INVALID_REQUEST as soon as they are too many."""
        acls = self.in_force or Acls({})
        selected: list[list[Acl]] = []
        count, left = 0, _IN_A_TURN
        for by in filters:
            if left <= 0:
                left = _IN_A_TURN
                await asyncio.sleep(0)
            left -= acls.looked_at(by)
            of_filter = [
                Acl(pattern, each) for pattern, accesses in acls.selected(by).items() for each in accesses
            ]
            count += len(of_filter)
            if count > REMOVED_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"one request removes at most {REMOVED_MAX} ACLs: narrow the filters",
                )
            selected.append(of_filter)
        return selected

    def _too_many(self, acls: Collection[Acl]) -> int:
        """How many there would be with these; 0 if they may be added."""
        there, added = set(self.in_force or ()), set(acls)
        count = len(there | added)
        return count if count > ACLS_MAX and not added <= there else 0

    def _read(self, rows: Rows) -> None:
        found: dict[str, _Read] = {}
        for name, keys in rows.items():
            if name.startswith(_ROW):
                known = self._read_rows.get(name)
                found[name] = known if known is not None and known[0] == keys else _decoded(name, keys)
        if self.in_force is not None and found == self._read_rows:
            return
        self._read_rows = found
        acls = {pattern: accesses for _, pattern, accesses in found.values() if pattern is not None}
        self.in_force = Acls(acls, self._default)
        for listener in self.listeners:
            listener()


def _row(pattern: Pattern) -> str:
    return f"{_ROW}{pattern.type.name}:{pattern.pattern.name}:{pattern.name}"


def _key(access: Access) -> str:
    return json.dumps([access.principal, access.host, access.operation.name, access.permission.name])


def _decoded(row: str, keys: Mapping[str, str]) -> _Read:
    try:
        type, kind, name = row.removeprefix(_ROW).split(":", 2)
        pattern = Pattern(ResourceType[type], PatternType[kind], name)
    except (ValueError, KeyError):  # perhaps of a newer muster
        _log.error("the ACLs of a row in the store cannot be read, and are not in force", row=row)
        return keys, None, frozenset()
    accesses = set()
    for key in keys:
        try:
            principal, host, operation, permission = json.loads(key)
            accesses.add(Access(principal, host, Operation[operation], Permission[permission]))
        except (ValueError, KeyError, TypeError):
            _log.error("an ACL in the store cannot be read, and is not in force", row=row, key=key)
    return keys, pattern, frozenset(accesses)


def _with(added: Mapping[str, str], before: Mapping[str, str]) -> Mapping[str, str]:
    return {**before, **added}


def _without(removed: Collection[str], before: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in before.items() if key not in removed}
