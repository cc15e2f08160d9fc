"""When the results of two codecs count as equal."""

from __future__ import annotations

from math import nan

from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.quotas import DescribeClientQuotasResponse
from tests.fuzz.judge import same


def quota(value: float) -> DescribeClientQuotasResponse:
    entry = DescribeClientQuotasResponse.EntryData
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[entry(entity=[], values=[entry.ValueData(key="producer_byte_rate", value=value)])],
    )


def produced(records: bytes) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    return ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[topic(name="t", partition_data=[topic.PartitionProduceData(index=0, records=records)])],
    )


def test_a_nan_read_twice_is_the_same() -> None:
    assert quota(float("nan")) != quota(float("nan"))
    assert same(quota(float("nan")), quota(float("nan")))


def test_a_nan_is_no_other_number() -> None:
    assert not same(quota(nan), quota(1.0))
    assert not same(quota(1.0), quota(nan))


def test_long_bytes_that_print_alike_are_told_apart() -> None:
    one, other = produced(bytes(1_000)), produced(b"\x01" * 1_000)
    assert repr(one) == repr(other)
    assert not same(one, other)


def test_where_it_ends_counts() -> None:
    assert not same((quota(nan), "", 7), (quota(nan), "", 8))
    assert not same([nan], [nan, nan])
    assert not same([nan], (nan,))
