"""Statements about the configs set on brokers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.coordinator.storage.postgres.statements.clauses import moving
from muster.coordinator.storage.store import BrokerConfigsRow, StoreConflict
from muster.coordinator.storage.texts import configs_text

if TYPE_CHECKING:
    from asyncpg import Connection


async def read(connection: Connection) -> list[BrokerConfigsRow]:
    rows = await connection.fetch("SELECT broker, configs FROM muster.broker_configs WHERE configs <> '{}'")
    return [BrokerConfigsRow(broker, json.loads(configs)) for broker, configs in sorted(map(tuple, rows))]


async def update(connection: Connection, row: BrokerConfigsRow, expected: Mapping[str, str]) -> int | None:
    arguments = [row.broker, configs_text(row.configs), configs_text(expected)]
    if not expected:
        change = "INSERT INTO muster.broker_configs (broker, configs) SELECT $1, $2 WHERE $3::text = '{}' "
        change += "ON CONFLICT DO NOTHING"
    elif row.configs:
        change = "UPDATE muster.broker_configs SET configs = $2 WHERE broker = $1 AND configs = $3"
    else:
        change = "DELETE FROM muster.broker_configs WHERE broker = $1 AND configs = $3 AND $2::text = '{}'"
    revision: int | None = await connection.fetchval(
        f"WITH changed AS ({change} RETURNING broker), {moving('changed')} SELECT revision FROM moved",
        *arguments,
    )
    if revision is None:
        raise StoreConflict(f"updating configs of broker {row.broker!r}: changed in the meantime")
    return revision
