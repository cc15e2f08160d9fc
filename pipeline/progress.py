"""Reports what a streaming query has done, with one line per batch."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from muster.pipeline.signals import lost_jvm_is_no_news, noted_signals

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_S: Final = 0.5
_IDLE_LINE_S: Final = 60.0
"""How often an idle query says so."""


@dataclass(slots=True)
class Totals:
    """Totals over the batches reported so far."""

    batches: int = 0
    records: int = 0

    def __str__(self) -> str:
        batches = f"{self.batches:,} batch{'es' if self.batches != 1 else ''}"
        return f"{self.records:,} record{'s' if self.records != 1 else ''} in {batches}"


class Teller:
    """Prints a line for each batch with records, and now and then that there are none."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.totals = Totals()
        self._out = sys.stderr if out is None else out
        self._last = ("", -1)
        self._idle_since_s = time.monotonic()

    def look(self, query: StreamingQuery) -> None:
        """Report what is new since the last look."""
        for each in query.recentProgress:
            # A trigger that finds nothing reports under the id of the next batch: the time tells them apart.
            key = (each.timestamp, each.batchId)
            if key > self._last:
                self._last = key
                self.tell(each)

    def tell(self, progress: Any) -> None:
        """Count and report a `StreamingQueryProgress`."""
        if progress.numInputRows:
            self.totals.batches += 1
            self.totals.records += progress.numInputRows
            self._idle_since_s = time.monotonic()
            print(line(progress), file=self._out, flush=True)
        elif time.monotonic() - self._idle_since_s > _IDLE_LINE_S:
            self._idle_since_s = time.monotonic()
            print("no new records", file=self._out, flush=True)


def line(progress: Any) -> str:
    """A line about a batch. `progress` is a `StreamingQueryProgress`."""
    count, took_ms = progress.numInputRows, progress.batchDuration
    text = f"batch {progress.batchId}: {count:,} records in {took_ms / 1000:.1f} s"
    if took_ms:
        text += f" ({count * 1000 / took_ms:,.0f} records/s)"
    behind = lag(progress)
    return text if behind is None else f"{text}, lag {behind:,}"


def lag(progress: Any) -> int | None:
    """How many offsets the batch ended before the ends of its topics; None if a source does not report
    them."""
    total = 0
    for source in progress.sources:
        latest, end = _offsets(source.latestOffset), _offsets(source.endOffset)
        if latest is None or end is None:
            return None
        total += sum(max(0, offset - end.get(where, offset)) for where, offset in latest.items())
    return total


def _offsets(told: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition, from `{"topic": {"0": 123}}` parsed or as text; the other entries of
    the source have names that no topic can have."""
    try:
        found = json.loads(told) if isinstance(told, str) else told
        return {
            (topic, partition): offset
            for topic, offsets in found.items()
            if "#" not in topic
            for partition, offset in offsets.items()
        }
    except (ValueError, AttributeError):
        return None


class Stopped(Exception):
    """A signal ended the query; its checkpoint says where to resume."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def follow(query: StreamingQuery, teller: Teller) -> None:
    """Report batches until the query ends. Raises the query's error if it fails. SIGINT and SIGTERM stop it,
    which raises Stopped. Call this in the main thread."""
    with noted_signals() as came, lost_jvm_is_no_news(since=lambda: bool(came)):
        try:
            while not came and not query.awaitTermination(_LOOK_S):
                teller.look(query)
            query.stop()
            teller.look(query)
        except Exception:
            if not came:
                raise
            # The signal may also have reached other processes and made them fail.
    if came:
        raise Stopped(came[0])
