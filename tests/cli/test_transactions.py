"""`muster transactions`, as a user runs it, on fake brokers with transactions to report; tests/kafka tests
the same on Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import copy

import pytest

from muster.client.admin import hanging as hanging_calls
from muster.client.errors import ConnectionLost
from muster.coordinator.cluster.coordinators import GROUPS
from muster.coordinator.testing import Broker
from muster.coordinator.testing.thread import CALL_S, LoopThread
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
)
from tests.cli.running import Muster
from tests.client.transaction_brokers import Described, Producer, TransactionBrokers
from tests.http.transactional import UNVERIFIED
from tests.support.wire_blocking import WireConnection

HOUR_MS = 3_600_000


@pytest.fixture
def brokers() -> Iterator[TransactionBrokers]:
    """Node 1 leads `orders`, node 2 `sales`."""
    brokers = TransactionBrokers()
    brokers.leaders = {"orders": (1, 1), "sales": (2, 1)}
    listening, thread = brokers.listening(1, 2), LoopThread("brokers")
    thread.start()
    try:
        thread.run(listening.__aenter__, CALL_S)
        yield brokers
        thread.run(lambda: listening.__aexit__(None, None, None), CALL_S)  # type: ignore[arg-type]
    finally:
        thread.end()


@pytest.fixture
def muster(brokers: TransactionBrokers, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(",".join(str(each) for each in brokers.nodes.values()), capfd)


@pytest.fixture
def hanging(brokers: TransactionBrokers) -> int:
    """Time of two hours ago, in epoch ms: producer id 7 has been hanging in `orders` since then."""
    began_ms = time.time_ns() // 1_000_000 - 2 * HOUR_MS
    state = Producer(
        producer_id=7,
        producer_epoch=1,
        last_sequence=0,
        last_timestamp=began_ms + 60_000,
        coordinator_epoch=3,
        current_txn_start_offset=12,
    )
    brokers.producers = {"orders": [state]}
    brokers.began_at = {"orders": began_ms}
    brokers.ends = {"orders": (12, 40)}
    return began_ms


def known(name: str, producer_id: int, *, topic: str = "orders", since_ms: int = -1) -> Described:
    return Described(
        transactional_id=name,
        transaction_state="Ongoing",
        transaction_timeout_ms=900_000,
        transaction_start_time_ms=since_ms,
        producer_id=producer_id,
        producer_epoch=1,
        topics=[Described.TopicData(topic=topic, partitions=[0, 1])],
    )


def test_ids_are_listed(muster: Muster, brokers: TransactionBrokers) -> None:
    brokers.ids[2]["etl-1"] = known("etl-1", 7)
    brokers.ids[1]["etl-2"] = known("etl-2", 12)
    assert muster.done("transactions", "list").splitlines() == [
        "TRANSACTIONAL ID  COORDINATOR  PRODUCER ID  STATE",
        "etl-1                       2            7  Ongoing",
        "etl-2                       1           12  Ongoing",
    ]
    assert muster.done("transactions", "list", "--producer-id", "12", "--output", "csv").splitlines() == [
        "transactional_id,coordinator,producer_id,state",
        "etl-2,1,12,Ongoing",
    ]


def test_several_ids_side_by_side(muster: Muster, brokers: TransactionBrokers) -> None:
    brokers.ids[1]["etl-1"] = known("etl-1", 7, since_ms=time.time_ns() // 1_000_000 - HOUR_MS)
    brokers.ids[2]["etl-2"] = known("etl-2", 12, topic="sales")
    ended = muster("transactions", "describe", "etl-2", "nobody", "etl-1")
    assert ended.code == 1
    _, first, second = ended.out.splitlines()
    assert first.split() == ["etl-2", "Ongoing", "2", "12", "1", "15", "min", "-", "-", "sales:0,1"]
    assert second.split()[:7] == ["etl-1", "Ongoing", "1", "7", "1", "15", "min"]
    assert second.split()[-3:] == ["1", "h", "orders:0,1"]
    assert ended.err.startswith("muster transactions describe: nobody: the transactional id is not known")


def test_nothing_hangs(muster: Muster, brokers: TransactionBrokers) -> None:
    assert muster.done("transactions", "find-hanging") == "no hanging transactions\n"
    assert muster("transactions", "find-hanging", "--output", "json").json == []


def test_it_is_found_shown_and_aborted(muster: Muster, brokers: TransactionBrokers, hanging: int) -> None:
    assert muster.done("transactions", "find-hanging").splitlines()[2:] == [
        "",
        "No group is held back.",
        "",
        "To end it: muster transactions abort --topic orders --partition 0 --start-offset 12",
    ]
    brokers.committed = {"orders": {"billing": 12, "beyond": 13}}
    shown = muster.done("transactions", "find-hanging", "--broker", "1").splitlines()
    assert shown[1].split()[:5] == ["orders", "0", "12", "7", "1"]
    assert shown[1].endswith("  2 h       no coordinator knows producer id 7")
    assert shown[3] == "Held back, if they read only committed records:"
    assert [line.split()[:6] for line in shown[6:-2]] == [["orders", "0", "billing", "12", "12", "28"]]
    (told,) = muster("transactions", "find-hanging", "--output", "json").json
    assert (told["start_timestamp"], told["last_timestamp"]) == (hanging, hanging + 60_000)
    assert muster.done("transactions", "find-hanging", "--broker", "2") == "no hanging transactions\n"

    abort = ("transactions", "abort", "--topic", "orders", "--partition", "0", "--start-offset", "12")
    assert muster.done(*abort).endswith("\n\nNothing was changed: use --execute to abort it.\n")
    assert not brokers.requests_of(WriteTxnMarkersRequest)
    assert muster(*abort, "--execute", "--output", "json").json == {
        "topic": "orders",
        "partition": 0,
        "producer_id": 7,
        "producer_epoch": 1,
        "coordinator_epoch": 3,
        "start_offset": 12,
        "aborted": True,
    }
    (sent,) = brokers.requests_of(WriteTxnMarkersRequest)
    assert (sent.markers[0].producer_id, sent.markers[0].coordinator_epoch) == (7, 3)


def test_what_does_not_hang_is_aborted_by_force_alone(
    muster: Muster, brokers: TransactionBrokers, hanging: int
) -> None:
    brokers.ids[2]["etl-1"] = known("etl-1", 7)
    abort = ("transactions", "abort", "--topic", "orders", "--partition", "0", "--producer-id", "7")
    assert "it does not hang: the coordinator of etl-1 still has it" in muster.refused(*abort, "--execute")
    assert not brokers.requests_of(WriteTxnMarkersRequest)
    assert "its coordinator still has it" in muster.done(*abort, "--force")
    assert not brokers.requests_of(WriteTxnMarkersRequest)
    assert muster.done(*abort, "--force", "--execute").endswith(": aborted\n")
    assert len(brokers.requests_of(WriteTxnMarkersRequest)) == 1


def test_groups_that_may_not_be_seen_do_not_hide_what_hangs(
    muster: Muster, brokers: TransactionBrokers, hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.committed = {"orders": {"billing": 12, "secret": 12}}
    brokers.hidden_groups = {"secret"}
    (told,) = muster("transactions", "find-hanging", "--output", "json").json
    assert [group["group_id"] for group in told["held_back"]] == ["billing"]

    async def gone(*_: object) -> None:
        raise ConnectionLost("gone")

    monkeypatch.setattr(hanging_calls, "find_held_back_groups", gone)
    ended = muster("transactions", "find-hanging")
    assert ended.code == 1
    assert ended.out.splitlines()[1].endswith("no coordinator knows producer id 7")
    assert "held back" not in ended.out
    assert ended.err == "muster transactions find-hanging: orders-0: gone (NETWORK_EXCEPTION)\n"


def test_what_ends_while_the_coordinators_are_asked_is_not_aborted(
    muster: Muster, brokers: TransactionBrokers, hanging: int
) -> None:
    """The producer may have its next transaction open by then."""
    (state,) = brokers.producers["orders"]
    following = copy(state)
    following.current_txn_start_offset = 40
    brokers.after[ApiKey.LIST_TRANSACTIONS] = lambda: brokers.producers.update(orders=[following])
    abort = ("transactions", "abort", "--topic", "orders", "--partition", "0", "--producer-id", "7")
    assert muster.refused(*abort, "--execute") == (
        "muster transactions abort: orders-0, producer id 7, epoch 1, from offset 12 on: it has ended "
        "meanwhile; nothing was changed\n"
    )
    assert not brokers.requests_of(WriteTxnMarkersRequest)


def test_timestamps_that_are_no_dates(muster: Muster, brokers: TransactionBrokers, hanging: int) -> None:
    brokers.began_at = {"orders": -(2**62)}
    assert f"  {-(2**62)} ms  " in muster.done("transactions", "find-hanging")


def test_who_may_not_read_configs_says_how_long(
    muster: Muster, brokers: TransactionBrokers, hanging: int
) -> None:
    brokers.codes[ApiKey.DESCRIBE_CONFIGS] += [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
    assert "say --longer-than, such as 20m" in muster.refused("transactions", "find-hanging")
    muster.done("transactions", "find-hanging", "--longer-than", "20m")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("list --state ongoin", "'ongoin' is not allowed, did you mean Ongoing?"),
        ("list --producer-id x", "'x' is not allowed; it takes a whole number"),
        ("list --longer-than 5", "it has no unit: 5s is seconds"),
        ("describe", "the following arguments are required: ID"),
        ("find-hanging --partition 1", "--partition: it takes a --topic, too"),
        ("find-hanging --broker 1 --topic t", "not allowed with argument --broker"),
        ("abort --topic t --partition 0", "one of the arguments --start-offset --producer-id is required"),
        ("abort --topic t --start-offset 0", "the following arguments are required: --partition"),
    ],
)
def test_what_is_wrong_is_named(muster: Muster, words: str, why: str) -> None:
    assert why in muster.misused("transactions", *words.split())


def test_an_empty_id(muster: Muster) -> None:
    assert "'' is not allowed; it takes a name" in muster.misused("transactions", "describe", "")


def test_offsets_that_hang_are_found_and_aborted(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(**UNVERIFIED) as broker:
        broker.create_topic("orders")
        muster = Muster(broker.bootstrap, capfd)
        number = str(GROUPS.route("billing", 50))
        with WireConnection("127.0.0.1", broker.port, "app") as wire:
            part = TxnOffsetCommitRequest.Partition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
            topic = TxnOffsetCommitRequest.Topic(name="orders", partitions=[part])
            commit = TxnOffsetCommitRequest(
                transactional_id="stray", group_id="billing", producer_id=7, producer_epoch=0, topics=[topic]
            )
            (answered,) = wire.call(commit, 3, TxnOffsetCommitResponse).topics
            assert answered.partitions[0].error_code == 0
        assert broker.group("billing").pending_offsets() == {("orders", 0): 1}
        find = ("transactions", "find-hanging", "--longer-than", "0s")
        header, found, _, waits, _, end = muster.done(*find).splitlines()
        assert header.startswith("TOPIC ")
        assert found.split()[:2] == ["__consumer_offsets", number]
        assert found.endswith("no coordinator knows producer id 7")
        assert waits == "The groups whose offsets one in __consumer_offsets commits wait for them."
        words = end.removeprefix("To end it: muster ").split()
        assert "aborted" in muster.done(*words, "--execute")
        assert broker.group("billing").pending_offsets() == {}
        assert muster.done(*find) == "no hanging transactions\n"


def test_on_muster_nothing_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        broker.create_topic("orders", 2)
        muster = Muster(broker.bootstrap, capfd)
        assert muster.done("transactions", "find-hanging") == "no hanging transactions\n"
        abort = ("transactions", "abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")
        assert "none is open there" in muster.refused(*abort, "--execute")
