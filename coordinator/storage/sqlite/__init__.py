"""Storage in one sqlite file in a data directory."""

from muster.coordinator.storage.sqlite.store import SqliteStore as SqliteStore
