"""The topic that transactions write to, as its readers see it, and what producers know of their transactions.

Every record says which transaction it belongs to, and so does the metadata of each offset committed in one.
So whatever is read can be compared with what its producer requested and was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muster.protocol.api import ApiKey
from muster.protocol.control_batch import read_marker
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.record_batch import batches, records
from tests.simulator.member import Client, Partition
from tests.simulator.network import Address, Disconnected

LEDGER: Final = "ledger"
LEDGER_PARTITIONS: Final = 4
INPUT: Final = "input"
"""The topic whose offsets are moved; it needs no records."""
INPUT_PARTITIONS: Final = 2

Producing = tuple[int, int]
"""Producer id and epoch."""


class Source(NamedTuple):
    """Whose offsets are moved: a group's, in one partition."""

    group_id: str
    partition: Partition


# --- what producers know ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """A transaction, as its producer knows it."""

    name: str
    transactional_id: str
    producing: Producing
    source: Source | None = None
    acknowledged: dict[int, list[str]] = field(default_factory=dict)
    """Values, by ledger partition."""
    offset: int | None = None
    """The offset committed for the source, once acknowledged."""
    commits: bool | None = None
    """How its producer asked for it to end; None: not yet asked."""
    ends_s: float = 0.0
    """When that was first requested."""
    done: bool = False
    """Whether the coordinator confirmed that end."""


@dataclass(slots=True)
class Grant:
    """A transactional id granted to a producer."""

    client: str
    producing: Producing
    at_s: float


class Book:
    """All transactions by name, and all grants of transactional ids."""

    def __init__(self) -> None:
        self.transactions: dict[str, Told] = {}
        self.grants: dict[str, list[Grant]] = {}
        """By transactional id, in the order in which producers learned of them."""
        self._passed: dict[tuple[int, int], int] = {}

    def begun(self, transaction: Told) -> None:
        self.transactions[transaction.name] = transaction

    def granted(self, transactional_id: str, grant: Grant) -> None:
        self.grants.setdefault(transactional_id, []).append(grant)

    def acknowledged(self, transaction: Told, partition: int, values: Iterable[str]) -> None:
        """The partition has stored the values, so it knows the epoch."""
        transaction.acknowledged.setdefault(partition, []).extend(values)
        producer_id, epoch = transaction.producing
        self._passed[producer_id, partition] = max(epoch, self._passed.get((producer_id, partition), epoch))

    def passed(self) -> list[tuple[Producing, int]]:
        """Producer epochs that are over, each with a ledger partition that knows a newer one."""
        return [
            ((producer_id, epoch - 1), partition)
            for (producer_id, partition), epoch in self._passed.items()
            if epoch
        ]

    def of(self, text: str) -> Told | None:
        """The transaction named by a record's value or an offset's metadata."""
        return self.transactions.get(text.partition("|")[0])


def is_of(told: Told, value: str) -> bool:
    """Whether its producer knows that the record was stored."""
    return any(value in values for values in told.acknowledged.values())


# --- what readers see -------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A record of the ledger or a marker."""

    offset: int
    producing: Producing
    value: str | None
    committed: bool | None = None
    """For a marker: whether it commits."""
    leader_epoch: int = 0
    """The epoch of the leader that stored it."""


class Aborted(NamedTuple):
    """An aborted transaction as a Fetch names it."""

    producer_id: int
    first_offset: int


def entries(data: bytes, offset: int) -> tuple[list[Entry], int]:
    """The entries that a Fetch from `offset` returned, and the offset after them."""
    found = []
    for position, header in batches(data):
        producing, epoch = (header.producer_id, header.producer_epoch), header.leader_epoch
        if header.is_control:
            marker = read_marker(header, data[position:])
            if marker is not None:
                found.append(Entry(header.base_offset, producing, None, marker.committed, epoch))
        else:
            for record in records(data, position, header):
                assert record.value is not None
                found.append(Entry(record.offset, producing, record.value.decode(), None, epoch))
        offset = max(offset, header.next_offset)
    return found, offset


def committed(found: Sequence[Entry], aborted: Iterable[Aborted], offset: int) -> list[tuple[int, str]]:
    """Offset and value of the records that a read_committed consumer passes on, reading from `offset`."""
    ahead = sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    passed_on = []
    for entry in found:
        while ahead and ahead[0].first_offset <= entry.offset:
            dropped.add(ahead.pop(0).producer_id)
        producer_id = entry.producing[0]
        if entry.committed is False:
            dropped.discard(producer_id)
        elif entry.value is not None and producer_id not in dropped and entry.offset >= offset:
            passed_on.append((entry.offset, entry.value))
    return passed_on


async def leaders(client: Client, brokers: Sequence[Address]) -> dict[int, Address]:
    """The leader of each ledger partition, as reported by the first broker that answers."""
    request = MetadataRequest(topics=[MetadataRequest.Topic(name=LEDGER)], allow_auto_topic_creation=False)
    for address in brokers:
        try:
            link = await client.connect(address)
            response: Any = await client.ask(link, ApiKey.METADATA, 12, request)
            link.close()
        except Disconnected:
            continue
        nodes = {node.node_id: (node.host, node.port) for node in response.brokers}
        return {
            each.partition_index: nodes[each.leader_id]
            for topic in response.topics
            for each in topic.partitions
            if each.leader_id in nodes
        }
    return {}
