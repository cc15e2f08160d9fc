"""What was written in the database, by whom and under which epoch, recorded by triggers that a drill adds to
muster's tables: the brokers know nothing of it.

A node is identified by its connections' application_name, `muster-N`. What a transaction has recorded is
committed or rolled back with it; PostgreSQL reports when it was committed (track_commit_timestamp).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final
from uuid import UUID

import asyncpg

from tests.faults.cluster.history import Claim, OffsetWrite, Owners, Write

_NODE: Final = re.compile(r"muster-(\d+)\b")
_OF_GROUPS: Final = "group "
"""The name prefix of group shard leases: transactions' shards have keys of their own."""
_OFFSET_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2

# The epoch is read by a separate statement, so that it is the last committed one, not the writer's idea of
# it.
_INSTALL: Final = """
CREATE SCHEMA audit;
CREATE TABLE audit.began AS SELECT lease_id, kind || ' ' || number AS lease, epoch FROM muster.leases;
CREATE TABLE audit.claims (id bigserial, xid xid8, node text, lease_id integer, epoch bigint);
CREATE TABLE audit.writes (id bigserial, xid xid8, node text, lease_id integer, epoch bigint, place text);
CREATE TABLE audit.logs (id bigserial, xid xid8, node text, topic_id uuid, partition integer);
CREATE TABLE audit.records (id bigserial, xid xid8, lease_id integer, key bytea, value bytea);

CREATE FUNCTION audit.claimed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO audit.claims (xid, node, lease_id, epoch)
        VALUES (pg_current_xact_id(), current_setting('application_name'), NEW.lease_id, NEW.epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_claimed AFTER UPDATE OF epoch ON muster.leases FOR EACH ROW
    WHEN (OLD.epoch IS DISTINCT FROM NEW.epoch) EXECUTE FUNCTION audit.claimed();

CREATE FUNCTION audit.wrote() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO audit.writes (xid, node, lease_id, epoch, place)
        SELECT pg_current_xact_id(), current_setting('application_name'), l.lease_id, l.epoch, 'records'
        FROM muster.leases AS l WHERE l.lease_id IN (SELECT lease_id FROM touched);
    IF TG_OP = 'DELETE' THEN
        INSERT INTO audit.records (xid, lease_id, key)
            SELECT pg_current_xact_id(), lease_id, key FROM touched;
    ELSE
        INSERT INTO audit.records (xid, lease_id, key, value)
            SELECT pg_current_xact_id(), lease_id, key, value FROM touched;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_inserted AFTER INSERT ON muster.records REFERENCING NEW TABLE AS touched
    FOR EACH STATEMENT EXECUTE FUNCTION audit.wrote();
CREATE TRIGGER audit_updated AFTER UPDATE ON muster.records REFERENCING NEW TABLE AS touched
    FOR EACH STATEMENT EXECUTE FUNCTION audit.wrote();
CREATE TRIGGER audit_deleted AFTER DELETE ON muster.records REFERENCING OLD TABLE AS touched
    FOR EACH STATEMENT EXECUTE FUNCTION audit.wrote();

CREATE FUNCTION audit.moved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO audit.logs (xid, node, topic_id, partition)
        VALUES (pg_current_xact_id(), current_setting('application_name'), NEW.topic_id, NEW.partition);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_moved AFTER UPDATE ON muster.logs FOR EACH ROW
    WHEN (OLD.version IS DISTINCT FROM NEW.version) EXECUTE FUNCTION audit.moved();
"""

_HORIZON: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
"""Every transaction below this number has ended."""
_AT: Final = "extract(epoch FROM pg_xact_commit_timestamp(xid::xid))::float8"
_BETWEEN: Final = "xid >= $1::text::xid8 AND xid < $2::text::xid8 ORDER BY id"


@dataclass
class Noted:
    """Everything recorded up to some moment, in the order written."""

    epochs: dict[str, int] = field(default_factory=dict)
    """The epochs before the first claim."""
    claims: list[Claim] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    generations: list[Owners] = field(default_factory=list)
    offsets: list[OffsetWrite] = field(default_factory=list)

    def generation(self, group: str) -> int:
        """The last generation written; 0 if there is none."""
        return next((each.generation for each in reversed(self.generations) if each.group == group), 0)


