"""Configs set on brokers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from muster.coordinator.storage.sqlite.statements.meta import move_revision
from muster.coordinator.storage.store import BrokerConfigsRow, StoreConflict
from muster.coordinator.storage.texts import configs_text


def read(connection: sqlite3.Connection) -> list[BrokerConfigsRow]:
    rows = connection.execute("SELECT broker, configs FROM broker_configs ORDER BY broker")
    return [BrokerConfigsRow(broker, json.loads(configs)) for broker, configs in rows]


def update(connection: sqlite3.Connection, row: BrokerConfigsRow, expected: Mapping[str, str]) -> None:
    found = connection.execute(
        "SELECT configs FROM broker_configs WHERE broker = ?", (row.broker,)
    ).fetchone()
    if (json.loads(found[0]) if found else {}) != expected:
        raise StoreConflict(f"updating configs of broker {row.broker!r}: changed in the meantime")
    connection.execute("DELETE FROM broker_configs WHERE broker = ?", (row.broker,))
    if row.configs:
        connection.execute(
            "INSERT INTO broker_configs (broker, configs) VALUES (?, ?)",
            (row.broker, configs_text(row.configs)),
        )
    move_revision(connection)
