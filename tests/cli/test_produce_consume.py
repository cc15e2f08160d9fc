"""`muster produce` and `muster consume`, as a user runs them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import time
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from muster.client import Producer, TopicPartition
from muster.client.producer import RecordFuture
from muster.coordinator.commands import consume, streams
from muster.coordinator.commands.options import since_ms, timestamp_ms
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster, run, started
from tests.support.each import each

ALL = ("--from-beginning", "--until-end")
SHOWN = "{partition} {offset} {timestamp} {key} [{headers}] {value}"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Path of the input file for `muster produce`."""
    return tmp_path / "lines"


def test_lines_become_records_and_records_lines(broker: Broker) -> None:
    sent = run(broker.bootstrap, "produce", "t", stdin=b"one\ntwo\r\n\nfour")
    assert (sent.code, sent.out, sent.err) == (0, "4 records to t\n", "")
    read = run(broker.bootstrap, "consume", "t", *ALL)
    assert (read.code, read.out, read.err) == (0, "one\ntwo\n\nfour\n", "")


def test_a_line_is_sent_when_it_is_typed(broker: Broker) -> None:
    process = started(broker.bootstrap, "produce", "t", "--output", "json")
    assert process.stdin is not None
    assert process.stdout is not None
    for index in range(3):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert f'"offset": {index}'.encode() in process.stdout.readline()
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
    assert process.returncode == 0


def test_all_is_sent_though_the_reader_of_the_acknowledgements_goes(broker: Broker) -> None:
    process = started(broker.bootstrap, "produce", "t", "--output", "json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None  # `communicate` would read it
    _, err = process.communicate(b"line\n" * 100_000, timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert run(broker.bootstrap, "consume", "t", *ALL).out.count("\n") == 100_001


def test_lines_are_read_while_earlier_ones_are_on_their_way(broker: Broker) -> None:
    """With a distant broker, the round trip is paid once, not for every piece of the input."""
    broker.create_topic("t")
    with broker.faults.add(api="Produce", delay="1h") as rule:
        process = started(broker.bootstrap, "produce", "t", "--timeout", "3600")
        assert process.stdin is not None
        try:
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, 4_096)
            process.stdin.write(b"first\n")
            process.stdin.flush()
            rule.hit()
            process.stdin.write(b"x" * 4_000 + b"\n")
            process.stdin.flush()
            # The pipe has room again once the line has been read.
            assert select.select([], [process.stdin], [], DEADLINE_S)[1]
        finally:
            process.kill()
            process.communicate()


def test_keys_headers_timestamps_and_nulls(muster: Muster, lines: Path) -> None:
    lines.write_text("a:1\nb:2:x\n-:3\nc:-\n")
    muster.done("topics", "create", "t")
    muster.done(
        "produce", "t", "--file", str(lines), "--key-separator", ":", "--null-marker", "-", "--header", "h=1",
        "--header", "e=", "--timestamp", "2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    assert muster.done("consume", "t", *ALL, "--format", SHOWN).splitlines() == [
        "0 0 1767225600000 a [h:1,e:] 1",
        "0 1 1767225600000 b [h:1,e:] 2:x",
        "0 2 1767225600000 null [h:1,e:] 3",
        "0 3 1767225600000 c [h:1,e:] null",
    ]
    assert muster.done("consume", "t", *ALL, "--format", r"{key}\t\\{value}", "--null-marker", "") == (
        "a\t\\1\nb\t\\2:x\n\t\\3\nc\t\\\n"
    )
    lines.write_text("x\n")
    muster.done("produce", "t", "--file", str(lines), "--key", "k", "--acks", "1")
    assert (
        muster.done("consume", "t", "--offset", "4", "--max-messages", "1", "--format", "{topic} {key}")
        == "t k\n"
    )


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1999-12-31T23:59:59.999999Z", 946_684_799_999),
        ("2004-05-03T07:52:24.149Z", 1_083_570_744_149),
        ("2038-06-21T06:56:57.207Z", 2_160_716_217_207),
    ],
)
def test_a_time_is_exact_to_the_millisecond(text: str, at_ms: int) -> None:
    assert timestamp_ms(text) == at_ms


