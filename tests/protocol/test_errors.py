"""Error codes and exceptions."""

from __future__ import annotations

import pytest

from muster.protocol.errors import DecodeError, EncodeError, ErrorCode, KafkaError

# The classes that Java's client derives from RetriableException, by code.
RETRIABLE = {
    2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89,
    100, 103, 106, 122, 123, 133,
}  # fmt: skip


def test_every_code_is_there_once() -> None:
    assert [code.value for code in ErrorCode] == list(range(-1, 137))


def test_retriable() -> None:
    assert {code.value for code in ErrorCode if code.retriable} == RETRIABLE


def test_a_code_is_a_number_with_a_text() -> None:
    code = ErrorCode(27)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert code == 27
    assert code.text == "the group is rebalancing; rejoin"
    assert not code.retriable
    assert f"{code:d}" == "27"
    texts = [code.text for code in ErrorCode]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_unknown_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="137"):
        ErrorCode(137)


def test_kafka_error() -> None:
    error = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "m-1 is not in orders")
    assert (error.code, error.why) == (25, "m-1 is not in orders")
    assert str(error) == "UNKNOWN_MEMBER_ID: m-1 is not in orders"
    assert KafkaError(ErrorCode.NONE).why == "no error"


def test_codec_errors_are_value_errors() -> None:
    assert issubclass(DecodeError, ValueError)
    assert issubclass(EncodeError, ValueError)
    assert not issubclass(DecodeError, KafkaError)
