"""A journal fed in batches of any size to the code behind the stream, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.pipeline.journal.entries import Told, read
from muster.pipeline.journal.pieces import Group, Piece, Shard

Row = tuple[bytes | None, bytes, int, int]
"""A row of bronze: key, value, partition, offset."""

_MOMENTS: Final = ("at_ms", "started_ms", "until_ms", "expires_ms")


@dataclass
class Replay:
    """The state that the stream keeps, as text."""

    shards: dict[int, str] = field(default_factory=dict)
    groups: dict[tuple[int, str], str] = field(default_factory=dict)
    largest: int = 0
    """Largest number of entries kept for one group."""

    def take(self, batch: Iterable[Row]) -> Iterator[tuple[int, Piece]]:
        """Process a batch; yields the pieces, each with its shard."""
        by_shard: dict[int, list[Told]] = {}
        for _, value, shard, offset in batch:
            told = read(offset, value)
            if told is not None:
                by_shard.setdefault(shard, []).append(told)
        for shard, entries in by_shard.items():
            known = Shard.from_json(self.shards[shard]) if shard in self.shards else Shard()

            def recall(group: str, shard: int = shard) -> Group:
                text = self.groups.get((shard, group))
                return Group() if text is None else Group.from_json(text, group)

            def remember(group: str, kept: Group, shard: int = shard) -> None:
                self.groups[shard, group] = kept.to_json()
                self.largest = max(self.largest, len(kept.entries))

            # The order of rows within a batch must not matter.
            for piece in known.take(reversed(entries), recall, remember):
                yield shard, piece
            self.shards[shard] = known.to_json()


def stretched(rows: Sequence[Row], times: int, apart_ms: int = 0) -> list[Row]:
    """The journal with the time between any two entries multiplied by `times`, and the groups' times
    `apart_ms` apart."""
    first_ms = min(json.loads(value)["at_ms"] for _, value, _, _ in rows)
    groups: dict[str | None, int] = {None: 0}
    found = []
    for key, value, partition, offset in rows:
        told = json.loads(value)
        number = groups.setdefault(told["group"], len(groups) * (-1) ** len(groups))
        for name in _MOMENTS:
            if isinstance(told.get(name), int):
                told[name] = first_ms + (told[name] - first_ms) * times + number * apart_ms
        found.append((key, json.dumps(told).encode(), partition, offset))
    return found


def batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Split the rows into batches of `size`."""
    for first in range(0, len(rows), size):
        yield rows[first : first + size]
