"""Tables that a stream appends to: a folder for each batch; folders are merged when there are many.

    TABLE/batches=0-7/part-....parquet      what batches 0 to 7 wrote, merged
    TABLE/batches=8-8/part-....parquet      batch 8

A folder is written under `_unfinished` and appears when it is complete. Batches that have a folder are not
written again: a repeated batch has the same rows. A merged folder appears before those that it replaces are
removed, so that nothing is lost if a job is killed; concurrent readers must skip folders whose batches
another one contains too, or they may see rows twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.files import Files, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = re.compile(r"batches=([0-9]+)-([0-9]+)")
_ASIDE: Final = "_unfinished"
"""Readers skip names that begin with an underscore."""


class Span(NamedTuple):
    """The batches of a folder, from the first to the last."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: Span) -> bool:
        return self.first <= other.first and other.last <= self.last

    def __str__(self) -> str:
        return f"batches={self.first}-{self.last}"


def spans(names: Iterable[str]) -> tuple[list[Span], list[Span]]:
    """The current folders of a table, in order, and those that a merged one has replaced."""
    found = [Span(int(each[1]), int(each[2])) for name in names if (each := _NAME.fullmatch(name))]
    replaced = [each for each in found if any(other != each and other.covers(each) for other in found)]
    return sorted(set(found) - set(replaced)), replaced


def to_merge(there: list[Span]) -> list[Span]:
    """The last folders, which should be merged so that each is at least twice as large as all after it
    together. So there are few folders, and a row is rewritten only when its folder has doubled."""
    merged = 1
    size = there[-1].size if there else 0
    while merged < len(there) and there[-merged - 1].size < 2 * size:
        size += there[-merged - 1].size
        merged += 1
    return there[-merged:] if merged > 1 else []


class Folders:
    """The folders of one table. `schema` is in Spark's DDL."""

    def __init__(self, spark: SparkSession, table: str, schema: str) -> None:
        self.table = table
        self._spark, self._schema = spark, schema
        self._files = Files(spark, table)

    def spans(self) -> list[Span]:
        """The current folders, in order."""
        return spans(self._names())[0]

    def last(self) -> int:
        """The last batch that has been written; -1 if none has."""
        return max((each.last for each in self.spans()), default=-1)

    def has(self, batch: int) -> bool:
        """Whether a batch has been written."""
        return any(each.covers(Span(batch, batch)) for each in self.spans())

    def add(self, batch: int, rows: DataFrame) -> None:
        """Write a batch that is not there yet."""
        self._write(Span(batch, batch), rows)

    def read(self, last: int) -> DataFrame:
        """All rows, up to this batch."""
        return self._read(self._until(last))

    def tidy(self, last: int, merge: Callable[[DataFrame], DataFrame]) -> None:
        """Merge folders up to this batch if there are many, and remove merged ones and leftovers of
        interrupted merges; `merge` makes the merged rows from all rows. Later batches may be added
        meanwhile."""
        for each in spans(self._names())[1]:
            self._files.remove(f"{self.table}/{each}")
        for each in self._left_aside(last):
            self._files.remove(f"{self.table}/{_ASIDE}/{each}")
        merged = to_merge(self._until(last))
        if merged:
            self._write(Span(merged[0].first, merged[-1].last), merge(self._read(merged)))
            for each in merged:
                self._files.remove(f"{self.table}/{each}")

    def _names(self) -> set[str]:
        # An object store renames by copying, then deleting: a folder that is still aside is incomplete here.
        there = set(self._files.names(self.table))
        aside = f"{self.table}/{_ASIDE}"
        both = there & set(self._files.names(aside))
        return there - {each for each in both if self._files.has_data(f"{aside}/{each}")}

    def _left_aside(self, last: int) -> list[Span]:
        """Unfinished folders up to this batch, except those that mark a folder in place as incomplete."""
        aside = set(self._files.names(f"{self.table}/{_ASIDE}")) - set(self._files.names(self.table))
        unfinished, replaced = spans(aside)
        return [each for each in (*unfinished, *replaced) if each.last <= last]

    def _until(self, last: int) -> list[Span]:
        return [each for each in self.spans() if each.last <= last]

    def _read(self, there: list[Span]) -> DataFrame:
        reader: Any = self._spark.read.schema(self._schema)
        found: DataFrame = (
            reader.parquet(*(literal(f"{self.table}/{each}") for each in there))
            if there
            else self._spark.createDataFrame([], self._schema)
        )
        return found

    def _write(self, span: Span, rows: DataFrame) -> None:
        aside, place = f"{self.table}/{_ASIDE}/{span}", f"{self.table}/{span}"
        rows.write.mode("overwrite").parquet(aside)
        self._files.remove(place)  # left by an interrupted rename
        self._files.move(aside, place)
