"""A process that answers other brokers' questions over a database: `python -m tests.postgres.answering URL
NODE`, which prints `ready` once it can be asked, and ends when its standard input does; `answering` runs it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from muster.coordinator.base.clock import LoopClock
from muster.coordinator.peers.post import Post
from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.store import NodeRow
from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.transactions import WriteTxnMarkersRequest
from tests.peers.support import results

TERM_MS = 600_000
_DEADLINE_S = 30


async def echo(api_key: ApiKey, version: int, request: Message) -> Message:
    """Answer with the producer ids of the request's markers."""
    assert isinstance(request, WriteTxnMarkersRequest)
    return results(*(each.producer_id for each in request.markers))


async def peer(store: PostgresStore, node_id: int) -> Post:
    """Register a node that can be asked; the store must be open."""
    incarnation = uuid4()
    await store.register_node(NodeRow(node_id, "127.0.0.1", 9092, None, TERM_MS, incarnation))
    clock = LoopClock(asyncio.get_running_loop())
    post = Post(store, clock, node_id=node_id, incarnation=incarnation, serve=echo)
    post.start()
    return post


@asynccontextmanager
async def answering(url: str, node_id: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the process; yields it once it can be asked."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.postgres.answering", url, str(node_id)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(_DEADLINE_S):
            assert await process.stdout.readline() == b"ready\n"
        yield process
        if process.returncode is None:
            process.stdin.close()
            async with asyncio.timeout(_DEADLINE_S):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def main(url: str, node_id: int) -> None:
    store = PostgresStore(url, name=f"answering-{node_id}")
    await store.open()
    post = await peer(store, node_id)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await post.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
