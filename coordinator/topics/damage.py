"""Reports damage that reads find in one partition's log to the broker's log: each place once, since consumers
ask for it again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.topics.log import PartitionLog
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import crc_matches, peek

_PLACES_MAX: Final = 1_000
"""Places reported per partition."""

_log = Logger(part="topics")


class Damage:
    """The places reported so far. Used on the loop and in executors; at worst a place is reported twice."""

    __slots__ = ("_named", "_partition")

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._named: set[object] = set()

    def refused(self, refusal: KafkaError, offset: int | None = None) -> None:
        """A read was refused; `offset`: where it was to begin."""
        if refusal.code is ErrorCode.CORRUPT_MESSAGE and self._is_new(refusal.why):
            asked = {} if offset is None else {"offset": offset}
            _log.error("log is damaged", partition=self._partition, **asked, why=refusal.why)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Wrap a read of the log, which may be refused."""
        try:
            yield
        except KafkaError as refusal:
            self.refused(refusal)
            raise

    def look(self, log: PartitionLog, found: bytes | memoryview) -> None:
        """Check the checksum of the first batch that a fetch found, if any.

        A damaged batch is handed out unchanged, as Kafka does, and the consumer rejects it; it then asks for
        this batch again, which makes it the first one. Checking all of them would slow down every fetch.
        """
        if not found:
            return
        header = peek(found)
        if crc_matches(found, 0, header) or not self._is_new(header.base_offset):
            return
        _log.error(
            "log is damaged",
            partition=self._partition,
            offset=header.base_offset,
            last_offset=header.last_offset,
            why=f"{log.path}: the checksum does not match at {log.segments.place_of(header.base_offset)}",
        )

    def _is_new(self, place: object) -> bool:
        if place in self._named or len(self._named) >= _PLACES_MAX:
            return False
        self._named.add(place)
        return True
