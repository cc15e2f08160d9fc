"""How Spark runs the long statements that make the tables: compiled or interpreted.

Compiling takes seconds per statement, however little there is to do, so it pays only for many entries. All
tables of 1,200 entries took 14 to 17 s compiled and 11 s interpreted on two idle cores, 30 s and 11 s on busy
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW: Final = 100_000
"""Up to this many entries, interpreting is faster than compiling."""

_INTERPRETED: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def suited(spark: SparkSession, entries: int) -> Iterator[None]:
    """Within the block, the session plans statements for about this many entries."""
    if entries > FEW:
        yield
        return
    before = {name: spark.conf.get(name, None) for name in _INTERPRETED}
    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)