class Audit:
    """Reads on in what the triggers record. `lease_of` names the lease that holds a partition's log."""

    def __init__(self, lease_of: Callable[[UUID, int], str]) -> None:
        self.noted = Noted()
        self._lease_of = lease_of
        self._read_to = 0

    async def install(self, connection: asyncpg.Connection) -> None:
        """Run as superuser, in a database with muster's schema that no broker uses yet."""
        await connection.execute(_INSTALL)
        rows = await connection.fetch("SELECT lease, epoch FROM audit.began")
        self.noted.epochs = {row["lease"]: row["epoch"] for row in rows}

    async def read(self, connection: asyncpg.Connection) -> Noted:
        """Read on: everything committed before the oldest transaction that is still open."""
        horizon = await connection.fetchval(_HORIZON)
        span = str(self._read_to), str(horizon)
        leases = {row["lease_id"]: row["lease"] for row in await connection.fetch("TABLE audit.began")}
        noted = self.noted
        for row in await connection.fetch(f"SELECT *, {_AT} AS at FROM audit.claims WHERE {_BETWEEN}", *span):
            node = _node(row["node"])
            noted.claims.append(Claim(leases[row["lease_id"]], row["epoch"], node, row["at"]))
        for row in await connection.fetch(f"SELECT *, {_AT} AS at FROM audit.writes WHERE {_BETWEEN}", *span):
            node = _node(row["node"])
            lease = leases[row["lease_id"]]
            noted.writes.append(Write(lease, row["epoch"], node, row["at"], row["place"]))
        for row in await connection.fetch(f"SELECT *, {_AT} AS at FROM audit.logs WHERE {_BETWEEN}", *span):
            lease = self._lease_of(row["topic_id"], row["partition"])
            noted.writes.append(Write(lease, None, _node(row["node"]), row["at"], "logs"))
        for row in await connection.fetch(f"SELECT * FROM audit.records WHERE {_BETWEEN}", *span):
            if not leases[row["lease_id"]].startswith(_OF_GROUPS):
                continue
            match record(row["key"], row["value"]):
                case Owners() as owners:
                    noted.generations.append(owners)
                case OffsetWrite() as written:
                    noted.offsets.append(written)
        self._read_to = horizon
        return noted


def _node(application: str) -> int:
    """The node's number; 0 for any other client."""
    found = _NODE.match(application)
    return int(found[1]) if found else 0


# --- Kafka's records of __consumer_offsets, decoded from their description alone ----------------------------


def record(key: bytes, value: bytes | None) -> Owners | OffsetWrite | None:
    """The content of a record; None for a group's tombstone, and for anything but groups and offsets."""
    reading = _Reading(key)
    kind = reading.int16()
    if kind in _OFFSET_KEYS:
        group, topic, partition = reading.text(), reading.text(), reading.int32()
        if value is None:
            return OffsetWrite(group, topic, partition, None)
        content = _Reading(value)
        content.int16()
        return OffsetWrite(group, topic, partition, content.int64())
    if kind != _GROUP_KEY or value is None:
        return None
    return _owners(reading.text(), _Reading(value))


def _owners(group: str, reading: _Reading) -> Owners:
    """GroupMetadataValue, versions 2 and 3."""
    version = reading.int16()
    if version not in (2, 3):
        raise ValueError(f"group {group}: metadata of version {version}")
    reading.text()  # protocol type
    generation = reading.int32()
    reading.text(), reading.text(), reading.int64()  # protocol, leader, time
    owned = []
    for _ in range(reading.int32()):
        member = reading.text()
        instance = reading.text() if version >= 3 else ""
        reading.text(), reading.text(), reading.int32(), reading.int32()  # client, host, timeouts
        reading.blob()  # subscription
        owned.append((instance or member, list(_assigned(reading.blob()))))
    return Owners.of(group, generation, owned)


def _assigned(assignment: bytes) -> Iterator[tuple[str, int]]:
    """ConsumerProtocolAssignment; empty input yields nothing."""
    if not assignment:
        return
    reading = _Reading(assignment)
    reading.int16()
    for _ in range(reading.int32()):
        topic = reading.text()
        for _ in range(reading.int32()):
            yield topic, reading.int32()


class _Reading:
    """Kafka's types before the flexible versions."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def text(self) -> str:
        """The string; "" for null."""
        return self._bytes(self.int16()).decode()

    def blob(self) -> bytes:
        return self._bytes(self.int32())

    def _number(self, kind: Struct) -> Any:
        (number,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return number

    def _bytes(self, size: int) -> bytes:
        begin = self._at
        self._at += max(size, 0)
        return self._data[begin : self._at]


_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
