"""The coordinator's marker, which ends a transaction where it wrote, and which markers are accepted (KIP-98,
KIP-890, KIP-1228). Partition logs and group shards follow the same rule."""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.transactions.transaction import FENCING_EPOCH
from muster.protocol.errors import ErrorCode, KafkaError

NO_COORDINATOR_EPOCH: Final = -1
"""For a producer that has had no marker."""
_EPOCH_RAISED_BY_MARKERS: Final = 2
"""The transaction.version from which every marker has a higher epoch than its transaction."""


class Marker(NamedTuple):
    """A coordinator's marker, which ends a transaction in a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 0

    @property
    def epoch_raised(self) -> bool:
        """Whether its epoch is higher than that of the transaction it ends."""
        return self.transaction_version >= _EPOCH_RAISED_BY_MARKERS


def check_marker(marker: Marker, *, epoch: int, is_open: bool, coordinator_epoch: int) -> None:
    """Raises unless the marker may be written now. Its producer is known at `epoch` and has an open
    transaction if `is_open`; its last marker came from a coordinator at `coordinator_epoch`.

    INVALID_PRODUCER_EPOCH (47) for an epoch older than the last, and from transaction.version 2 on for
    one that is not newer, unless it is a repeat; TRANSACTION_COORDINATOR_FENCED (52) for a coordinator
    epoch older than that of the last marker.
    """
    marked = marker.producer_epoch
    if not marker.epoch_raised:
        stale = marked < epoch
    else:
        repeat = marked == epoch and (not is_open or epoch == FENCING_EPOCH)  # the latter cannot be raised
        stale = marked <= epoch and not repeat
    if stale:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {marker.producer_id} is at epoch {epoch}; the marker has epoch {marked}",
        )
    if marker.coordinator_epoch < coordinator_epoch:
        raise KafkaError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"producer {marker.producer_id} had a marker of coordinator epoch {coordinator_epoch}; "
            f"this one has {marker.coordinator_epoch}",
        )
