"""Questions between processes over one database, when the process asked answers, is paused, or is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from muster.coordinator.peers.post import Post
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from tests.peers.support import MARKERS, markers, results
from tests.postgres.answering import answering, peer
from tests.postgres.test_store import DEADLINE_S, opened
from tests.support.postgres import Postgres

PATIENCE_MS = 30_000


async def ask(post: Post, node_id: int, *producer_ids: int, timeout_ms: int = PATIENCE_MS) -> Message:
    return await post.ask(node_id, MARKERS, markers(*producer_ids), timeout_ms=timeout_ms)


async def test_processes_ask_each_other(store: str) -> None:
    async with opened(store) as here, answering(store, 2), answering(store, 3):
        post = await peer(here, 1)
        asking = (ask(post, 2 + n % 2, n) for n in range(200))
        assert await asyncio.gather(*asking) == [results(n) for n in range(200)]
        await post.close()


async def test_a_process_that_stands_still_answers_when_it_goes_on(store: str) -> None:
    async with opened(store) as here, answering(store, 2) as other:
        post = await peer(here, 1)
        os.kill(other.pid, signal.SIGSTOP)
        try:
            with pytest.raises(KafkaError) as refusal:
                await ask(post, 2, 7, timeout_ms=500)
            assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
            waiting = asyncio.ensure_future(ask(post, 2, 8))
        finally:
            os.kill(other.pid, signal.SIGCONT)
        assert await waiting == results(8)
        await post.close()


async def test_a_process_that_was_killed_leaves_nothing_that_stays(postgres: Postgres, store: str) -> None:
    async with opened(store) as here:
        post = await peer(here, 1)
        async with answering(store, 2) as other:
            other.kill()
            await other.wait()
        with pytest.raises(KafkaError) as refusal:
            await ask(post, 2, 7, timeout_ms=200)
        assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
        (node,) = (each for each in await here.nodes() if each.node_id == 2)
        await here.remove_node(2, node.incarnation)  # as if its registration had expired
        with pytest.raises(KafkaError) as refusal:
            await ask(post, 2, 8)
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        async with answering(store, 2):
            assert await ask(post, 2, 9) == results(9)
        count = "SELECT count(*) FROM muster.letters"
        database = store.rpartition("/")[2]
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.to_thread(postgres.execute, count, database=database) != "0":
                pass
        await post.close()


async def test_questions_outlive_a_restart_of_the_server(postgres: Postgres, store: str) -> None:
    async with opened(store) as here, answering(store, 2):
        post = await peer(here, 1)
        assert await ask(post, 2, 7) == results(7)
        await asyncio.to_thread(postgres.restart)
        codes: set[ErrorCode] = set()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    assert await ask(post, 2, 8, timeout_ms=1_000) == results(8)
                    break
                except KafkaError as error:
                    codes.add(error.code)
        assert codes <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
        await post.close()
