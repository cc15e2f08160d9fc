"""The outcomes of a commit, by partition. Pure. A generation that ended meanwhile raises no exception: it is
normal for consumers, so callers see it as a result and go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from muster.client.errors import ClientError
from muster.client.partitions import TopicPartition
from muster.protocol.errors import KafkaError


class Committed(NamedTuple):
    """The offset is committed, until it is replaced."""

    offset: int


class StaleOwner(NamedTuple):
    """The partition is no longer this member's, or never was: its owner reads from the previously committed
    offset. Retrying does not help.

    Offsets of partitions not assigned to the member are not even sent. Kafka's own consumer sends them, and
    the coordinator, which only checks generations, lets them overwrite the owner's. To commit for other
    partitions, assign them by hand, or use Admin.alter_group_offsets, while the group has no members."""

    offset: int
    why: KafkaError


class Retry(NamedTuple):
    """Unknown, or not yet possible: the group is rebalancing, its coordinator is moving, or there was no
    response in time. Retrying may help, as long as the partition stays this member's."""

    offset: int
    why: KafkaError | ClientError


Outcome: TypeAlias = Committed | StaleOwner | Retry


class CommitFailed(ClientError):
    """Some partitions were not committed; `result` says which and why."""

    def __init__(self, text: str, result: CommitResult) -> None:
        super().__init__(text, result)
        self.result = result


class CommitResult(Mapping[TopicPartition, Outcome]):
    """The outcome of each partition of a commit."""

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
        """Whether all partitions are committed."""
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
        """Raise CommitFailed unless all partitions are committed."""
        failed: list[tuple[TopicPartition, StaleOwner | Retry]] = [*self.stale.items(), *self.retry.items()]
        if failed:
            where, outcome = failed[0]
            others = f" and {len(failed) - 1} more partitions" if len(failed) > 1 else ""
            raise CommitFailed(f"{where}{others}: offset {outcome.offset} not committed: {outcome.why}", self)
