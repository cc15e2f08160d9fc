"""A group's offsets are reset to where Kafka's own tool, kafka-consumer-groups, would reset them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from muster.client import (
    At,
    By,
    Current,
    Earliest,
    ErrorCode,
    KafkaError,
    Latest,
    Offset,
    Shift,
    TopicPartition,
)
from muster.client.admin.reset import Target
from tests.interop.behaviour import targets
from tests.interop.behaviour.place import Place
from tests.interop.behaviour.test_admin import log_of_ten
from tests.interop.programs.wrapped.console_admin import Tools
from tests.interop.story.clients.java import CONSOLE

SECOND_0 = datetime(1970, 1, 1, tzinfo=UTC)
LONG_AGO = timedelta(days=100_000)

CASES: list[tuple[Target, list[str]]] = [
    (Earliest(), ["--to-earliest"]),
    (Latest(), ["--to-latest"]),
    (Current(), ["--to-current"]),
    (Offset(7), ["--to-offset", "7"]),
    (Offset(0), ["--to-offset", "0"]),
    (Offset(99), ["--to-offset", "99"]),
    (Shift(2), ["--shift-by", "2"]),
    (Shift(-1), ["--shift-by", "-1"]),
    (Shift(-4), ["--shift-by", "-4"]),
    (Shift(99), ["--shift-by", "99"]),
    (At(SECOND_0 + timedelta(seconds=8)), ["--to-datetime", "1970-01-01T00:00:08.000Z"]),
    (At(SECOND_0 + timedelta(seconds=8, milliseconds=1)), ["--to-datetime", "1970-01-01T00:00:08.001Z"]),
    (At(SECOND_0 + timedelta(days=1)), ["--to-datetime", "1970-01-02T00:00:00.000Z"]),
    (By(timedelta(minutes=1)), ["--by-duration", "PT1M"]),
    (By(timedelta(days=20_000)), ["--by-duration", "P20000D"]),
]


@pytest.fixture(scope="module")
def tools(target: targets.Target) -> Iterator[Tools]:
    CONSOLE.prepare()
    interpreter_and_module = 3
    with Tools(CONSOLE.command()[interpreter_and_module:-1], target.bootstrap) as tools:
        yield tools


def told(output: str) -> dict[TopicPartition, int]:
    """The offsets in a tool's table."""
    rows = re.findall(r"(?m)^\S+\s+(\S+)\s+(\d+)\s+(\d+)\s*$", output)
    return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}


async def test_every_target(place: Place, tools: Tools) -> None:
    admin, (full, empty), group = place.admin, await log_of_ten(place), place.group
    different = []
    for committed in ({full: 5}, {full: 1, empty: 0}, {full: 5, empty: 9}):
        await admin.alter_group_offsets(group, committed)
        for to, options in CASES:
            # The tool gives up on a partition that it cannot shift; we report just that partition.
            scope = [full] if isinstance(to, Shift) and empty not in committed else [full, empty]
            topic = f"{full.topic}:{','.join(str(each.partition) for each in scope)}"
            code, output = tools.run(
                "kafka-consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, *options,
                "--dry-run",
            )  # fmt: skip
            ours = await admin.reset_group_offsets(group, to, partitions=scope, dry_run=True)
            places = {where: each.after for where, each in ours.raise_for_failures().items()}
            if (code, told(output)) != (0, places):
                different.append((committed, to, places, code, output))
    assert not different, "\n".join(map(str, different))


async def test_what_the_tool_executes_is_what_we_execute(place: Place, tools: Tools) -> None:
    admin, partitions, group = place.admin, await log_of_ten(place), place.group
    options = ("--reset-offsets", "--topic", partitions[0].topic, "--to-offset", "4", "--execute")
    code, output = tools.run("kafka-consumer-groups", "--group", group, *options)
    assert code == 0, output
    theirs = await admin.list_group_offsets(group)
    await admin.reset_group_offsets(f"{group}-2", Offset(4), topics=[partitions[0].topic])
    assert await admin.list_group_offsets(f"{group}-2") == theirs
    assert [each.offset for each in theirs.values()] == [4, 0]


async def test_an_active_group_is_refused(place: Place, tools: Tools) -> None:
    topic, group = await place.topic(), place.group
    async with place.member([topic]):
        await place.until_members(1)
        _, output = tools.run(
            "kafka-consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest",
            "--dry-run",
        )  # fmt: skip
        assert "inactive" in output
        assert told(output) == {}
        with pytest.raises(KafkaError) as refused:
            await place.admin.reset_group_offsets(group, Earliest(), topics=[topic], dry_run=True)
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