def test_a_time_without_a_zone_is_local_as_the_help_says(muster: Muster) -> None:
    assert timestamp_ms("2026-01-31T12:00:00") == since_ms("2026-01-31T12:00:00")
    assert timestamp_ms("2026-01-31T12:00:00") == round(time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1)) * 1000)
    for command in ("produce", "consume"):
        assert "(without a zone: local time)" in " ".join(muster(command, "--help").out.split())


@each(
    "text, said",
    [
        ("20260131", "'20260131' is not allowed: it looks like a date; write 2026-01-31"),
        ("20260131235959", "it looks like a date and time; write 2026-01-31T23:59:59"),
        ("202601312359", "it looks like a date and time; write 2026-01-31T23:59$"),
        ("1767225600", "'1767225600' is not allowed: it looks like epoch seconds; write 1767225600000"),
        ("2026013123", "epoch seconds, or a date and hour; write 2026013123000, or 2026-01-31T23:00$"),
        ("2026013124", "it looks like epoch seconds; write 2026013124000$"),
    ],
)
def test_digits_that_hardly_are_milliseconds_are_no_time(text: str, said: str) -> None:
    for read in (timestamp_ms, since_ms):
        with pytest.raises(ArgumentTypeError, match=said):
            read(text)


@each(
    "text",
    [
        "0",
        "1500",
        "20261331",
        "99999999",
        "202601312460",
        "20260131246060",
        "999999999",
        "0000000001",
        "1767225600000",
    ],
)
def test_other_digits_are_milliseconds(text: str) -> None:
    assert timestamp_ms(text) == since_ms(text) == int(text)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_lines_keep_their_order_whatever_packs_them(
    muster: Muster, lines: Path, compression: str
) -> None:
    text = "".join(f"line {index} {'x' * (index % 100)}\n" for index in range(20_000))
    lines.write_text(text)
    said = muster.done("produce", "t", "--file", str(lines), "--compression", compression)
    assert said == "20000 records to t\n"
    assert muster.done("consume", "t", *ALL) == text


def test_json_lines_go_there_and_back(muster: Muster, lines: Path, tmp_path: Path) -> None:
    lines.write_text(
        '{"key": "k", "value": "v", "headers": [["h", null], ["i", "é"]], "partition": 1, "timestamp": 7}\n'
        '{"key": {"base64": "/w=="}, "value": null, "partition": 0, "timestamp": 8}\n'
    )
    for topic in ("t", "u"):
        muster.done("topics", "create", topic, "--partitions", "2")
    sent = muster("produce", "t", "--file", str(lines), "--format", "json", "--output", "json")
    assert sent.lines == [
        {"topic": "t", "partition": 1, "offset": 0, "timestamp": 7},
        {"topic": "t", "partition": 0, "offset": 0, "timestamp": 8},
    ]
    read = muster("consume", "t", *ALL, "--output", "json")
    assert read.lines == [
        {
            "topic": "t", "partition": 0, "offset": 0, "timestamp": 8,
            "key": {"base64": "/w=="}, "value": None, "headers": [],
        },
        {
            "topic": "t", "partition": 1, "offset": 0, "timestamp": 7,
            "key": "k", "value": "v", "headers": [["h", None], ["i", "é"]],
        },
    ]  # fmt: skip
    copy = tmp_path / "copy"
    copy.write_text(read.out)
    muster.done("produce", "u", "--file", str(copy), "--format", "json")
    again = muster("consume", "u", *ALL, "--output", "json").lines
    assert [each | {"topic": "t"} for each in again] == read.lines


