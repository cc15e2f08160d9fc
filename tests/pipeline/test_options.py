"""The options of the source: what they mean, and how wrong ones are refused. No broker is contacted."""

from __future__ import annotations

import pickle

import pytest

from muster.client import TopicPartition
from muster.pipeline.errors import OptionError
from muster.pipeline.options import (
    NAMES,
    AtTime,
    Edge,
    Exactly,
    Topics,
    check_names,
    include_headers,
    source_options,
)

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9999"}
ORDERS = {**SERVERS, "subscribe": "orders"}
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_what_is_not_said_is_as_in_sparks_own_source() -> None:
    stream, batch = source_options(ORDERS, streaming=True), source_options(ORDERS, streaming=False)
    assert (stream.starting, batch.starting, batch.ending) == (Edge.LATEST, Edge.EARLIEST, Edge.LATEST)
    assert stream.fail_on_data_loss
    assert not any((stream.include_headers, stream.read_committed, stream.commit_offsets))
    assert stream.max_offsets_per_trigger is stream.min_partitions is None
    assert pickle.loads(pickle.dumps(stream)) == stream


def test_names_are_taken_in_any_case() -> None:
    given = {"KAFKA.Bootstrap.Servers": "127.0.0.1:9999", "SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "7"}
    options = source_options({**given, "IncludeHeaders": "TRUE"}, streaming=True)
    assert options.topics == Topics(names=("a", "b"))
    assert options.max_offsets_per_trigger == 7
    assert options.include_headers
    assert include_headers({"INCLUDEheaders": "true"})


def test_three_ways_to_say_what_is_read() -> None:
    assign = source_options({**SERVERS, "assign": '{"orders":[1,0,1]}'}, streaming=False)
    assert assign.topics == Topics(partitions=(ZERO, ONE))
    pattern = source_options({**SERVERS, "subscribePattern": "or.*"}, streaming=False)
    assert pattern.topics == Topics(pattern="or.*")


def test_bounds() -> None:
    def bounds(streaming: bool = False, **given: str) -> tuple[object, object]:
        options = source_options({**ORDERS, **given}, streaming=streaming)
        return options.starting, options.ending

    exact = '{"orders":{"0":23,"1":-2},"orders#AAAAAAAAAAAAAAAAAAAAAA":{"0":4}}'
    assert bounds(startingOffsets=exact)[0] == Exactly({ZERO: 23, ONE: -2})
    assert bounds(True, startingOffsets='{"orders":{"0":-1}}')[0] == Exactly({ZERO: -1})
    assert bounds(endingOffsets='{"orders":{"0":-1}}')[1] == Exactly({ZERO: -1})
    assert bounds(startingTimestamp="1700000000000")[0] == AtTime(1_700_000_000_000, else_latest=False)
    by_partition = '{"orders":{"0":5}}'
    latest = {"startingOffsetsByTimestamp": by_partition, "startingOffsetsByTimestampStrategy": "latest"}
    assert bounds(**latest)[0] == AtTime({ZERO: 5}, else_latest=True)
    assert bounds(endingOffsetsByTimestamp=by_partition)[1] == AtTime({ZERO: 5}, else_latest=True)
    # A time for all takes precedence over times by partition, and these over offsets.
    assert bounds(startingTimestamp="9", **latest)[0] == AtTime(9, else_latest=True)
    assert bounds(startingOffsets=exact, **latest)[0] == AtTime({ZERO: 5}, else_latest=True)
    group = {"startingOffsets": "group", "kafka.group.id": "billing"}
    assert bounds(True, **group)[0] is Edge.GROUP


def test_a_named_group_is_committed_to_unless_that_is_not_wanted() -> None:
    named = {**ORDERS, "kafka.group.id": "billing"}
    assert source_options(named, streaming=True).commit_offsets
    assert not source_options({**named, "commitOffsets": "false"}, streaming=True).commit_offsets
    assert not source_options(named, streaming=False).commit_offsets


@pytest.mark.parametrize(
    ("given", "streaming", "words"),
    [
        ({"subscribe": "a"}, True, "kafka.bootstrap.servers is missing"),
        ({**ORDERS, "kafka.bootstrap.servers": "nowhere"}, True, "kafka.bootstrap.servers: 'nowhere' is no"),
        (SERVERS, True, "subscribe, assign, subscribePattern: exactly one"),
        ({**ORDERS, "assign": "{}"}, True, "not subscribe and assign"),
        ({**SERVERS, "subscribe": " , "}, True, "option subscribe: it takes topic"),
        ({**SERVERS, "subscribe": "a b"}, True, "'a b' is no topic"),
        ({**SERVERS, "subscribePattern": "("}, True, "is no regular expression"),
        ({**SERVERS, "assign": "orders"}, True, "option assign: JSON such as"),
        ({**SERVERS, "assign": '{"orders":["0"]}'}, True, "option assign: topic orders"),
        ({**SERVERS, "assign": "{}"}, True, "option assign: it takes partitions"),
        (
            {**ORDERS, "startingOffset": "earliest"},
            True,
            "option startingOffset: there is none of that name; did you mean startingOffsets?",
        ),
        (
            {**ORDERS, "kafka.security.protocol": "TLS"},
            True,
            "option kafka.security.protocol='TLS': it takes 'PLAINTEXT'",
        ),
        ({**ORDERS, "minOffsetsPerTrigger": "5"}, True, "minOffsetsPerTrigger: Spark's kafka source has it"),
        ({**ORDERS, "endingOffsets": "latest"}, True, "option endingOffsets: a stream has no end"),
        ({**ORDERS, "maxOffsetsPerTrigger": "1"}, False, "option maxOffsetsPerTrigger: it is for"),
        (
            {**ORDERS, "startingOffsets": "newest"},
            True,
            "option startingOffsets: earliest, latest, group or JSON",
        ),
        ({**ORDERS, "startingOffsets": "latest"}, False, "option startingOffsets: latest leaves"),
        ({**ORDERS, "startingOffsets": '{"orders":{"0":-1}}'}, False, "option startingOffsets: -1"),
        ({**ORDERS, "startingOffsets": '{"orders":{"0":-3}}'}, True, "orders-0: -3 is not allowed"),
        ({**ORDERS, "startingOffsets": '{"orders":{"x":1}}'}, True, "'x' is no partition"),
        ({**ORDERS, "startingOffsets": '{"orders":[1]}'}, True, "topic orders: numbers by partition"),
        ({**ORDERS, "startingOffsets": "{}"}, True, "option startingOffsets: earliest, latest or group"),
        ({**ORDERS, "startingOffsets": "group"}, True, "kafka.group.id"),
        ({**ORDERS, "endingOffsets": "earliest"}, False, "option endingOffsets: latest, or"),
        ({**ORDERS, "endingOffsets": '{"orders":{"0":-2}}'}, False, "option endingOffsets: -2"),
        ({**ORDERS, "startingTimestamp": "yesterday"}, True, "option startingTimestamp: epoch milliseconds"),
        ({**ORDERS, "startingOffsetsByTimestampStrategy": "x"}, True, "error or latest, not 'x'"),
        ({**ORDERS, "maxOffsetsPerTrigger": "0"}, True, "a whole number above 0, not '0'"),
        ({**ORDERS, "minPartitions": "many"}, True, "option minPartitions: a whole number"),
        ({**ORDERS, "failOnDataLoss": "no"}, True, "option failOnDataLoss: true or false, not 'no'"),
        ({**ORDERS, "commitOffsets": "true"}, True, "option commitOffsets: name the group"),
        ({**ORDERS, "kafka.group.id": ""}, True, "option kafka.group.id"),
        (
            {**ORDERS, "kafka.isolation.level": "dirty"},
            True,
            "read_uncommitted or read_committed, not 'dirty'",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    given: dict[str, str], streaming: bool, words: str
) -> None:
    with pytest.raises(OptionError) as refused:
        source_options(given, streaming=streaming)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(OptionError) as refused:
        source_options({**ORDERS, "zzz": "1"}, streaming=True)
    assert all(name in str(refused.value) for name in NAMES)


def test_a_table_of_the_catalog_is_refused_with_the_way_that_works() -> None:
    """What Spark passes for CREATE TABLE; a reader of that table would get nothing at all."""
    of_table = {f"option.{name}": value for name, value in ORDERS.items()}
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        check_names({**ORDERS, **of_table, "provider": "muster", "owner": "somebody"})
