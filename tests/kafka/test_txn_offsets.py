"""Random sequences of commits to a group, plain and in transactions of both generations, of EndTxn and
OffsetDelete: Apache Kafka and muster's core give the same answers, and agree on what the group has committed
and what is unstable.

The core is called without a broker around it. Its transaction coordinator is Kafka's: markers carry the
epochs that Kafka gave.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.group import test_transactional_offsets as core
from tests.group.harness import Harness
from tests.kafka.conftest import KafkaOfConfigs, Lives
from tests.kafka.stories import KAFKA_CONFIGS
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import ensure_topics, until

pytestmark = pytest.mark.kafka

_SEED: Final = 447
_SEQUENCES: Final = 12
_MOVES: Final = 40
_TOPIC: Final = "handled"
_PARTITIONS: Final = 3
_NOT_YET: Final = frozenset({14, 15, 16})
Codes = dict[int, ErrorCode]


class _Producer:
    """A transactional id with its producer."""

    def __init__(self, connection: WireConnection, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.is_in_transaction = False
        self._connection = connection
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        started: list[InitProducerIdResponse] = []

        def has_started() -> bool:
            started[:] = [connection.call(request, 5, InitProducerIdResponse)]
            return started[0].error_code not in _NOT_YET

        until(has_started, f"a producer of {transactional_id}")
        self.id, self.epoch = started[0].producer_id, started[0].producer_epoch
        self.former_epoch: int | None = None

    def add_offsets(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        assert self._connection.call(request, 3, AddOffsetsToTxnResponse).error_code == 0

    def end(self, *, committed: bool, version: int) -> int:
        """End the transaction; returns the epoch of the markers once none is pending."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        told = self._connection.call(request, version, EndTxnResponse)
        assert told.error_code == 0
        asked = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        def is_settled() -> bool:
            (found,) = self._connection.call(asked, 0, DescribeTransactionsResponse).transaction_states
            return found.transaction_state.startswith("Complete")

        until(is_settled, f"the markers of {self.transactional_id}")
        self.is_in_transaction = False
        if version >= 5:
            assert told.producer_id == self.id
            self.former_epoch, self.epoch = self.epoch, told.producer_epoch
        return self.epoch


