"""A data directory after a load and a kill, and its clients, who know what must be there: for tests that harm
its disk."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.messages.metadata import MetadataRequest
from tests.faults.clients import TOPICS, Clients
from tests.faults.load import REPLY_S, SMALL_TOPIC, Pipe
from tests.support.served import Served

_ANSWERS = 1_500
_SEGMENTS = 4
"""Segments of the small topic's first partition: the first, the last, and those between."""


class Lived:
    """Its broker, `served`, is down at first."""

    def __init__(self, data: Path, log: Path, clients: Clients, topic_ids: dict[str, str]) -> None:
        self.served = Served(data, log=log)
        self.clients = clients
        self._log = log
        self._topic_ids = topic_ids

    @classmethod
    async def grown(cls, path: Path) -> Lived:
        """A new one in `path`, killed under load, checked, and killed again."""
        lived = cls(path / "data", path / "log", Clients(random.Random(7)), {})
        try:
            lived.served.start()
            await lived.clients.begin(lived.served.port)
            async with await Pipe.connect(lived.served.port) as wire:
                asked = MetadataRequest(topics=[MetadataRequest.Topic(name=name) for name in TOPICS])
                told = await wire.call(asked, 12)
            lived._topic_ids = {topic.name: str(topic.topic_id) for topic in told.topics}
            await lived.load(lambda: len(lived.segments(SMALL_TOPIC, 0)) >= _SEGMENTS)
            lived.served.start()
            await lived.settle()
        finally:
            lived.end()
        return lived

    def copied(self, data: Path, log: Path) -> Lived:
        """A copy with the same past."""
        shutil.copytree(self.served.data, data)
        return Lived(data, log, copy.deepcopy(self.clients), self._topic_ids)

    async def load(self, grown: Callable[[], bool] = lambda: True) -> None:
        """Run a load until a kill comes, after a number of answers and once `grown` is true."""
        answers, pid = 0, self.served.process.pid

        def answered() -> None:
            nonlocal answers
            answers += 1
            if answers >= _ANSWERS and grown():
                os.kill(pid, signal.SIGKILL)

        await self.clients.load(self.served.port, answered)
        self.served.kill()

    async def settle(self) -> None:
        """Check that everything is as its clients were told."""
        await self.clients.settle(self.served.port)

    async def stop_in_order(self) -> None:
        """Start, check, and shut down cleanly: nothing is left to recover."""
        self.served.start()
        await self.settle()
        assert self.served.stop() == 0

    def folder(self, topic: str, partition: int) -> Path:
        """The folder with a partition's files."""
        return self.served.data / "topics" / self._topic_ids[topic] / str(partition)

    def segments(self, topic: str, partition: int) -> list[Path]:
        """The log files, in order."""
        return sorted(self.folder(topic, partition).glob("*.log"))

    def end(self) -> None:
        self.served.__exit__(None, None, None)

    # --- its log --------------------------------------------------------------------------------------------

    def refusal(self) -> str:
        """Its log output when it does not start."""
        before = len(self._log.read_text()) if self._log.exists() else 0
        with pytest.raises(RuntimeError, match="muster serve ended with 1:"):
            self.served.start()
        return self._log.read_text()[before:].strip()

    async def says(self, text: str) -> None:
        """Wait until the text is in the log."""
        async with asyncio.timeout(REPLY_S):
            while text not in self._log.read_text():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0)

    async def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event, once there are any."""
        await self.says(event)
        return self.lines(event)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines already there: lines are written a moment after the event."""
        lines = (line for line in self._log.read_text().splitlines() if line.startswith("{"))
        return [line for line in map(json.loads, lines) if line["event"] == event]
