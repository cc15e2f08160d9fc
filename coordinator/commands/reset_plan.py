"""The CSV file of `muster groups reset-offsets --from-file`, in the format of Kafka's own tool."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.client.partitions import TopicPartition

_NUMBER = re.compile(r"[0-9]{1,19}")
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The offsets of each group, or of every group if the lines name none."""

    offsets: Mapping[str | None, Mapping[TopicPartition, int]]

    @property
    def groups(self) -> list[str]:
        """The groups named."""
        return [each for each in self.offsets if each is not None]

    def of(self, group: str) -> Mapping[TopicPartition, int]:
        """The offsets to commit for the group."""
        found = self.offsets.get(group)
        return self.offsets[None] if found is None else found


def read_plan(lines: Iterable[str]) -> Plan:
    """Parse lines `topic,partition,offset` or `group,topic,partition,offset`, all of the same form. Raises
    ValueError with the line number."""
    offsets: dict[str | None, dict[TopicPartition, int]] = {}
    width: int | None = None
    rows = csv.reader(lines, strict=True)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
        if row is None:
            break
        if not row:
            continue
        width = width or len(row)
        if len(row) not in (3, 4) or len(row) != width:
            raise ValueError(
                f"line {rows.line_num}: every line takes topic,partition,offset, or every line "
                f"group,topic,partition,offset, not {','.join(row)!r}"
            )
        group = row[0] if width == 4 else None
        topic, *numbers = row[-3:]
        partition, offset = (
            _number(text, most, f"line {rows.line_num}: {name}")
            for text, most, name in zip(
                numbers, (_PARTITION_MAX, _OFFSET_MAX), ("partition", "offset"), strict=True
            )
        )
        where = TopicPartition(topic, partition)
        of_group = offsets.setdefault(group, {})
        if where in of_group:
            raise ValueError(f"line {rows.line_num}: {where} is given twice")
        of_group[where] = offset
    if not offsets:
        raise ValueError("it has no lines")
    return Plan(offsets)


def _number(text: str, most: int, what: str) -> int:
    if not _NUMBER.fullmatch(text.strip()) or int(text) > most:
        raise ValueError(f"{what} {text!r} is not allowed; it takes a whole number, 0 to {most}")
    return int(text)