def test_a_record_without_a_timestamp_is_sent_with_the_time_of_now(muster: Muster, lines: Path) -> None:
    lines.write_text('{"value": "v", "timestamp": -1}\n')
    before_ms = time.time_ns() // 1_000_000
    muster.done("produce", "t", "--file", str(lines), "--format", "json")
    (read,) = muster("consume", "t", *ALL, "--output", "json").lines
    assert before_ms <= read["timestamp"] <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"vlaue": "v"}', "'vlaue' is not a field"),
        ('{"value": 1}', "value takes text"),
        ('{"value": {"base64": "?"}}', "value"),
        ('{"headers": {"a": "b"}}', "headers take [[name, value], ...]"),
        ('{"headers": [["\\ud800", "b"]]}', "headers take [[name, value], ...]"),
        ('{"partition": -1}', "partition takes a whole number"),
        ('{"timestamp": -2}', "timestamp takes a whole number"),
        ('{"timestamp": true}', "timestamp takes a whole number"),
    ],
)
def test_a_line_that_is_no_record_is_named(muster: Muster, lines: Path, line: str, said: str) -> None:
    lines.write_text(f'{{"value": "good"}}\n{line}\n{{"value": "after"}}\n')
    message = muster.refused("produce", "t", "--file", str(lines), "--format", "json")
    assert message.startswith("muster produce: line 2: ")
    assert said in message
    assert muster.done("consume", "t", *ALL) == "good\n"


async def test_lines_that_come_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = b"a\n" + b"b" * 20 + b"\r\n\nc\n" + b"d" * 9
    (tmp_path / "lines").write_bytes(text)
    for piece_bytes in range(1, 12):
        monkeypatch.setattr(streams, "_PIECE_BYTES", piece_bytes)
        descriptor = os.open(tmp_path / "lines", os.O_RDONLY)
        found = [line async for lines in streams.lines(descriptor) for line in lines]
        os.close(descriptor)
        assert found == [b"a", b"b" * 20, b"", b"c", b"d" * 9]


async def test_a_line_without_an_end_is_not_collected_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINE_BYTES_MAX", 1_000)
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(streams.LineTooLong):
        async for _ in streams.lines(descriptor):
            pass
    os.close(descriptor)


def test_a_line_without_a_separator_is_named(muster: Muster, lines: Path) -> None:
    lines.write_text("a:1\nb\n")
    message = muster.refused("produce", "t", "--file", str(lines), "--key-separator", ":")
    assert message == "muster produce: line 2: it does not contain ':'; the lines before it are written\n"
    lines.write_text("b\n")
    message = muster.refused("produce", "t", "--file", str(lines), "--key-separator", ":")
    assert message == "muster produce: line 1: it does not contain ':'\n"


