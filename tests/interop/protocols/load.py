"""A continuous load of records."""

from __future__ import annotations

import threading
from itertools import count
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError, Message, Producer

from tests.interop.story.checker import Part
from tests.interop.story.processes import StoryFailed

_PAUSE_S: Final = 0.02
_RECORDS_AT_ONCE: Final = 5
_FLUSH_S: Final = 60.0


class Load:
    """Sends about 250 records a second, to each of `topics` in turn; topics may be added at any time.

    Each record is sent once: the producer is idempotent. `stop` returns the acknowledged records.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topics = [topic]
        self._sent = 0
        self._failed: list[str] = []
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 500,  # new partitions get records soon
                "log_level": 0,
            }
        )
        self._sending = threading.Thread(target=self._send, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._sending.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._sending.join()

    def stop(self) -> Part:
        """Raises StoryFailed if a record was not acknowledged."""
        self._over.set()
        self._sending.join()
        left = self._producer.flush(_FLUSH_S)
        if left or self._failed:
            raise StoryFailed(f"{left} records were not acknowledged; {'; '.join(self._failed[:3])}")
        return Part("none", 0, self._sent)

    def _send(self) -> None:
        for turn in count():
            topic = self.topics[turn % len(self.topics)]
            for _ in range(_RECORDS_AT_ONCE):
                number, self._sent = self._sent, self._sent + 1
                self._producer.produce(topic, f"none-{number}", f"k{number}", on_delivery=self._delivered)
            self._producer.poll(0)
            if self._over.wait(_PAUSE_S):
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(f"{message.value()!r}: {error}")
