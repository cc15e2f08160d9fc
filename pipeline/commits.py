"""Commits a stream's progress to a consumer group, so that lag tools see it.

The stream relies on its checkpoint; commits follow it. The group has no members (nothing could send
heartbeats between Spark's calls), so brokers accept commits as long as nobody joins, and expire the group's
offsets some days after the last commit: an idle stream commits again now and then. Anyone else may commit to
such a group too. Each commit checks for that first and logs it, since the group then shows neither's
progress.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from muster.client.admin.offsets import alter_group_offsets, list_group_offsets
from muster.client.errors import may_pass
from muster.client.network.cluster import Cluster
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.pipeline.asking import BlockingCluster
from muster.pipeline.errors import PipelineError
from muster.protocol.errors import ErrorCode, KafkaError

_REFRESH_S: Final = 600.0
"""A group's offsets last a week by Kafka's defaults; some brokers keep them for only an hour."""
_COMMIT_S: Final = 5.0
_AGAIN_S: Final = 30.0
"""How long to wait before retrying a coordinator that does not answer; reading continues meanwhile."""
_FOREIGN_S: Final = 600.0
"""Minimum time between logs of others' commits: two streams in one group make one with every batch."""
_METADATA: Final = "spark"

log = logging.getLogger(__name__)


class Commits:
    """The commits of one stream. A permanent refusal before any success raises PipelineError; other failures
    are logged, and the next commit makes up for them."""

    def __init__(self, group_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.group_id = group_id
        self._clock = clock
        self._committed: Mapping[TopicPartition, int] | None = None
        self._committed_at = 0.0
        self._not_before = 0.0
        self._foreign_told_at: float | None = None

    def commit(
        self, cluster: BlockingCluster, offsets: Mapping[TopicPartition, int], *, is_last: bool = False
    ) -> None:
        """Commit these offsets if they are new or the last commit was long ago. `is_last`: no later commit
        can make up for a failure, so try even a coordinator that did not answer."""
        now = self._clock()
        fresh = now - self._committed_at < _REFRESH_S
        if not offsets or (self._committed == offsets and fresh):
            return
        if now < self._not_before and not is_last:
            return

        async def commit(asked: Cluster, until: float) -> None:
            if self._committed is not None:
                there = await list_group_offsets(asked, [self.group_id], until)
                self._tell_of_others(self._committed, there.raise_for_failures()[self.group_id])
            wanted = {where: OffsetAndMetadata(offset, _METADATA) for where, offset in offsets.items()}
            (await alter_group_offsets(asked, self.group_id, wanted, until)).raise_for_failures()

        try:
            cluster.ask(commit, _COMMIT_S)
        except PipelineError as error:
            text = f"group {self.group_id}: what was read could not be committed: {error}"
            if self._committed is None and _is_final(error.__cause__):
                raise PipelineError(f"{text} (option commitOffsets=false reads without)") from error
            log.warning("%s; it is tried again", text)
            self._not_before = self._clock() + _AGAIN_S
        else:
            self._committed, self._committed_at = dict(offsets), now

    def _tell_of_others(
        self,
        left: Mapping[TopicPartition, int],
        found: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Warn of offsets that differ from what this stream committed. Missing ones were deleted, not
        committed."""
        foreign = [
            f"{where} at {found[where].offset} instead of {offset}"
            for where, offset in left.items()
            if where in found and found[where].offset != offset
        ]
        told_at = self._foreign_told_at
        if foreign and (told_at is None or self._clock() - told_at >= _FOREIGN_S):
            self._foreign_told_at = self._clock()
            log.warning(
                "group %s: someone else commits to it too (%s); what this stream has finished is committed"
                " over it. Give each stream a group of its own",
                self.group_id,
                ", ".join(foreign[:5]),
            )


def _is_final(cause: BaseException | None) -> bool:
    """Whether commits will be refused until somebody intervenes. (A deleted topic is not the group's
    problem.)"""
    return (
        isinstance(cause, KafkaError)
        and not may_pass(cause.code)
        and cause.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