@each("error", [ValueError("it takes something else"), RuntimeError("a defect")])
def test_a_record_that_the_producer_does_not_take_ends_the_command(
    muster: Muster, lines: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    post = Producer.post

    async def picky(self: Producer[bytes, bytes], topic: str, value: bytes, **more: Any) -> RecordFuture:
        if value == b"bad":
            raise error
        return await post(self, topic, value, **more)

    monkeypatch.setattr(Producer, "post", picky)
    lines.write_text("good\nbad\n")
    if isinstance(error, ValueError):
        said = muster.refused("produce", "t", "--file", str(lines))
        assert said == f"muster produce: line 2: {error}; the lines before it are written\n"
        assert muster.done("consume", "t", *ALL) == "good\n"
    else:
        with pytest.raises(RuntimeError, match="a defect"):
            muster("produce", "t", "--file", str(lines))


def test_what_a_broker_refuses_names_the_lines(muster: Muster, lines: Path) -> None:
    muster.done("topics", "create", "t", "--config", "max.message.bytes=2000")
    lines.write_text("x" * 5000 + "\n")
    message = muster.refused("produce", "t", "--file", str(lines))
    assert message.startswith("muster produce: line 1 was not written: ")
    assert "MESSAGE_TOO_LARGE" in message
    lines.write_text("x\ny\n")
    message = muster.refused("produce", "t", "--file", str(lines), "--partition", "7")
    assert message.startswith("muster produce: line 1 was not written: ")
    assert "no partition 7" in message


def test_a_topic_is_only_created_if_the_broker_does_that(
    capfd: pytest.CaptureFixture[str], lines: Path
) -> None:
    lines.write_text("x\n")
    with Broker(auto_create_topics_enable=False) as broker:
        message = Muster(broker.bootstrap, capfd).refused("produce", "nope", "--file", str(lines))
        assert "topic nope" in message


def test_where_to_begin_and_where_to_end(muster: Muster, lines: Path) -> None:
    muster.done("topics", "create", "t", "--partitions", "2")
    for partition, timestamp in ((0, 1000), (1, 2000), (0, 3000)):
        lines.write_text(f"{partition}@{timestamp}\n")
        muster.done(
            "produce", "t", "--file", str(lines), "--partition", str(partition), "--timestamp", str(timestamp)
        )

    def read(*options: str) -> list[str]:
        return sorted(muster.done("consume", "t", *options).split())

    assert read(*ALL) == ["0@1000", "0@3000", "1@2000"]
    assert read("--offset", "earliest", "--until-end", "--partition", "0") == ["0@1000", "0@3000"]
    assert read("--offset", "1", "--until-end") == ["0@3000"]
    assert read("--timestamp", "1500", "--until-end") == ["0@3000", "1@2000"]
    assert read("--timestamp", "9000", "--until-end") == []
    assert len(read("--timestamp", "1969-12-31T00:00:00Z", "--until-end")) == 3
    assert read("--offset", "latest", "--until-end") == []
    assert read("--until-end") == []
    assert read("--from-beginning", "--max-messages", "2", "--partition", "0") == ["0@1000", "0@3000"]
    assert read("--from-beginning", "--idle-timeout", "3") == ["0@1000", "0@3000", "1@2000"]


async def test_records_of_transactions_that_are_not_committed(broker: Broker) -> None:
    def read(isolation_level: str, *options: str) -> list[str]:
        options = (*options, "--isolation-level", isolation_level, "--from-beginning")
        said = run(broker.bootstrap, "consume", "t", *options)
        assert said.code == 0, said.err
        return said.out.split()

    async with Producer(broker.bootstrap, transactional_id="id") as producer:
        for value in (b"committed", b"aborted"):
            transaction = producer.transaction()
            await transaction.begin()
            await transaction.send("t", value)
            await (transaction.commit() if value == b"committed" else transaction.abort())
        # Markers at the end: there is no record at the last offsets.
        for level, values in (
            ("read_uncommitted", ["committed", "aborted"]),
            ("read_committed", ["committed"]),
        ):
            assert await asyncio.to_thread(read, level, "--until-end") == values
            group = ("--group", level, "--max-messages", str(len(values)))
            assert await asyncio.to_thread(read, level, *group) == values
        transaction = producer.transaction()
        await transaction.begin()
        await transaction.send("t", b"open")
        everything = await asyncio.to_thread(read, "read_uncommitted", "--until-end")
        assert everything == ["committed", "aborted", "open"]
        assert await asyncio.to_thread(read, "read_committed", "--until-end") == ["committed"]


def test_until_end_leaves_out_what_came_meanwhile(
    muster: Muster, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def as_of_two_records(*_: object) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        return {TopicPartition("t", 0): 0}, {TopicPartition("t", 0): 2}

    lines.write_text("1\n2\n3\n")
    muster.done("produce", "t", "--file", str(lines))
    monkeypatch.setattr(consume, "_positions", as_of_two_records)
    assert muster.done("consume", "t", *ALL) == "1\n2\n"


def test_without_a_start_it_reads_what_comes_next(broker: Broker) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"before\n")
    process = started(broker.bootstrap, "consume", "t", "--max-messages", "1")
    assert process.stdout is not None
    # The moment it reads the log end offset is not visible, so keep producing until it reads a record.
    sent = 0
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        run(broker.bootstrap, "produce", "t", stdin=b"after\n")
        sent += 1
    assert process.communicate(timeout=DEADLINE_S)[0] == b"after\n"
    assert sent >= 1


def test_a_group_goes_on_where_it_was(broker: Broker) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"1\n2\n3\n4\n5\n")
    options = ("consume", "t", "--group", "g", "--from-beginning")
    first = run(broker.bootstrap, *options, "--max-messages", "2")
    assert (first.code, first.out, first.err) == (0, "1\n2\n", "muster consume: group g assigned t-0\n")
    second = run(broker.bootstrap, *options, "--max-messages", "3")
    assert (second.code, second.out) == (0, "3\n4\n5\n")
    assert run(broker.bootstrap, *options, "--idle-timeout", "0.5").out == ""
    new = run(broker.bootstrap, "consume", "t", "--group", "new", "--idle-timeout", "0.5")
    assert new.out == ""  # without --from-beginning a new group starts at the end


