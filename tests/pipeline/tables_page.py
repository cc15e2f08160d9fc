"""docs/spark-tables.md, generated from the tables: `python -m tests.pipeline.tables_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.pipeline.journal.tables import BRONZE, GOLD, SILVER, Column, Table

PAGE: Final = Path(__file__).parents[2] / "docs" / "spark-tables.md"

_HEAD: Final = """\
# The tables of `muster-pipeline rebalances`

<!-- written by: python -m tests.pipeline.tables_page -->

Parquet files in the folder of `--to`. Silver records what happened; gold answers questions; bronze is the
source of both ([spark.md](spark.md) has the command). Points in time (`at_ms`, `started_ms`, ...) are
milliseconds since 1970; other `_ms` are durations. NULL means "not known" or "not yet", never zero.
`rebalance_id` and `group` join silver and gold.
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *(_told(each) for each in (*GOLD, *SILVER, BRONZE))])


def _told(table: Table) -> str:
    rows = "\n".join(_row(each) for each in table.columns)
    head = "| column | type | what it says |\n|---|---|---|"
    return f"## {table.layer}/{table.name}\n\n{table.about}\n\n{head}\n{rows}\n"


def _row(column: Column) -> str:
    about = column.about.replace("|", "\\|")
    return f"| `{column.name}` | `{column.type}` | {about} |"


if __name__ == "__main__":
    PAGE.write_text(page())
