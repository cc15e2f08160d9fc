"""Kafka's own console consumer, with its formatters for internal topics."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from subprocess import DEVNULL, PIPE
from typing import Any, Final

from tests.support.java import java
from tests.support.kafka_artifacts import tools_classpath

DEADLINE_S: Final = 120
_TOOLS: Final = "org.apache.kafka.tools.consumer"


async def printed(bootstrap: str, topic: str, formatter: str, ends: Callable[[Any], bool]) -> list[Any]:
    """What the console consumer prints for a topic, as a group member, up to the record for which `ends` is
    true. It prints no separator between records."""
    asked = ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    asked += ["--group", f"watches-{uuid.uuid4()}", "--formatter", f"{_TOOLS}.{formatter}"]
    process = await asyncio.create_subprocess_exec(
        *java(tools_classpath(), log="error"), f"{_TOOLS}.ConsoleConsumer", *asked, stdin=DEVNULL, stdout=PIPE
    )
    found: list[Any] = []
    begun = ""
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            while not found or not ends(found[-1]):
                more = await process.stdout.read(1 << 16)
                assert more, "the console consumer ended before it had read all"
                begun += more.decode()
                with suppress(json.JSONDecodeError):  # until the rest arrives
                    while not found or not ends(found[-1]):
                        each, end = json.JSONDecoder().raw_decode(begun)
                        found.append(each)
                        begun = begun[end:].lstrip()
    finally:
        process.kill()
        await process.communicate()
    return found
