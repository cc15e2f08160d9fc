"""What became of a commit, partition by partition. Pure.

A generation that passed in the meantime is no exception: it is what happens to consumers, and who commits
should see it as a result and go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from muster.client.errors import ClientError
from muster.client.partitions import TopicPartition
from muster.protocol.errors import KafkaError


class Committed(NamedTuple):
    """The offset is the group's, until somebody commits another."""

    offset: int


class StaleOwner(NamedTuple):
    """The partition is not this member's any more, or never was: whoever has it reads from what was committed
    before. Committing again does not help.

    What is not assigned to a member is not even sent. Kafka's own consumer sends it, and the coordinator,
    which looks at generations alone, lets it overwrite what the owner has committed. Whoever is to commit
    for other partitions assigns them by hand, or takes Admin.alter_group_offsets, while the group has no
    members."""

    offset: int
    why: KafkaError


class Retry(NamedTuple):
    """Not known, or not yet: the group rebalances, its coordinator moves, or there was no answer in time.
    Committing again may help, as long as the partition stays this member's."""

    offset: int
    why: KafkaError | ClientError


Outcome: TypeAlias = Committed | StaleOwner | Retry


class CommitFailed(ClientError):
    """Some partitions of a commit are not committed; `result` says which and why."""

    def __init__(self, text: str, result: CommitResult) -> None:
        super().__init__(text, result)
        self.result = result


class CommitResult(Mapping[TopicPartition, Outcome]):
    """What became of each partition of a commit."""

    def __init__(self, outcomes: Mapping[TopicPartition, Outcome]) -> None:
        self._outcomes = dict(outcomes)

    def __getitem__(self, where: TopicPartition) -> Outcome:
        return self._outcomes[where]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __repr__(self) -> str:
        return f"CommitResult({', '.join(f'{where}: {each}' for where, each in self._outcomes.items())})"

    @property
    def ok(self) -> bool:
        """Whether all is committed."""
        return len(self.committed) == len(self)

    @property
    def committed(self) -> dict[TopicPartition, Committed]:
        return {where: each for where, each in self._outcomes.items() if isinstance(each, Committed)}

    @property
    def stale(self) -> dict[TopicPartition, StaleOwner]:
        return {where: each for where, each in self._outcomes.items() if isinstance(each, StaleOwner)}

    @property
    def retry(self) -> dict[TopicPartition, Retry]:
        return {where: each for where, each in self._outcomes.items() if isinstance(each, Retry)}

    def raise_for_failures(self) -> None:
        """For who prefers an exception: raises CommitFailed, unless all is committed."""
        failed: list[tuple[TopicPartition, StaleOwner | Retry]] = [*self.stale.items(), *self.retry.items()]
        if failed:
            where, outcome = failed[0]
            others = f" and {len(failed) - 1} more partitions" if len(failed) > 1 else ""
            raise CommitFailed(f"{where}{others}: offset {outcome.offset} not committed: {outcome.why}", self)
