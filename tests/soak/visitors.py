"""Visitors outside the lanes: connections that say nothing or break off, and the metrics scraper."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from contextlib import suppress
from typing import Final

from muster.protocol.header import encode_request
from muster.protocol.messages.metadata import MetadataRequest

_STAYING: Final = 20
_SCRAPE_S: Final = 10.0
_ANSWER_S: Final = 600.0
_PATHS: Final = ("/metrics", "/api/groups", "/api/events", "/", "/readyz")


async def strangers(bootstrap: str, seed: int, counts: Counter[str]) -> None:
    """Open connections and drop them, some in the middle of a request, until cancelled."""
    rng = random.Random(f"{seed} strangers")
    ports = [int(each.rpartition(":")[2]) for each in bootstrap.split(",")]
    frame = encode_request(3, 8, 1, "stranger", MetadataRequest(topics=None))
    staying: deque[asyncio.StreamWriter] = deque()
    try:
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", rng.choice(ports))
            staying.append(writer)
            writer.write((frame * rng.randrange(3))[: rng.randrange(2 * len(frame))])
            counts["strangers"] += 1
            if len(staying) > _STAYING:
                staying.popleft().transport.abort()
            await asyncio.sleep(rng.uniform(0, 1))
    finally:
        for writer in staying:
            writer.transport.abort()


async def scraper(page: tuple[str, int], seed: int, counts: Counter[str]) -> None:
    """Fetch the metrics and the pages, until cancelled. Fails unless the answer is 200."""
    rng = random.Random(f"{seed} scraper")
    while True:
        path = rng.choice(_PATHS)
        reader, writer = await asyncio.open_connection(*page)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {page[0]}\r\nConnection: close\r\n\r\n".encode())
            async with asyncio.timeout(_ANSWER_S):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 "), (path, answer[:200])
            counts["pages"] += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await asyncio.sleep(rng.uniform(0, 2 * _SCRAPE_S))
