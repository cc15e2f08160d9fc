"""The control batch that ends a transaction in a partition (KIP-98): one record, whose key says whether the
transaction was committed, and whose value holds the epoch of the coordinator that ended it.

Key: version int16, type int16 (`ControlType`). Value: version int16, coordinator epoch int32.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import ControlType, Header, Record, build, records

_VERSION: Final = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")

CONTROL_BATCH_BYTES_MAX: Final = 128
"""More than any control batch has: one of version 0 has 78."""


class EndMarker(NamedTuple):
    """What a control batch says about its producer's transaction."""

    committed: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, end: EndMarker, now_ms: int) -> bytes:
    """The batch, still without its offset and leader epoch."""
    kind = ControlType.COMMIT if end.committed else ControlType.ABORT
    record = Record(0, now_ms, _KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, end.coordinator_epoch))
    return build(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def read_marker(header: Header, batch: bytes) -> EndMarker | None:
    """What a control batch says; None if it ends no transaction: it has another type, or compaction removed
    its record."""
    try:
        for record in records(batch, 0, header):
            _, kind = _KEY.unpack_from(record.key or b"")
            if kind in (ControlType.ABORT, ControlType.COMMIT):
                _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
                return EndMarker(kind == ControlType.COMMIT, coordinator_epoch)
    except (DecodeError, StructError):
        return None  # not for a log to judge: readers skip it
    return None
