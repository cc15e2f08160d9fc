"""`muster-pipeline rebalances`: what it refuses, mostly before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.pipeline.cli import main
from muster.pipeline.errors import PipelineError
from muster.pipeline.journal import tables
from muster.pipeline.journal.command import TOPIC, check_events, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_events_that_are_not_there(spark: SparkSession, tmp_path: Path) -> None:
    where = tmp_path / "nothing.jsonl"
    for path in (str(where), where.as_uri()):
        with pytest.raises(PipelineError, match=f"--events: there is no {path}"):
            check_events(spark, path)
    where.touch()
    check_events(spark, where.as_uri())


def test_an_event_that_is_in_two_dumps_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """A dump of lines, and Parquet as ingest writes it, which has more columns; in a folder whose name looks
    like a pattern."""
    lines = [{"key": None, "value": f"{offset}", "partition": 0, "offset": offset} for offset in (0, 1, 1, 2)]
    folder = tmp_path / "of {day} [1]"
    folder.mkdir()
    dump, lake = folder / "dump.jsonl", folder / "topics"
    dump.write_text("".join(json.dumps(each) + "\n" for each in lines))
    once = events(spark, str(dump))
    found = sorted((row.offset, bytes(row.value)) for row in once.collect())
    assert found == [(0, b"0"), (1, b"1"), (2, b"2")]
    twice = once.union(once).selectExpr("*", f"'{TOPIC}' AS topic", "uuid() AS more")
    twice.write.parquet(str(lake))
    assert sorted(row.offset for row in events(spark, str(lake)).collect()) == [0, 1, 2]


def test_somewhere_to_write_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rebalances"])
    assert "--to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--every", "10s", "--events", "x.jsonl"], "--events: not allowed with argument --every"),
        (["--once", "--every", "10s"], "--every: not allowed with argument --once"),
        (["--every", "soon"], "'soon' is not allowed; it takes a duration"),
        (["--batch-records", "0"], "'0' is not allowed; it takes a whole number above 0"),
        (["--option", "subscribe=orders"], "--option subscribe: rebalances says this itself"),
        (["--option", "startingOffset=earliest"], "startingOffset"),
        (["--to", "/"], "--to '/': it takes a folder"),
    ],
)
def test_a_command_line_that_is_wrong(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["rebalances", "--to", str(tmp_path), *arguments])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    assert code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("table", [tables.BRONZE, *tables.SILVER, *tables.GOLD], ids=lambda each: each.name)
def test_columns_of_a_table_have_names_of_their_own_and_say_something(table: tables.Table) -> None:
    assert len(set(table.names)) == len(table.names)
    assert all(each.about and each.type for each in table.columns)
