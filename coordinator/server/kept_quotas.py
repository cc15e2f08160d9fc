"""The quotas in the store: a row for each entity, with a key for each of its quotas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.security.quotas import Entity, Quotas, Values, check_value, entity_of
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.protocol.errors import ErrorCode, KafkaError

_log: Final = Logger(part="quotas")

_ROW: Final = "quota:"
"""Prefix of row names, followed by a digest, since an entity's names may be too long for an index."""
_ENTITY: Final = "entity"
"""The entity, in its row: `[["client-id", "etl"], ["user", null]]`. The other keys are quotas."""

ENTITIES_MAX: Final = 10_000
"""Entities with quotas; every broker keeps them in memory."""

Changed = Mapping[str, float | None]
"""New quotas by key; None removes one."""


class KeptQuotas:
    """The quotas as last read. `listeners` are called when they have changed."""

    def __init__(self, rows: ConfigRows) -> None:
        self._rows = rows
        self._read_rows: dict[str, Mapping[str, str]] = {}
        self.in_force = Quotas({})
        self.listeners: list[Callable[[], None]] = []
        rows.listeners.append(self._read)

    def __repr__(self) -> str:
        return f"<KeptQuotas {self.in_force!r}>"

    async def alter(self, entity: Entity, changed: Changed) -> None:
        """Set and remove quotas of an entity. INVALID_REQUEST when `ENTITIES_MAX` is reached; raises
        StoreError."""
        sets = any(value is not None for value in changed.values())
        if sets and not self._may_be_set(entity):
            await self._rows.refresh()  # another broker may have removed some a moment ago
            if not self._may_be_set(entity):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"at most {ENTITIES_MAX} entities have quotas: set some for defaults, or remove others",
                )

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            now = {**before, **{key: repr(value) for key, value in changed.items() if value is not None}}
            left = {key: now[key] for key in now if key != _ENTITY and changed.get(key, 0.0) is not None}
            return {_ENTITY: _text(entity), **left} if left else {}

        await self._rows.change(_row(entity), after)

    def _may_be_set(self, entity: Entity) -> bool:
        return bool(self.in_force.of(entity)) or len(self.in_force) < ENTITIES_MAX

    def _read(self, rows: Rows) -> None:
        found = {name: keys for name, keys in rows.items() if name.startswith(_ROW) and keys}
        if found == self._read_rows:
            return
        self._read_rows = found
        self.in_force = Quotas(dict(each for name, keys in found.items() for each in _decoded(name, keys)))
        for listener in self.listeners:
            listener()


def _text(entity: Entity) -> str:
    return json.dumps(sorted(entity))


def _row(entity: Entity) -> str:
    return _ROW + sha256(_text(entity).encode()).hexdigest()


def _decoded(row: str, keys: Mapping[str, str]) -> list[tuple[Entity, Values]]:
    """The entity of a row, with its quotas; none if the row cannot be read."""
    try:
        entity = entity_of((type, name) for type, name in json.loads(keys[_ENTITY]))
    except (ValueError, KeyError, TypeError, KafkaError):
        _log.error("quotas in the store cannot be read, and are not in force", row=row)
        return []
    values = {}
    for key, text in keys.items():
        if key == _ENTITY:
            continue
        try:
            value = float(text)
            check_value(entity, key, value)
        except (ValueError, KafkaError):
            _log.error("a quota in the store cannot be read, and is not in force", row=row, key=key)
        else:
            values[key] = value
    return [(entity, values)]
