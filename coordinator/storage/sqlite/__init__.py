"""Storage in one sqlite file of a data directory."""

from muster.coordinator.storage.sqlite.store import SqliteStore as SqliteStore
