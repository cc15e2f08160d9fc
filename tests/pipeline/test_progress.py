"""What is reported about batches; test_ingest.py follows a real query."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from muster.pipeline.progress import Stopped, Teller, follow, lag, line


def source(end: Any, latest: Any) -> SimpleNamespace:
    return SimpleNamespace(endOffset=end, latestOffset=latest)


def progress(
    batch: int = 3, records: int = 25_000, took_ms: int = 500, at: str = "2026-01-31T12:00:00Z", *sources: Any
) -> Any:
    return SimpleNamespace(
        batchId=batch, numInputRows=records, batchDuration=took_ms, timestamp=at, sources=list(sources)
    )


def test_a_line_for_a_batch() -> None:
    told = source('{"orders": {"0": 100, "1": 50}}', '{"orders": {"0": 1334, "1": 50}}')
    expected = "batch 3: 25,000 records in 0.5 s (50,000 records/s), lag 1,234"
    assert line(progress(3, 25_000, 500, "", told)) == expected
    assert line(progress(3, 0, 0, "", source(None, None))) == "batch 3: 0 records in 0.0 s"


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([], 0),
        ([source({"a": {"0": 5}}, {"a": {"0": 9}, "b": {"0": 7}})], 4),
        ([source({"a": {"0": 5}}, {"a": {"0": 3}})], 0),
        ([source('{"a": {"0": 5}}', None)], None),
        ([source("12", "14")], None),
        ([source("not json", '{"a": {"0": 5}}')], None),
        ([source('{"a": {"0": 5}, "a#id": {"0": 1}}', '{"a": {"0": 6}, "a#id": {"0": 3}}')], 1),
    ],
)
def test_lag(sources: list[Any], expected: int | None) -> None:
    assert lag(progress(3, 1, 1, "", *sources)) == expected


def test_each_batch_is_told_once() -> None:
    """A trigger without records reports under the id of the next batch."""
    out = io.StringIO()
    teller = Teller(out)
    first = progress(0, 10, 100, "2026-01-31T12:00:00.000Z")
    nothing = progress(1, 0, 5, "2026-01-31T12:00:01.000Z")
    second = progress(1, 20, 100, "2026-01-31T12:00:02.000Z")
    for seen in ([], [first], [first, nothing], [first, nothing, second], [first, nothing, second]):
        teller.look(SimpleNamespace(recentProgress=seen))  # type: ignore[arg-type]
    assert [each.split(":")[0] for each in out.getvalue().splitlines()] == ["batch 0", "batch 1"]
    assert str(teller.totals) == "30 records in 2 batches"


def test_who_has_nothing_to_do_says_so_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    out = io.StringIO()
    teller = Teller(out)
    for now_s[0] in (1_001.0, 1_059.0, 1_061.0, 1_100.0, 1_122.0):
        teller.tell(progress(0, 0))
    assert out.getvalue() == "no new records\n" * 2


class _Query:
    """A query that runs forever; `meanwhile` is called while it is awaited."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.recentProgress = [progress(0, 10)]
        self.stopped = 0

    def awaitTermination(self, _: float) -> bool:
        self._meanwhile()
        return self.stopped > 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_stops_the_query(number: int, fails: bool) -> None:
    """It does not interrupt a JVM call, and a failure that it causes is not reported as one."""

    def meanwhile() -> None:
        signal.raise_signal(number)
        if fails:
            raise RuntimeError("a worker was interrupted")

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    query, out = _Query(meanwhile), io.StringIO()
    with pytest.raises(Stopped) as stopped:
        follow(query, Teller(out))  # type: ignore[arg-type]
    assert stopped.value.number == number
    assert query.stopped == (0 if fails else 1)
    assert fails or out.getvalue().startswith("batch 0: 10 records")
    assert {each: signal.getsignal(each) for each in before} == before


def test_a_query_that_fails() -> None:
    def meanwhile() -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        follow(_Query(meanwhile), Teller(io.StringIO()))  # type: ignore[arg-type]
