"""The options of the source, named as in Spark's own `kafka` source, and their values.

Everything is checked before a broker is contacted. An option that only Spark's source has is refused by name,
and so is an unknown one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeAlias

from muster.client.network.cluster import parse_bootstrap
from muster.client.partitions import TopicPartition
from muster.pipeline import access
from muster.pipeline.access import NOTHING_TO_SHOW, Access
from muster.pipeline.errors import OptionError

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""In offsets by partition, these stand for the ends of the log."""

_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_SUBSCRIPTIONS: Final = ("subscribe", "assign", "subscribePattern")
_BOTH: Final = (
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    _BOOTSTRAP,
    "kafka.group.id",
    "kafka.client.id",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
)
_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM: Final = ("maxOffsetsPerTrigger", "commitOffsets")
NAMES: Final = (*_BOTH, *_BATCH, *_STREAM)
"""Every option, in its canonical spelling."""

_OF_SPARK_ALONE: Final = (
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_IGNORED: Final = frozenset({"path"})
"""Spark adds these to the options itself."""
_OF_A_TABLE: Final = "provider"
"""Spark adds this only for CREATE TABLE ... USING."""
_TAKE_A_VIEW: Final = (
    "the catalog keeps no OPTIONS for a format written in Python,"
    " CREATE TEMPORARY VIEW ... USING muster OPTIONS (...) does"
)

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FETCH_BYTES: Final = 1024 * 1024
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Edge(Enum):
    """A bound that is looked up when it is needed."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    """The committed offsets of the group `kafka.group.id`."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """An offset for each partition; EARLIEST_OFFSET and LATEST_OFFSET stand for the ends of the log."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time in epoch ms: one for all partitions, or one for each."""

    timestamps_ms: int | Mapping[TopicPartition, int]
    else_latest: bool
    """Whether to take the end of the log if there is no such record; otherwise that is an error."""


Bound: TypeAlias = Edge | Exactly | AtTime


@dataclass(frozen=True, slots=True)
class Topics:
    """What to read: topics by name, topics whose names contain a match of a pattern, or partitions. Exactly
    one is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        return ", ".join(self.names or map(str, self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a reader. Picklable, because they are sent to the executors."""

    bootstrap_servers: str
    topics: Topics
    starting: Bound
    ending: Bound = Edge.LATEST
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    group_id: str | None = None
    commit_offsets: bool = False
    """Whether to commit progress to the group."""
    client_id: str = "muster-spark"
    read_committed: bool = False
    partition_fetch_bytes: int = field(default=_FETCH_BYTES)
    access: Access = NOTHING_TO_SHOW
    """How the job authenticates to brokers."""

    @property
    def starts_the_same(self) -> bool:
        """Whether `starting` stands for the same offsets later, as long as they exist."""
        if isinstance(self.starting, Exactly):
            return LATEST_OFFSET not in self.starting.offsets.values()
        if isinstance(self.starting, AtTime):
            return not self.starting.else_latest
        return self.starting is Edge.EARLIEST or (self.starting is Edge.GROUP and self.commit_offsets)


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a batch or of a stream. Names are case-insensitive, as in Spark. Raises OptionError for
    invalid options."""
    values = check_names(given)
    for name in _BATCH if streaming else _STREAM:
        if name.lower() in values:
            raise OptionError(
                f"option {name}: a stream has no end, the option is for spark.read"
                if streaming
                else f"option {name}: it is for spark.readStream: a batch does not hear what was done with it"
            )
    group_id = values.get("kafka.group.id")
    if group_id == "":
        raise OptionError("option kafka.group.id: the name of a group is not empty")
    starting = _bound(values, "starting", Edge.LATEST if streaming else Edge.EARLIEST)
    ending = _bound(values, "ending", Edge.LATEST)
    _check_bounds(starting, ending, group_id, streaming=streaming)
    commit = _flag(values, "commitOffsets", streaming and group_id is not None)
    if commit and group_id is None:
        raise OptionError("option commitOffsets: name the group to commit to with kafka.group.id")
    isolation = values.get("kafka.isolation.level", "read_uncommitted")
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(
            f"option kafka.isolation.level: read_uncommitted or read_committed, not {isolation!r}"
        )
    return SourceOptions(
        bootstrap_servers=_servers(values),
        topics=_topics(values),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger", _INT64_MAX),
        min_partitions=_number(values, "minPartitions", _INT32_MAX),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        include_headers=_flag(values, "includeHeaders", False),
        group_id=group_id,
        commit_offsets=commit,
        client_id=values.get("kafka.client.id") or "muster-spark",
        read_committed=isolation == "read_committed",
        partition_fetch_bytes=_number(values, "kafka.max.partition.fetch.bytes", _INT32_MAX) or _FETCH_BYTES,
        access=Access.of(values),
    )


def include_headers(given: Mapping[str, str]) -> bool:
    """Whether rows have the headers column."""
    return _flag({name.lower(): value for name, value in given.items()}, "includeHeaders", False)


def check_names(given: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-case name. Raises OptionError for an unknown name."""
    known = {name.lower(): name for name in NAMES}
    elsewhere = {name.lower(): name for name in _OF_SPARK_ALONE}
    values: dict[str, str] = {}
    if any(name.lower() == _OF_A_TABLE for name in given):
        raise OptionError(f"CREATE TABLE: nothing could be read from it; {_TAKE_A_VIEW}")
    for name, value in given.items():
        lower = name.lower()
        if lower in elsewhere:
            raise OptionError(
                f"option {elsewhere[lower]}: Spark's kafka source has it, this one does not; it has "
                f"{', '.join(NAMES)}"
            )
        access.check_family(name)
        if lower not in known and lower not in _IGNORED and not access.is_about_access(lower):
            near = get_close_matches(lower, known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else "."
            there = ", ".join([*NAMES, access.SUMMARY])
            raise OptionError(f"option {name}: there is none of that name{hint} There are {there}")
        values[lower] = str(value).strip()
    return values


# --- one by one ---------------------------------------------------------------------------------------------


def _servers(values: Mapping[str, str]) -> str:
    given = values.get(_BOOTSTRAP)
    if given is None:
        # A table with explicit columns is created without asking the source, and read without options.
        of_table = "" if values else f"; if this is a table of the catalog: {_TAKE_A_VIEW}"
        raise OptionError(f"option {_BOOTSTRAP} is missing: it takes host:port[,host:port]{of_table}")
    try:
        parse_bootstrap(given)
    except ValueError as error:
        raise OptionError(f"option {_BOOTSTRAP}: {error}") from None
    return given


def _topics(values: Mapping[str, str]) -> Topics:
    given = [name for name in _SUBSCRIPTIONS if name.lower() in values]
    if len(given) != 1:
        what = f"not {' and '.join(given)}" if given else "and none is there"
        raise OptionError(f"options {', '.join(_SUBSCRIPTIONS)}: exactly one says what to read, {what}")
    name = given[0]
    text = values[name.lower()]
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                f"option subscribePattern: {text!r} is no regular expression: {error}"
            ) from None
        if not text:
            raise OptionError("option subscribePattern: a pattern is not empty")
        return Topics(pattern=text)
    if name == "subscribe":
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not names:
            raise OptionError("option subscribe: it takes topic[,topic]")
        for each in names:
            _check_topic(each, name)
        return Topics(names=names)
    shape = '{"topic":[0,1]}'
    told = _json(text, name, shape)
    partitions: list[TopicPartition] = []
    for topic, indexes in told.items():
        _check_topic(topic, name)
        if not isinstance(indexes, list) or not all(type(each) is int and each >= 0 for each in indexes):
            raise OptionError(
                f"option assign: topic {topic}: partitions are a list of numbers, as in {shape}"
            )
        partitions += [TopicPartition(topic, each) for each in indexes]
    if not partitions:
        raise OptionError(f"option assign: it takes partitions, as in {shape}")
    return Topics(partitions=tuple(sorted(set(partitions))))


def _bound(values: Mapping[str, str], side: str, otherwise: Bound) -> Bound:
    """Where to start or to end. As in Spark, a time for all partitions takes precedence over times by
    partition, and these over offsets."""
    strategy = "startingOffsetsByTimestampStrategy"
    how = values.get(strategy.lower(), "error").lower()
    if how not in ("error", "latest"):
        raise OptionError(f"option {strategy}: error or latest, not {how!r}")
    else_latest = how == "latest" or side == "ending"
    if (stamp := f"{side}Timestamp").lower() in values:
        text = values[stamp.lower()]
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise OptionError(f"option {stamp}: epoch milliseconds, not {text!r}")
        return AtTime(int(text), else_latest)
    if (stamps := f"{side}OffsetsByTimestamp").lower() in values:
        return AtTime(_by_partition(values[stamps.lower()], stamps, 0), else_latest)
    name = f"{side}Offsets"
    given = values.get(name.lower())
    if given is None:
        return otherwise
    if given.lower() in {edge.value for edge in Edge}:
        return Edge(given.lower())
    return Exactly(_by_partition(given, name, EARLIEST_OFFSET))


def _check_bounds(starting: Bound, ending: Bound, group_id: str | None, *, streaming: bool) -> None:
    if starting is Edge.GROUP and group_id is None:
        raise OptionError("option startingOffsets: group takes the name of the group, in kafka.group.id")
    if ending in (Edge.EARLIEST, Edge.GROUP):
        raise OptionError("option endingOffsets: latest, or offsets by partition")
    if isinstance(ending, Exactly) and EARLIEST_OFFSET in ending.offsets.values():
        raise OptionError("option endingOffsets: -2 (earliest) is no place to end at")
    if streaming:
        return
    if starting is Edge.LATEST:
        raise OptionError("option startingOffsets: latest leaves a batch nothing to read")
    if isinstance(starting, Exactly) and LATEST_OFFSET in starting.offsets.values():
        raise OptionError("option startingOffsets: -1 (latest) leaves a batch nothing to read")


def _by_partition(text: str, name: str, least: int) -> dict[TopicPartition, int]:
    shape = '{"topic":{"0":23,"1":-2}}' if least < 0 else '{"topic":{"0":1700000000000}}'
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json(text, name, shape).items():
        if "#" in topic:
            continue  # what this source keeps beside its offsets; see offsets.py
        _check_topic(topic, name)
        if not isinstance(numbers, dict):
            raise OptionError(f"option {name}: topic {topic}: numbers by partition, as in {shape}")
        for partition, number in numbers.items():
            if not re.fullmatch(r"[0-9]{1,9}", partition):
                raise OptionError(f"option {name}: topic {topic}: {partition!r} is no partition; see {shape}")
            if type(number) is not int or not least <= number <= _INT64_MAX:
                raise OptionError(
                    f"option {name}: {topic}-{partition}: {number!r} is not allowed; see {shape}"
                )
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        words = "" if least == 0 else "earliest, latest or group, or "
        raise OptionError(f"option {name}: {words}numbers by partition, as in {shape}")
    return found


def _json(text: str, name: str, shape: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        words = ""
        if name in ("startingOffsets", "endingOffsets"):
            words = "earliest, latest, group or " if name == "startingOffsets" else "latest or "
        raise OptionError(f"option {name}: {words}JSON such as {shape}, not {text!r}")
    return told


def _check_topic(topic: str, name: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise OptionError(f"option {name}: {topic!r} is no topic: letters, digits, dots, dashes, underscores")


def _number(values: Mapping[str, str], name: str, most: int) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= most:
        raise OptionError(f"option {name}: a whole number above 0, not {text!r}")
    return int(text)


def _flag(values: Mapping[str, str], name: str, otherwise: bool) -> bool:
    text = values.get(name.lower())
    if text is None:
        return otherwise
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name}: true or false, not {text!r}")
    return text.lower() == "true"
