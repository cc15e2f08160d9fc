"""Writes to a single-partition topic, and looks at the result, on either side and without a coordinator:
plain and idempotent batches, transactional ones, and markers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from muster.coordinator.topics.log import ListTimestamp
from muster.protocol.messages.transactions import DescribeProducersRequest, WriteTxnMarkersRequest
from muster.protocol.record_batch import Header, Record, batches, build, records
from tests.kafka.stories import Side
from tests.kafka.test_data_plane import fetching, listing, producing

DAY_MS: Final = 86_400_000

Pair = tuple[bytes, bytes | None]
"""Key and value."""


class PartitionWrites:
    """A topic with one partition. Record timestamps, taken from `now_ms`, close segments. It begins at the
    present, so that markers close none."""

    def __init__(self, side: Side, topic: str, **configs: str) -> None:
        self.side = side
        self.topic = topic
        self.now_ms = time.time_ns() // 1_000_000
        self._sequences: dict[tuple[int, int], int] = {}
        segments = {"segment_ms": str(DAY_MS), "message_timestamp_after_max_ms": str(2**62)}
        side.configured(topic, **{**segments, **configs})

    def put(self, *pairs: Pair, who: int = -1, epoch: int = 0, transactional: bool = False) -> int:
        """Append one batch; returns its offset."""
        fields: dict[str, Any] = {}
        if who >= 0:
            sequence = self._sequences.get((who, epoch), 0)
            self._sequences[who, epoch] = sequence + len(pairs)
            fields = {"producer_id": who, "producer_epoch": epoch, "base_sequence": sequence}
        data = build(
            [Record(index, self.now_ms, key, value) for index, (key, value) in enumerate(pairs)],
            transactional=transactional,
            **fields,
        )
        asked = producing(self.side, (self.topic, 0, data), transactional_id="tx" if transactional else None)
        (part,) = self.side.quietly(asked, 11).responses[0].partition_responses
        assert part.error_code == 0, part
        return int(part.base_offset)

    def begin(self, who: int, *pairs: Pair, epoch: int = 0) -> int:
        """Append a transactional batch; returns its offset."""
        return self.put(*pairs, who=who, epoch=epoch, transactional=True)

    def end(self, who: int, committed: bool, *, epoch: int = 0, version: int = 0) -> None:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(
            name=self.side.name(self.topic), partition_indexes=[0]
        )
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=who,
            producer_epoch=epoch,
            transaction_result=committed,
            topics=[topic],
            coordinator_epoch=0,
            transaction_version=version,
        )
        (answer,) = self.side.quietly(WriteTxnMarkersRequest(markers=[marker]), 2).markers
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def begin_segment(self) -> None:
        """Whatever is put from now on goes into another segment."""
        self.now_ms += 3 * DAY_MS

    def look(self, title: str) -> None:
        """Record the contents batch by batch, and what is reported on aborted transactions and producers."""
        note, whole = self.side.note, f"{self.topic}, {title}"
        first = self.first_offset()
        for number, (header, found) in enumerate(self.read(first)):
            left = [(each.offset, each.key, each.value) for each in found]
            note(f"{whole}: batch {number}", (_told(header), left))
        committed = self.side.quietly(fetching(self.side, self.topic, first, isolation_level=1), 12)
        (part,) = committed.responses[0].partitions
        aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions)
        note(f"{whole}: aborted", aborted)
        note(f"{whole}: offsets", (first, part.last_stable_offset, part.high_watermark))
        asked = DescribeProducersRequest.TopicRequest(name=self.side.name(self.topic), partition_indexes=[0])
        self.side.ask(
            f"{whole}: producers",
            DescribeProducersRequest(topics=[asked]),
            0,
            but="last_timestamp",
            arranged=lambda answer: (
                answer.topics[0].partitions[0].active_producers.sort(key=lambda each: each.producer_id)
            ),
        )

    def first_offset(self) -> int:
        """The log start offset."""
        answer = self.side.quietly(listing(self.side, self.topic, (0, ListTimestamp.EARLIEST)), 6)
        return int(answer.topics[0].partitions[0].offset)

    def read(self, offset: int = 0) -> Iterator[tuple[Header, list[Record]]]:
        """Read batch by batch to the end of the log."""
        while True:
            answer = self.side.quietly(fetching(self.side, self.topic, offset), 12)
            (part,) = answer.responses[0].partitions
            assert part.error_code == 0, part
            data = bytes(part.records or b"")
            if not data:
                return
            for position, header in batches(data):
                offset = header.next_offset
                yield header, list(records(data, position, header))


def _told(header: Header) -> str:
    kinds = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "with a horizon": header.delete_horizon_ms is not None,
    }
    of = f"{header.producer_id}/{header.producer_epoch} from {header.base_sequence}"
    return f"{header.base_offset}-{header.last_offset} of {of}: {[name for name, so in kinds.items() if so]}"
