"""A process that appends as fast as it can and prints what was acknowledged.

`python -m tests.storage.storm DIR`; each line is `<key> <value>`, written after the store said WRITTEN. It
runs until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from itertools import count
from pathlib import Path

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome

CALLERS = 32
LEASE = Lease(LeaseKind.GROUP, 7)


async def storm(directory: Path) -> None:
    store = SqliteStore(directory)
    await store.open()
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None

    async def caller(number: int) -> None:
        rng = random.Random(number)
        # Half of the callers keep rewriting a key of their own; half keep writing new keys.
        for turn in count():
            key = b"caller-%d" % number if number % 2 else b"caller-%d-%d" % (number, turn)
            padding = b"x" * rng.randrange(0, 3000)
            outcome = (await store.append([Append(LEASE, grant.epoch, [(key, b"%d " % turn + padding)])]))[0]
            assert outcome is Outcome.WRITTEN
            # A small write to a pipe is atomic, and reaches the reader even if we die right after it.
            os.write(1, b"%s %d\n" % (key, turn))

    await asyncio.gather(*map(caller, range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(storm(Path(sys.argv[1])))
