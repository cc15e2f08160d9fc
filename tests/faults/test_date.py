"""A machine whose date is set ahead."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from muster.client import Admin, Consumer
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.record_batch import Record, build
from tests.faults.cluster.lab import faketime_library
from tests.support.served import Served
from tests.support.wire import Wire

DEADLINE_S: Final = 60


AHEAD_MS: Final = 7_200_000


def machine(ahead: Path) -> list[str]:
    """What a command runs under, so that its date is ahead by the seconds in that file."""
    ahead.write_text("+0\n")
    return [
        "env",
        f"LD_PRELOAD={faketime_library()}",
        f"FAKETIME_TIMESTAMP_FILE={ahead}",
        "FAKETIME_CACHE_DURATION=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]


async def test_records_are_taken_after_the_date_was_set_ahead(tmp_path: Path) -> None:
    """As by NTP, or in a suspend, in which the monotonic clock stands still."""
    ahead = tmp_path / "ahead"
    under = machine(ahead)
    served = Served(None, "--ephemeral")
    served.start(under=under)
    try:
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)

            async def produce() -> int:
                batch = build([Record(0, time.time_ns() // 1_000_000 + AHEAD_MS, None, b"later")])
                part = ProduceRequest.PartitionProduceData(index=0, records=batch)
                topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
                request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
                answer = await wire.call(request, 9)
                code: int = answer.responses[0].partition_responses[0].error_code
                return code

            assert await produce() == ErrorCode.INVALID_TIMESTAMP
            ahead.write_text(f"+{AHEAD_MS // 1_000}\n")
            deadline_s = time.monotonic() + DEADLINE_S
            while code := await produce():
                assert time.monotonic() < deadline_s, ErrorCode(code)
    finally:
        served.kill()


async def test_what_happens_to_groups_after_the_date_was_set_ahead_happens_now(tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    under = machine(ahead)
    served = Served(None, "--ephemeral")
    served.start(under=under)

    def ask(*words: str) -> str:
        command = [*under, sys.executable, "-m", "muster", "groups", *words]
        command += ["--bootstrap-server", served.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        async with Admin(served.bootstrap) as admin:
            await admin.create_topic("t", 1)
        ahead.write_text(f"+{AHEAD_MS // 1_000}\n")
        async with asyncio.timeout(DEADLINE_S):
            number = 0
            while True:  # the broker reads the file once a second
                number += 1
                async with Consumer(served.bootstrap, group_id=f"g{number}", topics="t") as consumer:
                    while not consumer.assignment:
                        await consumer.get(timeout=1)
                told = await asyncio.to_thread(ask, "why", f"g{number}", "--output", "json")
                if json.loads(told)["started_ms"] > time.time_ns() // 1_000_000 + AHEAD_MS // 2:
                    break
        now_ms = time.time_ns() // 1_000_000 + AHEAD_MS
        told = await asyncio.to_thread(ask, "why", f"g{number}", "--since", "10m", "--output", "json")
        assert 0 <= now_ms - json.loads(told)["started_ms"] < DEADLINE_S * 1_000
        lines = await asyncio.to_thread(ask, "timeline", f"g{number}", "--since", "10m", "--output", "json")
        assert all(
            0 <= now_ms - json.loads(line)["at_ms"] < DEADLINE_S * 1_000 for line in lines.splitlines()
        )
    finally:
        served.kill()
