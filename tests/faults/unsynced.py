"""`muster serve` that lies about its disk: nothing is synced. Whatever watches the syncs must notice."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from muster.coordinator import cli
from muster.coordinator.storage.files import DiskFile, DiskFolder
from muster.coordinator.storage.sqlite import store as sqlite


def main() -> int:
    connect = sqlite.connect

    def unsynced(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    sqlite.connect = unsynced
    for kind in (DiskFile, DiskFolder):
        kind.sync = lambda self: None  # type: ignore[method-assign]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