@pytest.mark.parametrize(
    ("options", "type_"),
    [
        ((), "classic"),
        (("--group-protocol", "classic"), "classic"),
        (("--group-protocol", "consumer", "--group-remote-assignor", "range"), "consumer"),
        (("--group-protocol", "auto"), "consumer"),
    ],
)
def test_a_member_of_either_protocol(broker: Broker, options: tuple[str, ...], type_: str) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"1\n2\n")
    once = ("consume", "t", "--group", "g", *options, "--from-beginning", "--max-messages", "1")
    assert [run(broker.bootstrap, *once).out for _ in range(2)] == ["1\n", "2\n"]
    listed = run(broker.bootstrap, "groups", "list", "--output", "json").out
    assert [group["type"] for group in json.loads(listed)] == [type_]


@pytest.mark.parametrize("assignor", ["nope", "no\npe"])
def test_an_assignor_that_the_broker_does_not_have(muster: Muster, t: None, assignor: str) -> None:
    said = muster.refused(
        "consume", "t", "--group", "g", "--group-protocol", "consumer", "--group-remote-assignor", assignor
    )
    assert f"--group-remote-assignor {assignor!r}: it takes one of" in said
    assert "group_remote_assignor" not in said
    assert "None" not in said


def test_a_protocol_that_the_broker_does_not_have(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(group_coordinator_rebalance_protocols=("classic",)) as broker:
        broker.create_topic("t")
        said = Muster(broker.bootstrap, capfd).refused(
            "consume", "t", "--group", "g", "--group-protocol", "consumer"
        )
    assert "set --group-protocol 'classic', or --group-protocol 'auto' to use" in said
    assert "group_protocol" not in said


@pytest.mark.parametrize("delay_ms", [5_000, 60_000])
def test_a_group_is_idle_from_when_it_was_assigned(delay_ms: int) -> None:
    with Broker(group_initial_rebalance_delay_ms=delay_ms) as broker:
        run(broker.bootstrap, "produce", "t", stdin=b"1\n")
        options = ("consume", "t", "--group", "g", "--from-beginning", "--idle-timeout", "4.5")
        if delay_ms == 5_000:
            read = run(broker.bootstrap, *options, "--max-messages", "1")
            assert (read.code, read.out) == (0, "1\n")
        else:
            read = run(broker.bootstrap, *options, "--timeout", "1")
            assert (read.code, read.out) == (1, "")
            assert "group g: no assignment within 1 s: the group has not formed" in read.err


@pytest.fixture
def t(broker: Broker) -> None:
    """Creates topic `t`."""
    broker.create_topic("t")


@each(
    "arguments, said",
    [
        (["produce"], "TOPIC"),
        (["produce", "t", "--acks", "2"], "invalid choice: '2'"),
        (["produce", "t", "--key", "k", "--key-separator", ":"], "not allowed with argument --key"),
        (["produce", "t", "--key-separator", ""], "at least one character"),
        (["produce", "t", "--format", "json", "--key", "k"], "are for --format lines only"),
        (["produce", "t", "--timestamp", "yesterday"], "a time like"),
        (
            ["produce", "t", "--timestamp", "1969-12-31T00:00:00Z"],
            "--timestamp: '1969-12-31T00:00:00Z' is not allowed: records have no time before 1970; it takes",
        ),
        (["produce", "t", "--header", "x"], "NAME=VALUE"),
        (["produce", "t", "--header", "\udcff=x"], "--header: the name '\\udcff' is not valid UTF-8"),
        (["consume", "t", "--offset", "first"], "it takes earliest, latest or an offset"),
        (["consume", "t", "--offset", "-3"], "it takes earliest, latest or an offset"),
        (["consume", "t", "--offset", "1", "--from-beginning"], "not allowed with argument"),
        (["consume", "t", "--offset", "1"], "t-0 has no offset 1; its offsets are 0 to 0"),
        (["consume", "t", "--partition", "1"], "has no partition 1; it has 1"),
        (["consume", "t", "--format", "{values}"], "unknown field {values}; the fields are {topic}"),
        (["consume", "t", "--format", "{value!r}"], "unknown field {value!r}; the fields are {topic}"),
        (["consume", "t", "--group", "", "--from-beginning"], "'' is not allowed; it takes a name"),
        (
            ["consume", "t", "--group", "caf\udce9"],
            "--group: 'caf\\udce9' is not allowed; it takes text in UTF-8",
        ),
        (["consume", "t", "--group", "x" * 32_768], "text in UTF-8 of at most 32767 bytes"),
        (
            ["consume", "t", "--group", "g", "--group-protocol", "consumer", "--group-remote-assignor", ""],
            "--group-remote-assignor: '' is not allowed; it takes a name that is not blank",
        ),
        (
            [
                "consume",
                "t",
                "--group",
                "g",
                "--group-protocol",
                "consumer",
                "--group-remote-assignor",
                "\udce9",
            ],
            "--group-remote-assignor: '\\udce9' is not allowed; it takes text in UTF-8",
        ),
        (["consume", "t", "--group", "g", "--partition", "0"], "--group determines where to read"),
        (["consume", "t", "--group", "g", "--offset", "0"], "--group determines where to read"),
        (["consume", "t", "--group", "g", "--until-end"], "--group determines where to read"),
        (["consume", "t", "--group-protocol", "auto"], "--group-protocol is about members of a group"),
        (["consume", "t", "--group-remote-assignor", "range"], "add --group"),
        (
            ["consume", "t", "--group", "g", "--group-remote-assignor", "range"],
            "--group-remote-assignor: members of the classic protocol assign themselves",
        ),
        (["consume", "t", "--max-messages", "0"], "a whole number, 1 to"),
        (["consume", "t", "--isolation-level", "read_comitted"], "'read_comitted'"),
    ],
)
def test_a_wrong_command_line(muster: Muster, t: None, arguments: list[str], said: str) -> None:
    message = muster.misused(*arguments)
    assert message.startswith(f"muster {arguments[0]}: ")
    assert said in message


def test_lines_that_nobody_acknowledges_are_named(
    broker: Broker, lines: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines.write_text("one\ntwo\n")
    broker.create_topic("t")
    with broker.faults.add(api="Produce", delay="1h"):
        said = Muster(broker.bootstrap, capfd).refused("produce", "t", "--file", str(lines), "--timeout", "1")
    assert said.startswith(
        "muster produce: line 1 and some of those up to 2 were possibly not written: t-0: not acknowledged"
    )
    assert said.endswith(" (raise --timeout to wait longer)\n")


def test_what_is_not_there_is_one_line(muster: Muster, tmp_path: Path) -> None:
    assert "topic nope" in muster.refused("consume", "nope")
    assert "topic nope" in muster.refused("consume", "nope", "--group", "g")
    assert "No such file" in muster.refused("produce", "t", "--file", str(tmp_path / "nope"))
    assert f"--file {tmp_path}: Is a directory" in muster.refused("produce", "t", "--file", str(tmp_path))
