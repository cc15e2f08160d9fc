"""What is told of batches; a real query is followed in test_ingest.py."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from muster.pipeline.progress import Teller, lag, line


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
    """A trigger without records reports under the id of the batch to come."""
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
