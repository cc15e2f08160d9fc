"""Control batches as a broker with transactions writes them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from muster.protocol.record_batch import ControlType, Record, build

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


def build_control(
    kind: ControlType,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction; it takes up one offset."""
    marker = Record(offset, timestamp, _KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch))
    return build(
        [marker],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
