"""What compaction leaves of transactions after each pass, batch by batch, compared with Apache Kafka's
cleaner (KIP-98, KIP-534). A pass runs once a segment has been closed; it is over when a record that it must
remove is gone."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.partition_writes import DAY_MS, PartitionWrites
from tests.kafka.stories import CHOSEN_BY_STORIES, Side, assert_told_alike
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


class Log(PartitionWrites):
    """The log of a compacted topic."""

    def __init__(self, side: Side, topic: str, **configs: str) -> None:
        compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0"}
        super().__init__(side, topic, **{**compacted, "delete_retention_ms": "0", **configs})
        self._tick_to_go = -1
        self._ticked = self._tick()

    def _tick(self) -> int:
        """The offset of a record that a pass removes."""
        return self.put((b"tick", b"1"), (b"tick", b"2"))

    def close_segment(self) -> None:
        self.begin_segment()
        self._tick_to_go, self._ticked = self._ticked, self._tick()

    def await_pass(self) -> None:
        """Wait until the closed segments are clean."""
        gone = self._tick_to_go

        def is_gone() -> bool:
            return all(record.offset != gone for _, found in self.read() for record in found)

        until(is_gone, f"the record at {gone} of {self.topic} to be compacted away")

    def clean(self) -> None:
        self.close_segment()
        self.await_pass()


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
