"""Storage in a PostgreSQL database that several brokers share. asyncpg is imported only when it is used."""

from muster.coordinator.storage.postgres.connect import server_of
from muster.coordinator.storage.postgres.schema import Migration, migrate
from muster.coordinator.storage.postgres.store import PostgresStore

__all__ = ["Migration", "PostgresStore", "migrate", "server_of"]
