"""The server under soak reports what it holds, and ends with its parent process."""

from __future__ import annotations

import time
from pathlib import Path

from tests.soak.lag import LoopLag
from tests.soak.server import Server
from tests.support.facts import turns
from tests.support.wire import Wire


async def test_a_connection_is_seen_while_it_is_there(tmp_path: Path) -> None:
    async with Server(tmp_path, brokers=2) as server:
        assert (await server.facts("collected"))["connections"] == 0
        port = int(server.bootstrap.split(",")[1].rpartition(":")[2])
        async with await Wire.connect(port):
            seen, now = await server.until(lambda now: now["connections"] == 1, within_s=60)
            assert seen, now
            assert now["lag"].keys() == {"median_ms", "p99_ms", "worst_ms"}
        gone, _ = await server.until(lambda now: now["connections"] == now["connection_tasks"] == 0, 60)
        assert gone
        assert await server.stop() == 0
    assert server.complaints() == []


async def test_a_loop_that_is_held_up_is_late() -> None:
    lag = LoopLag()
    lag.start()
    time.sleep(0.2)  # noqa: ASYNC251 - that is what holds it up
    await turns()
    assert lag.take()["worst_ms"] >= 100
    lag.pause()
    assert lag.take() == {"median_ms": 0.0, "p99_ms": 0.0, "worst_ms": 0.0}
