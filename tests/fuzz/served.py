"""A broker in a process of its own that reports what it holds: `python -m tests.fuzz.served DIRECTORY`.

It prints its port, then a line of facts for each line it reads, and stops at the end of its input. It may
allocate at most MEMORY_BYTES more than it has at the start. Warnings and errors go to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Final

from muster.coordinator.base import log
from muster.coordinator.base.system import raise_open_files_limit
from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from tests.fuzz.run import limit_memory
from tests.support.held import held

MEMORY_BYTES: Final = 1 << 30
SESSION_MS_MAX: Final = 30_000
"""The longest a vanished member may keep others waiting."""


async def serve(directory: str) -> None:
    brokers = Brokers(
        Settings(
            port=0,
            data=directory,
            auto_create_topics_enable=False,
            group_initial_rebalance_delay_ms=0,
            group_min_session_timeout_ms=1,
            group_max_session_timeout_ms=SESSION_MS_MAX,
            request_receive_timeout_ms=20_000,
            lease_term_ms=60_000,  # so that a broker short of CPU time does not lose its groups
        )
    )
    await brokers.start()
    try:
        (broker,) = brokers.brokers
        await broker.runtime.loaded()
        limit_memory(MEMORY_BYTES)
        print(broker.port, flush=True)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        await asyncio.get_running_loop().run_in_executor(None, log.warm_up)
        while await reader.readline():
            gc.collect()
            print(json.dumps(held([broker])), flush=True)
        transport.close()
    finally:
        await brokers.stop()


if __name__ == "__main__":
    log.configure("warning", "json")
    raise_open_files_limit()
    asyncio.run(serve(sys.argv[1]))
