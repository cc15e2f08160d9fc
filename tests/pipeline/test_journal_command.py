"""`muster-pipeline rebalances`: what it refuses before there is a Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.pipeline.cli import main
from muster.pipeline.journal import tables


def test_events_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "nothing.jsonl"
    assert main(["rebalances", "--to", str(tmp_path), "--events", str(where)]) == 1
    assert f"--events: there is no {where}" in capsys.readouterr().err


def test_somewhere_to_write_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rebalances"])
    assert "--to" in capsys.readouterr().err


@pytest.mark.parametrize("table", [tables.BRONZE, *tables.SILVER, *tables.GOLD], ids=lambda each: each.name)
def test_columns_of_a_table_have_names_of_their_own_and_say_something(table: tables.Table) -> None:
    assert len(set(table.names)) == len(table.names)
    assert all(each.about and each.type for each in table.columns)