class _Life:
    """A group that gets the same requests on both sides."""

    def __init__(self, connection: WireConnection, name: str) -> None:
        self._connection = connection
        self._group_id = f"group-{name}"
        self._choose = random.Random(name)
        self._producers = [_Producer(connection, f"{self._group_id}-{each}") for each in range(3)]
        self._harness = Harness()
        self.log: list[str] = []

    def play(self, number: int) -> set[str]:
        """Make one move; returns its name and what is seen after it."""
        choose = self._choose
        some = choose.sample(range(_PARTITIONS), choose.randint(1, 2))
        offsets = dict.fromkeys(some, number)
        producer = choose.choice(self._producers)
        what = choose.choices(("plain", "txn", "end", "delete", "zombie", "reload"), (4, 8, 5, 1, 1, 1))[0]
        self.log.append(f"{what} {offsets} {producer.transactional_id} epoch={producer.epoch}")
        if what == "plain":
            self._plain(offsets)
        elif what == "txn":
            self._commit(
                producer, producer.epoch, offsets, choose.choice((3, 4, 5)), adds=choose.random() < 0.9
            )
        elif what == "zombie" and producer.former_epoch is not None:
            self._commit(producer, producer.former_epoch, offsets, 5, adds=True)
        elif what == "end" and producer.is_in_transaction:
            committed, version = choose.random() < 0.7, choose.choice((4, 5))
            self.log.append(f"  committed={committed} v{version}")
            epoch = producer.end(committed=committed, version=version)
            core.end(self._harness, producer.id, epoch, committed=committed, version=2 if version >= 5 else 0)
        elif what == "delete":
            self._delete(some)
        elif what == "reload" and set(self._fetched_from_core(stable=True).values()) != {-1}:
            # A group without offsets need only be known to a broker that was not restarted.
            self._harness.reload()
        seen = set()
        for stable in (False, True):
            kafka, muster = self._fetched(stable), self._fetched_from_core(stable)
            self.log.append(f"  stable={stable} {kafka}")
            assert kafka == muster, "\n".join([*self.log, str(muster)])
            seen |= {str(each) for each in kafka.values() if isinstance(each, ErrorCode)}
        return seen

    def _same(self, kafka: Codes, muster: Codes) -> None:
        self.log.append(f"  {kafka}")
        assert kafka == muster, "\n".join([*self.log, str(muster)])

    def _plain(self, offsets: dict[int, int]) -> None:
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                OffsetCommitRequest.Topic(name=_TOPIC, partitions=_partitions(OffsetCommitRequest, offsets))
            ],
        )

        def is_committed() -> bool:
            told = self._connection.call(request, 9, OffsetCommitResponse)
            codes = {each.error_code for topic in told.topics for each in topic.partitions}
            assert codes <= {0, *_NOT_YET}
            return codes == {0}

        until(is_committed, f"the coordinator of {self._group_id}")
        core.plain(self._harness, {(_TOPIC, each): offset for each, offset in offsets.items()})

    def _commit(
        self, producer: _Producer, epoch: int, offsets: dict[int, int], version: int, *, adds: bool
    ) -> None:
        if version < 5 and adds and not producer.is_in_transaction:
            producer.add_offsets(self._group_id)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=self._group_id,
            producer_id=producer.id,
            producer_epoch=epoch,
            topics=[
                TxnOffsetCommitRequest.Topic(
                    name=_TOPIC, partitions=_partitions(TxnOffsetCommitRequest, offsets)
                )
            ],
        )
        found: list[Codes] = []

        def is_told() -> bool:
            told = self._connection.call(request, version, TxnOffsetCommitResponse)
            found[:] = [_codes(told)]
            return not _NOT_YET & set(found[0].values())

        until(is_told, f"the coordinator of {self._group_id}")
        (kafka,) = found
        asked = core.request({(_TOPIC, each): offset for each, offset in offsets.items()}, producer.id, epoch)
        if version < 5 and not adds and not producer.is_in_transaction:
            # Kafka's coordinator refuses; so does the one that muster would ask.
            missing = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
            refused = core.send(self._harness, asked, None, version)
            assert refused is ErrorCode.INVALID_TXN_STATE
            self._same(kafka, dict.fromkeys(offsets, missing))
            return
        told = core.commit(
            self._harness,
            {(_TOPIC, each): offset for each, offset in offsets.items()},
            producer.id,
            epoch,
            version=version,
        )
        if isinstance(told, ErrorCode):
            muster = dict.fromkeys(offsets, told)
        else:
            muster = {partition: code for (_, partition), code in told.items()}
            producer.is_in_transaction = True
        self._same(kafka, muster)

    def _delete(self, partitions: list[int]) -> None:
        Topic = OffsetDeleteRequest.Topic
        topic = Topic(name=_TOPIC, partitions=[Topic.Partition(partition_index=each) for each in partitions])
        request = OffsetDeleteRequest(group_id=self._group_id, topics=[topic])
        kafka = self._connection.call(request, 0, OffsetDeleteResponse)
        muster = core.delete_offsets(self._harness, *((_TOPIC, each) for each in partitions))
        codes = _codes(muster) if isinstance(muster, OffsetDeleteResponse) else muster.code
        assert (_codes(kafka) if not kafka.error_code else kafka.error_code) == codes, "\n".join(self.log)

    def _fetched(self, stable: bool) -> dict[int, object]:
        topic = OffsetFetchRequest.Group.Topics(name=_TOPIC, partition_indexes=list(range(_PARTITIONS)))
        group = OffsetFetchRequest.Group(group_id=self._group_id, topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=stable)
        (told,) = self._connection.call(request, 9, OffsetFetchResponse).groups
        assert told.error_code == 0
        return {
            each.partition_index: ErrorCode(each.error_code) if each.error_code else each.committed_offset
            for topic in told.topics
            for each in topic.partitions
        }

    def _fetched_from_core(self, stable: bool) -> dict[int, object]:
        asked = ((_TOPIC, each) for each in range(_PARTITIONS))
        return {
            partition: ErrorCode[found] if isinstance(found, str) else found
            for (_, partition), found in core.fetched(self._harness, *asked, stable=stable).items()
        }


def _partitions(request: Any, offsets: dict[int, int]) -> list[Any]:
    return [
        request.Partition(partition_index=each, committed_offset=offset, committed_metadata="")
        for each, offset in offsets.items()
    ]


def _codes(told: Any) -> Codes:
    return {
        each.partition_index: ErrorCode(each.error_code) for topic in told.topics for each in topic.partitions
    }


@pytest.fixture(scope="module")
def connection(kafka_of_configs: KafkaOfConfigs) -> Iterator[WireConnection]:
    kafka = kafka_of_configs(KAFKA_CONFIGS)
    host, port = kafka.bootstrap.split(":")
    with WireConnection(host, int(port), "player") as connection:
        ensure_topics(connection, {_TOPIC: _PARTITIONS})
        for key_type in (0, 1):

            def has_coordinator(key_type: int = key_type) -> bool:
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["first"])
                (found,) = connection.call(request, 4, FindCoordinatorResponse).coordinators
                return found.error_code == 0

            until(has_coordinator, f"a coordinator of type {key_type}")
        yield connection


def test_random_lives_of_groups_in_transactions(connection: WireConnection, lives: Lives) -> None:
    seen: set[str] = set()
    for each in lives(_SEED, _SEQUENCES):
        life = _Life(connection, each)
        for move in range(_MOVES):
            seen |= life.play(move)
    assert seen == {str(ErrorCode.UNSTABLE_OFFSET_COMMIT)}
