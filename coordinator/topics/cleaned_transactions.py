"""What compaction finds left of each transaction, to decide when its marker may go (KIP-98, KIP-534)."""

from __future__ import annotations

from muster.protocol.control_batch import read_marker
from muster.protocol.record_batch import Header


class CleanedTransactions:
    """What one pass has met so far. It must be given every batch from the log's start on, in order."""

    __slots__ = ("_under_way", "emptied")

    def __init__(self) -> None:
        self._under_way: set[int] = set()  # producers with a batch since their last marker
        self.emptied: set[int] = set()
        """Marker offsets of aborted transactions that have nothing else left."""

    def meet_batch(self, header: Header) -> None:
        """Note a batch of records, even one that has lost them or loses them in this pass."""
        if header.is_transactional:
            self._under_way.add(header.producer_id)

    def meet_marker(self, header: Header, contents: bytes) -> bool:
        """Note a control batch. Returns whether it is useless: no batch of its transaction is left."""
        if not header.record_count:
            return True
        end = read_marker(header, contents)
        if end is None:
            return False
        if header.producer_id in self._under_way:
            self._under_way.remove(header.producer_id)
            return False
        if not end.committed:
            self.emptied.add(header.last_offset)
        return True
