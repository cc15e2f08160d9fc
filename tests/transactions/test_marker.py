"""Which markers are accepted: the rule as a table."""

from __future__ import annotations

import pytest

from muster.coordinator.transactions.marker import Marker, check_marker
from muster.coordinator.transactions.transaction import FENCING_EPOCH
from muster.protocol.errors import ErrorCode, KafkaError

STALE = ErrorCode.INVALID_PRODUCER_EPOCH
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
LAST = FENCING_EPOCH


@pytest.mark.parametrize(
    ("version", "marked", "epoch", "is_open", "by", "before", "code"),
    [
        # Before version 2, a marker carries its transaction's epoch, or that of the producer that fenced it.
        (0, 3, 3, True, 5, 5, None),
        (1, 3, 3, True, 5, 5, None),
        (1, 4, 3, True, 5, 5, None),
        (1, 3, 3, False, 5, 5, None),
        (1, 2, 3, True, 5, 5, STALE),
        # From version 2 on, it carries a newer epoch, unless it is a repeat.
        (2, 4, 3, True, 5, 5, None),
        (2, 3, 3, True, 5, 5, STALE),
        (2, 3, 3, False, 5, 5, None),
        (2, 2, 3, False, 5, 5, STALE),
        (2, 2, 3, True, 5, 5, STALE),
        (3, 3, 3, True, 5, 5, STALE),
        # No epoch is higher than the last one.
        (2, LAST, LAST, True, 5, 5, None),
        (2, LAST - 1, LAST, True, 5, 5, STALE),
        # From a coordinator that has lost its shard.
        (1, 3, 3, True, 4, 5, FENCED),
        (2, 4, 3, True, 4, 5, FENCED),
        (2, 4, 3, True, 6, 5, None),
        (1, 2, 3, True, 4, 5, STALE),
    ],
)
def test_which_markers_are_let_in(
    version: int, marked: int, epoch: int, is_open: bool, by: int, before: int, code: ErrorCode | None
) -> None:
    marker = Marker(7, marked, by, committed=True, transaction_version=version)
    if code is None:
        check_marker(marker, epoch=epoch, is_open=is_open, coordinator_epoch=before)
        return
    with pytest.raises(KafkaError, match="producer 7 ") as refused:
        check_marker(marker, epoch=epoch, is_open=is_open, coordinator_epoch=before)
    assert refused.value.code is code
