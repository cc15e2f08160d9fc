"""Records of `__transaction_state`: bytes written by hand from Kafka's schemas, and what readers tolerate."""

from __future__ import annotations

import pytest

from muster.coordinator.transactions.states import TransactionState
from muster.coordinator.transactions.transaction import Transaction, from_row, to_row
from muster.protocol.errors import DecodeError

ONGOING = Transaction(
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    last_update_ms=2,
    partitions=frozenset({("t", 2), ("t", 0)}),
    started_ms=1,
    client_version=2,
)
KEY = bytes.fromhex("0000 0005 65746c2d31")
VALUE = bytes.fromhex(
    "0001 0000000000000007 0003 0000ea60 01"  # version, producer id and epoch, timeout, Ongoing
    "02 0274 03 00000000 00000002 00"  # partitions 0 and 2 of t
    "0000000000000002 0000000000000001"  # last update, start
    "01 02 02 0002"  # one tag: the client's version
)


def test_the_bytes_of_a_record() -> None:
    assert to_row("etl-1", ONGOING) == (KEY, VALUE)
    assert from_row(KEY, VALUE) == ("etl-1", ONGOING)


def test_every_field_comes_back() -> None:
    full = ONGOING._replace(previous_producer_id=5, next_producer_id=9, state=TransactionState.PREPARE_ABORT)
    assert from_row(*to_row("x", full)) == ("x", full)
    empty = Transaction(7, 0, 1, TransactionState.EMPTY, 2)
    assert from_row(*to_row("x", empty)) == ("x", empty)


def test_a_tombstone() -> None:
    assert to_row("etl-1", None) == (KEY, None)
    assert from_row(KEY, None) == ("etl-1", None)


def test_the_version_of_old_brokers() -> None:
    old = bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 01 00000001 0001 74 00000002 00000000 00000002"
        "0000000000000002 0000000000000001"
    )
    assert from_row(KEY, old) == ("etl-1", ONGOING._replace(client_version=0))
    empty = bytes.fromhex("0000 0000000000000007 0003 0000ea60 00 ffffffff 0000000000000002 ffffffffffffffff")
    found = from_row(KEY, empty)
    assert found is not None
    assert found[1] == Transaction(7, 3, 60_000, TransactionState.EMPTY, 2)


def test_what_readers_forgive_and_what_not() -> None:
    assert from_row(bytes.fromhex("0001 0005 65746c2d31"), VALUE) is None, "another type of record"
    for damaged in (b"", VALUE[:-1], b"\x00\x02" + VALUE[2:], VALUE[:16] + b"\x07" + VALUE[17:]):
        with pytest.raises(DecodeError):
            from_row(KEY, damaged)
