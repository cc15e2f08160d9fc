"""A machine whose date is set ahead."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.record_batch import Record, build
from tests.faults.cluster.lab import faketime_library
from tests.support.served import Served
from tests.support.wire import Wire

DEADLINE_S: Final = 60


async def test_records_are_taken_after_the_date_was_set_ahead(tmp_path: Path) -> None:
    """As by NTP, or in a suspend, in which the monotonic clock stands still."""
    ahead_ms, ahead = 7_200_000, tmp_path / "ahead"
    ahead.write_text("+0\n")
    under = [
        "env",
        f"LD_PRELOAD={faketime_library()}",
        f"FAKETIME_TIMESTAMP_FILE={ahead}",
        "FAKETIME_CACHE_DURATION=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]
    served = Served(None, "--ephemeral")
    served.start(under=under)
    try:
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)

            async def produce() -> int:
                batch = build([Record(0, time.time_ns() // 1_000_000 + ahead_ms, None, b"later")])
                part = ProduceRequest.PartitionProduceData(index=0, records=batch)
                topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
                request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
                answer = await wire.call(request, 9)
                code: int = answer.responses[0].partition_responses[0].error_code
                return code

            assert await produce() == ErrorCode.INVALID_TIMESTAMP
            ahead.write_text(f"+{ahead_ms // 1_000}\n")
            deadline_s = time.monotonic() + DEADLINE_S
            while code := await produce():
                assert time.monotonic() < deadline_s, ErrorCode(code)
    finally:
        served.kill()
