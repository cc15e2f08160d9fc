"""Kafka's command line tools for topics, configs, groups and brokers, each called like its script in Kafka's
bin folder, and judged by its output."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from tests.interop.programs.python.lines import complain
from tests.interop.programs.wrapped.console_consumer import consumer_command

_PACKAGE: Final = "org.apache.kafka.tools"
_TOOLS: Final = {
    "kafka-acls": f"{_PACKAGE}.AclCommand",
    "kafka-broker-api-versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_PACKAGE}.ClientMetricsCommand",
    "kafka-cluster": f"{_PACKAGE}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_PACKAGE}.ConsumerPerformance",
    "kafka-delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "kafka-features": f"{_PACKAGE}.FeatureCommand",
    "kafka-get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "kafka-groups": f"{_PACKAGE}.GroupsCommand",
    "kafka-leader-election": f"{_PACKAGE}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_PACKAGE}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_PACKAGE}.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": f"{_PACKAGE}.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": f"{_PACKAGE}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_PACKAGE}.TopicCommand",
    "kafka-transactions": f"{_PACKAGE}.TransactionsCommand",
}
# These want the bootstrap servers before the command's name.
_BOOTSTRAP_FIRST: Final = {"kafka-features", "kafka-metadata-quorum", "kafka-transactions"}
_RECORDS: Final = 20
_SOON_S: Final = 30.0
# Not every tool that fails exits with a nonzero status.
_FAILED: Final = re.compile(r"(?m)^Error\b")
_EARLY: Final = re.compile(r"UnknownTopicOrPartitionException|GroupIdNotFoundException|does not exist")
_EXCEPTION: Final = re.compile(r"\b(\w+(?:Exception|Error))\b")


class Tools:
    """A JVM that runs one tool after the other and prints the outcome of each."""

    def __init__(self, java: Sequence[str], bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._jvm = subprocess.Popen(
            [*java, "Tools"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, name: str, tool: str, *options: str, prints: str = "") -> None:
        """Call a tool, and print whether it succeeded with output that matches the pattern `prints`.

        One broker may learn only later what another has acknowledged: the call is repeated until it prints
        what it should.
        """
        deadline = time.monotonic() + _SOON_S
        while True:
            code, output = self.run(tool, *options)
            failed = code != 0 or _FAILED.search(output) is not None
            found = re.search(prints, output) is not None
            early = _EARLY.search(output) is not None if failed else not found
            if not early or time.monotonic() > deadline:
                break
            time.sleep(0.05)  # between two checks
        if found and not failed:
            line: dict[str, object] = {"call": name, "ok": True}
        else:
            complain(f"{name}: exit {code}, printed:\n{output}")
            error = _EXCEPTION.search(output)
            text = error[1] if error else f"exit {code}, and no {prints!r}"
            line = {"call": name, "ok": False, "error": text}
        print(json.dumps(line), flush=True)

    def run(self, tool: str, *options: str) -> tuple[int, str]:
        """A tool's exit status and everything it printed."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        where = ("--bootstrap-server", self._bootstrap)
        arguments = (*where, *options) if tool in _BOOTSTRAP_FIRST else (*options, *where)
        self._jvm.stdin.write("\t".join((_TOOLS[tool], *arguments)) + "\n")
        self._jvm.stdin.flush()
        answer = json.loads(self._jvm.stdout.readline())
        return answer["exit"], answer["output"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jvm.kill()
        self._jvm.communicate()


def admin(java: Sequence[str], bootstrap: str, prefix: str) -> None:
    topic, group = f"{prefix}-topic", f"{prefix}-group"
    with Tools(java, bootstrap) as tools:
        _cluster(tools)
        _topics(tools, topic)
        _configs(tools, topic)
        _records(tools, topic)
        _groups(tools, java, bootstrap, topic, group)
        tools.call("kafka-topics --delete", "kafka-topics", "--delete", "--topic", topic)
        _beyond(tools)


def _cluster(tools: Tools) -> None:
    versions = "kafka-broker-api-versions"
    tools.call(versions, versions, prints=r"\(id: \d+ .* -> \(\n\s*Produce\(0\): ")
    tools.call("kafka-cluster cluster-id", "kafka-cluster", "cluster-id", prints=r"Cluster ID: \S+")
    tools.call("kafka-cluster list-endpoints", "kafka-cluster", "list-endpoints", prints=r"\d+ +127\.0\.0\.1")
    tools.call("kafka-features describe", "kafka-features", "describe")


def _topics(tools: Tools, topic: str) -> None:
    new = ("--topic", topic, "--partitions", "2", "--config", "retention.ms=3600000")
    tools.call("kafka-topics --create", "kafka-topics", "--create", *new, prints=f"Created topic {topic}")
    tools.call("kafka-topics --list", "kafka-topics", "--list", prints=rf"(?m)^{topic}$")
    tools.call("kafka-topics --alter", "kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    described = r"PartitionCount: 3\b.*\bretention\.ms=3600000"
    tools.call("kafka-topics --describe", "kafka-topics", "--describe", "--topic", topic, prints=described)
    options = ("--describe", "--under-replicated-partitions")
    tools.call("kafka-topics --under-replicated-partitions", "kafka-topics", *options)
    preferred = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    elected = f"Valid replica already elected for partitions.*{topic}-0"
    tools.call("kafka-leader-election", "kafka-leader-election", *preferred, prints=elected)


def _configs(tools: Tools, topic: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)

    def alter_and_describe(name: str, *options: str, prints: str) -> None:
        tools.call(f"kafka-configs {name}", "kafka-configs", "--alter", *of_topic, *options)
        described = f"kafka-configs --describe after {name}"
        tools.call(described, "kafka-configs", "--describe", *of_topic, prints=prints)

    described = r"retention\.ms=3600000"
    tools.call("kafka-configs --describe", "kafka-configs", "--describe", *of_topic, prints=described)
    added = r"max\.message\.bytes=123456"
    alter_and_describe("--add-config", "--add-config", "max.message.bytes=123456", prints=added)
    alter_and_describe("--delete-config", "--delete-config", "max.message.bytes", prints=rf"\A(?!.*{added})")
    _, cluster = tools.run("kafka-broker-api-versions")
    brokers = re.findall(r"\(id: (\d+) ", cluster)
    of_broker = ("--entity-type", "brokers", "--entity-name", min(brokers, default="1"), "--all")
    tools.call("kafka-configs of a broker", "kafka-configs", "--describe", *of_broker, prints=r"\w+\.\w+=")


def _records(tools: Tools, topic: str) -> None:
    amount = ("--num-records", str(_RECORDS), "--record-size", "10", "--throughput", "-1")
    performance = "kafka-producer-perf-test"
    tools.call(performance, performance, "--topic", topic, *amount, prints=f"{_RECORDS} records sent")
    _, ends = tools.run("kafka-get-offsets", "--topic", topic)
    # Records without a key all go to one of the partitions.
    found = re.findall(rf"(?m)^{topic}:(\d+):([1-9]\d*)$", ends)
    partition, end = found[0] if found else ("0", "0")
    for when, wanted in (("latest", end), ("earliest", "0")):
        options = ("--topic", topic, "--time", when)
        printed = rf"(?m)^{topic}:{partition}:{wanted}$"
        tools.call(f"kafka-get-offsets {when}", "kafka-get-offsets", *options, prints=printed)
    of_partition = ("describe-producers", "--topic", topic, "--partition", partition)
    name = "kafka-transactions describe-producers"
    tools.call(name, "kafka-transactions", *of_partition, prints=r"(?m)^\d+\s+\d+\s+")
    folders = ("--describe", "--topic-list", topic)
    tools.call("kafka-log-dirs", "kafka-log-dirs", *folders, prints=f'"partition":"{topic}-0"')
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        before = {"topic": topic, "partition": int(partition), "offset": 1}
        json.dump({"version": 1, "partitions": [before]}, file)
        file.flush()
        deleted = rf"partition: {topic}-{partition}\s+low_watermark: 1"
        in_file = ("--offset-json-file", file.name)
        tools.call("kafka-delete-records", "kafka-delete-records", *in_file, prints=deleted)


def _groups(tools: Tools, java: Sequence[str], bootstrap: str, topic: str, group: str) -> None:
    def groups(name: str, *options: str, prints: str = "") -> None:
        tools.call(f"kafka-consumer-groups {name}", "kafka-consumer-groups", *options, prints=prints)

    of_group = ("--group", group)
    with _consumer(java, bootstrap, topic, group):
        groups("--describe --state", "--describe", "--state", *of_group, prints=rf"{group}\s.*\bStable\s+1\b")
        groups("--list", "--list", prints=rf"(?m)^{group}$")
        groups("--list --state", "--list", "--state", prints=rf"(?m)^{group}\s.*\bStable\b")
        members = ("--describe", "--members", "--verbose", *of_group)
        groups("--describe --members --verbose", *members, prints=rf"{group}\s.*\s3\s.*{topic}")
        groups("--describe", "--describe", *of_group, prints=rf"{group}\s+{topic}\s+0\s")
        tools.call("kafka-groups --list", "kafka-groups", "--list", prints=rf"(?m)^{group}\s+Classic")
    empty = rf"{group}\s.*\bEmpty\s+0\b"
    groups("--describe an empty group", "--describe", "--state", *of_group, prints=empty)
    earliest = ("--reset-offsets", "--to-earliest", "--topic", topic, *of_group)
    groups("--reset-offsets --dry-run", *earliest, "--dry-run", prints=rf"{group}\s+{topic}\s+0\s+\d+")
    groups("--reset-offsets --execute", *earliest, "--execute", prints=rf"{group}\s+{topic}\s+0\s+\d+")
    long_ago = ("--reset-offsets", "--to-datetime", "2000-01-01T00:00:00.000", "--topic", topic, *of_group)
    groups("--reset-offsets --to-datetime", *long_ago, "--execute", prints=rf"{group}\s+{topic}\s+0\s+\d+")
    of_topic = ("--topic", f"{topic}:0", *of_group)
    groups("--delete-offsets", "--delete-offsets", *of_topic, prints=rf"{topic}\s+0\s+Successful")
    deleted = rf"Deletion of requested consumer groups \('{group}'\) was successful"
    groups("--delete", "--delete", *of_group, prints=deleted)
    performance = "kafka-consumer-perf-test"
    amount = ("--num-records", str(_RECORDS // 2), "--group", f"{group}-performance")
    tools.call(performance, performance, "--topic", topic, *amount, prints=r"data\.consumed\.in\.MB")


@contextmanager
def _consumer(java: Sequence[str], bootstrap: str, topic: str, group: str) -> Iterator[None]:
    """A console consumer that runs inside the block."""
    command = consumer_command(java, bootstrap, group, topic, {})
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere) as process:
        try:
            yield
        finally:
            process.terminate()


def _beyond(tools: Tools) -> None:
    """Features that a broker may lack, but must not leave the tool waiting for."""
    tools.call("kafka-acls", "kafka-acls", "--list")
    tools.call("kafka-client-metrics", "kafka-client-metrics", "--list")
    tools.call("kafka-metadata-quorum", "kafka-metadata-quorum", "describe", "--status", prints="LeaderId")
    tools.call("kafka-reassign-partitions", "kafka-reassign-partitions", "--list")
    tools.call("kafka-share-groups", "kafka-share-groups", "--list")
    tools.call("kafka-streams-groups", "kafka-streams-groups", "--list")
    tools.call("kafka-transactions list", "kafka-transactions", "list")
