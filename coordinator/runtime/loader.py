"""From the rows of a lease to a shard: the same `apply` that the shard's own steps go through."""

from __future__ import annotations

import asyncio
from typing import cast

from muster.coordinator.group.effects import Record
from muster.coordinator.group.shard import Shard
from muster.coordinator.storage.store import Lease, Store
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import decode_record

_ROWS_PER_TURN = 1_000


async def load(store: Store, lease: Lease, shard: Shard) -> None:
    """Apply every live row of the lease, oldest first, giving the loop a turn now and then.

    Rows of unknown types are passed over, as Kafka does. Raises StoreError, or DecodeError for a row that is
    damaged: to serve a group without its offsets would send its consumers to the beginning.
    """
    for index, (_, key, value) in enumerate(await store.load(lease), 1):
        decoded = decode_record(key, value)
        if decoded is not None:
            # Every value starts with its schema version (int16).
            shard.apply(Record(decoded[0], cast(Message, decoded[1]), int.from_bytes(value[:2], "big")))
        if index % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
