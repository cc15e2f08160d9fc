"""What compaction leaves of transactions after each pass, batch by batch, as Apache Kafka's cleaner does it
(KIP-98, KIP-534).

A pass is made when a segment has been closed, and its end is told by a record that it must have removed.
Segments are closed by the times of their records: each is some days younger than the one before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from muster.protocol.messages.transactions import DescribeProducersRequest, WriteTxnMarkersRequest
from muster.protocol.record_batch import Header, Record, batches, build, records
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import CHOSEN_BY_STORIES, Side, assert_told_alike
from tests.kafka.test_data_plane import fetching, producing
from tests.kafka.test_transaction_log import UNVERIFIED, unverified
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

CLEANING: Final = {
    **UNVERIFIED,
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
P, Q, R, S, T, U = CHOSEN_BY_STORIES[200:206]
DAY_MS: Final = 86_400_000
TICK: Final = b"tick"


class Log:
    """A compacted topic of one partition on one side."""

    def __init__(self, side: Side, topic: str, **configs: str) -> None:
        self._side = side
        self._topic = topic
        self._now_ms = time.time_ns() // 1_000_000
        self._sequences: dict[tuple[int, int], int] = {}
        side.configured(
            topic,
            **{
                "cleanup_policy": "compact",
                "min_cleanable_dirty_ratio": "0.0",
                "segment_ms": str(DAY_MS),
                "message_timestamp_after_max_ms": str(2**62),
                "delete_retention_ms": "0",
                **configs,
            },
        )
        self._ticked = self._tick()

    def put(
        self, *pairs: tuple[bytes, bytes | None], who: int = -1, epoch: int = 0, transactional: bool = False
    ) -> int:
        """The offset of one batch."""
        fields: dict[str, Any] = {}
        if who >= 0:
            sequence = self._sequences.get((who, epoch), 0)
            self._sequences[who, epoch] = sequence + len(pairs)
            fields = {"producer_id": who, "producer_epoch": epoch, "base_sequence": sequence}
        data = build(
            [Record(index, self._now_ms, key, value) for index, (key, value) in enumerate(pairs)],
            transactional=transactional,
            **fields,
        )
        asked = producing(
            self._side, (self._topic, 0, data), transactional_id="tx" if transactional else None
        )
        (part,) = self._side.quietly(asked, 11).responses[0].partition_responses
        assert part.error_code == 0, part
        return int(part.base_offset)

    def begin(self, who: int, *pairs: tuple[bytes, bytes | None], epoch: int = 0) -> None:
        """A batch of a transaction."""
        self.put(*pairs, who=who, epoch=epoch, transactional=True)

    def end(self, who: int, committed: bool, *, epoch: int = 0, version: int = 0) -> None:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(
            name=self._side.name(self._topic), partition_indexes=[0]
        )
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=who,
            producer_epoch=epoch,
            transaction_result=committed,
            topics=[topic],
            coordinator_epoch=0,
            transaction_version=version,
        )
        (answer,) = self._side.quietly(WriteTxnMarkersRequest(markers=[marker]), 2).markers
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def _tick(self) -> int:
        """The offset of a record that a pass removes."""
        return self.put((TICK, b"1"), (TICK, b"2"))

    def close_segment(self) -> None:
        """Begin another, some days later."""
        self._now_ms += 3 * DAY_MS
        self._tick_to_go, self._ticked = self._ticked, self._tick()

    def await_pass(self) -> None:
        """Until what was closed is clean."""
        gone = self._tick_to_go

        def is_gone() -> bool:
            return all(record.offset != gone for _, found in self._read() for record in found)

        until(is_gone, f"the record at {gone} of {self._topic} to be compacted away")

    def clean(self) -> None:
        self.close_segment()
        self.await_pass()

    def look(self, title: str) -> None:
        """Keep what there is, batch by batch; what is told of aborted transactions, and of producers."""
        note, whole = self._side.note, f"{self._topic}, {title}"
        for number, (header, found) in enumerate(self._read()):
            left = [(each.offset, each.key, each.value) for each in found]
            note(f"{whole}: batch {number}", (_told(header), left))
        committed = self._side.quietly(fetching(self._side, self._topic, isolation_level=1), 12)
        (part,) = committed.responses[0].partitions
        aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions)
        note(f"{whole}: aborted", aborted)
        note(f"{whole}: last stable offset", (part.last_stable_offset, part.high_watermark))
        asked = DescribeProducersRequest.TopicRequest(
            name=self._side.name(self._topic), partition_indexes=[0]
        )
        self._side.ask(
            f"{whole}: producers",
            DescribeProducersRequest(topics=[asked]),
            0,
            but="last_timestamp",
            arranged=lambda answer: (
                answer.topics[0].partitions[0].active_producers.sort(key=lambda each: each.producer_id)
            ),
        )

    def _read(self) -> Iterator[tuple[Header, list[Record]]]:
        offset = 0
        while True:
            answer = self._side.quietly(fetching(self._side, self._topic, offset), 12)
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


def compaction(side: Side) -> None:
    log = Log(side, "t")
    log.begin(P, (b"a", b"p"), (b"b", b"p"))
    log.end(P, True)
    log.begin(R, (b"a", b"r"))
    log.begin(S, (b"c", b"s"))
    log.begin(R, (b"b", b"r"))
    log.end(R, False)
    log.end(S, True)
    log.begin(T, (b"d", b"t"))
    log.end(T, True, epoch=1, version=2)
    log.begin(U, (b"a", b"u"))
    log.end(U, False, epoch=1, version=2)
    log.end(Q, True)
    log.look("as it was written")
    log.clean()
    log.look("aborted records are gone")
    for key in (b"a", b"b", b"c", b"d"):
        log.put((key, b"later"), who=Q)
    log.clean()
    log.look("committed ones are overwritten")
    for number in range(2):
        log.clean()
        log.look(f"nothing new, {number}")
    log.begin(P, (b"e", b"p"))
    log.end(P, False)
    log.begin(R, (b"e", b"r"))
    log.end(R, True)
    log.begin(T, (b"e", b"t"), epoch=1)
    log.end(T, True, epoch=2, version=2)
    log.begin(U, (b"f", b"u"), epoch=1)
    log.end(U, False, epoch=2, version=2)
    for number in range(4):
        log.clean()
        log.look(f"their producers went on, {number}")


def horizons(side: Side) -> None:
    log = Log(side, "kept", delete_retention_ms=str(7 * DAY_MS))
    log.begin(T, (b"a", b"t"), (b"b", None))
    log.end(T, True, epoch=1, version=2)
    log.begin(U, (b"a", b"u"))
    log.end(U, False, epoch=1, version=2)
    log.begin(U, (b"c", b"u"), epoch=1)
    log.begin(T, (b"a", b"t"), (b"b", b"t"), epoch=1)
    log.end(T, True, epoch=2, version=2)
    log.end(U, True, epoch=2, version=2)
    for number in range(4):
        log.clean()
        log.look(f"{number}")


def open_transactions(side: Side) -> None:
    bell, log = Log(side, "bell"), Log(side, "open")
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.begin(P, (b"b", b"p"))
    log.end(P, False)
    log.clean()
    log.begin(R, (b"a", b"r"))
    log.put((b"c", b"2"))
    log.begin(P, (b"b", b"p"))
    log.end(P, True)
    log.close_segment()
    for _ in range(3):
        bell.clean()
    log.look("open")
    log.end(R, False)
    log.await_pass()
    log.look("aborted, the marker in the last segment")
    log.clean()
    log.look("aborted")
    log.begin(S, (b"a", b"s"))
    log.close_segment()
    log.put((b"a", b"4"))
    log.begin(S, (b"b", b"s"))
    log.end(S, True)
    log.clean()
    log.look("over two segments")


@pytest.mark.parametrize("story", [compaction, horizons, open_transactions])
def test_apache_kafka_compacts_transactions_as_muster_does(
    story: Any, kafka_of_configs: KafkaOfConfigs
) -> None:
    with unverified(log_cleaner_backoff_ms=20) as broker:
        assert_told_alike(story, kafka_of_configs(CLEANING), broker)
