"""The topic `__consumer_offsets`: the records of the group shards (see `keyed_rows`)."""

from __future__ import annotations

from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.topics.keyed_rows import NO_TIMESTAMP, KeyedRows
from muster.protocol.messages.coordinator_records import (
    GroupMetadataValue,
    OffsetCommitValue,
    decode_record,
    is_own,
)


class ConsumerOffsets(KeyedRows):
    """The partitions of `__consumer_offsets` that one broker leads."""

    kind = LeaseKind.GROUP

    def _is_shown(self, key: bytes) -> bool:
        """Hides muster's own records, which hold offsets back until their transaction is over."""
        return not is_own(key)

    def _made_ms(self, key: bytes, value: bytes) -> int:
        """The time of the commit, or since when the group has been in its state."""
        match decode_record(key, value):
            case (_, OffsetCommitValue() as committed):
                return committed.commit_timestamp
            case (_, GroupMetadataValue() as group):
                return group.current_state_timestamp
        return NO_TIMESTAMP
