"""A client's commands against Apache Kafka: they do the same there as here, with the same output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Ended, run, started
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import await_published

pytestmark = pytest.mark.kafka

ALL = ("--from-beginning", "--until-end")
TOLD_BY_MUSTER = (
    *("drained", "group_shards", "transaction_shards", "data_shards"),
    *("loading", "renewed_ago_ms", "term_ms"),
)
"""Fields of brokers; null where Apache Kafka's are described."""
ANSWERED_BY_MUSTER = re.compile(r'"answered_by": (?:null|\{[^{}]*\})')
"""A field of the cluster; null where Apache Kafka answers."""
RECORDED_BY_MUSTER = ("rebalances",)
"""Fields of groups; null where Apache Kafka's are watched."""
RECORDS = (
    b'{"key": "alice", "value": "tea", "headers": [["h", "1"], ["n", null]], "timestamp": 1000}\n'
    b'{"key": "bob", "value": null, "timestamp": 2000}\n'
    b'{"key": {"base64": "/w=="}, "value": {"base64": "/w=="}, "timestamp": 3000}\n'
    b'{"key": "carol", "value": "milk", "timestamp": 4000}\n'
)


_QUOTAS: Final = (
    "list",
    "set --user alice --producer-byte-rate 1048576 --request-percentage 12.5",
    "set --client-id-default --controller-mutation-rate 10 --output json",
    "set --user alice --client-id etl --consumer-byte-rate 5",
    "set --ip-default --connection-creation-rate 500",
    "set --user alice --connection-creation-rate 1",
    "list",
    "list --user alice --output json",
    "remove --user alice --all",
    "remove --user alice --all",
    "remove --user alice --client-id etl --consumer-byte-rate",
    "remove --client-id-default --all",
    "remove --ip-default --all",
    "list",
)


def story(bootstrap: str) -> list[tuple[str, Ended]]:
    """A day at the command line, with the output of each command."""
    told: list[tuple[str, Ended]] = []
    host, _, port = bootstrap.rpartition(":")

    def muster(*arguments: str, stdin: bytes = b"") -> Ended:
        ended = run(bootstrap, *arguments, stdin=stdin)
        with WireConnection(host, int(port), "between two commands") as connection:
            await_published(connection)
        told.append((" ".join(arguments), ended))
        return ended

    muster(
        "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=-1", "--output", "json"
    )
    muster("topics", "create", "orders")
    muster("topics", "create", "orders", "--if-not-exists")
    muster("topics", "create", "no/name")
    muster("topics", "create", "t", "--config", "no.such=1")
    muster("topics", "create", "t", "--replication-factor", "2")
    muster("topics", "list", "--exclude-internal")
    muster("topics", "describe", "orders")
    muster("topics", "describe", "nope")
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        muster(
            "produce",
            "orders",
            "--format",
            "json",
            "--compression",
            compression,
            "--output",
            "json",
            stdin=RECORDS,
        )
    muster("produce", "orders", "--acks", "1", "--key", "k", "--timestamp", "5000", stdin=b"one\ntwo\n")
    muster("produce", "orders", "--acks", "0", "--key", "k", "--timestamp", "6000", stdin=b"three\n")
    muster("produce", "orders", "--partition", "9", stdin=b"x\n")
    muster("produce", "nope/", stdin=b"x\n")
    muster("consume", "orders", *ALL, "--output", "json")
    muster("consume", "orders", *ALL, "--format", "{partition} {offset} {timestamp} {headers} {key} {value}")
    muster("consume", "orders", "--timestamp", "4500", "--until-end", "--format", "{timestamp} {value}")
    muster(
        "consume", "orders", "--partition", "0", "--offset", "2", "--max-messages", "2", "--output", "json"
    )
    muster("consume", "orders", "--partition", "0", "--offset", "999")
    muster("consume", "nope", *ALL)
    muster("consume", "orders", "--group", "g", "--from-beginning", "--max-messages", "5", "--output", "json")
    muster("consume", "orders", "--group", "g", "--from-beginning", "--max-messages", "3", "--output", "json")
    muster("groups", "list")
    muster("groups", "list", "--state", "stable")
    muster("groups", "describe", "g")
    muster("top", "g", "--output", "json")
    muster("groups", "describe", "g", "--state")
    muster("groups", "describe", "g", "--output", "json")
    muster("groups", "describe", "nope")
    for words in _QUOTAS:
        muster("quotas", *words.split())
    member = started(bootstrap, "consume", "orders", "--group", "g")
    try:
        assert member.stderr is not None
        assert b"assigned" in member.stderr.readline()
        muster("groups", "describe", "g", "--members", "--verbose")
        muster("groups", "describe", "g", "--output", "json")
        muster("groups", "delete", "g")
        muster("groups", "reset-offsets", "g", "--topic", "orders", "--to-earliest")
        muster("groups", "delete-offsets", "g", "--topic", "orders:0")
        muster("groups", "evict", "g", "--member", "nobody")
    finally:
        member.terminate()
        member.communicate(timeout=DEADLINE_S)
    for target in (
        ("--to-earliest",),
        ("--to-datetime", "4500"),
        ("--by-duration", "P7D"),
        ("--to-current",),
    ):
        muster("groups", "reset-offsets", "g", "--topic", "orders", *target)
    muster("groups", "reset-offsets", "g", "--topic", "orders:0,9", "--to-offset", "999", "--execute")
    muster(
        "groups", "reset-offsets", "g", "--all-topics", "--shift-by", "-1", "--execute", "--output", "json"
    )
    muster("groups", "delete-offsets", "g", "--topic", "orders:1", "--topic", "orders:9")
    muster("groups", "describe", "g")
    muster("groups", "describe", "--all-groups", "--state", "--verbose", "--output", "csv")
    plan = b"g,orders,0,1\nh,orders,1,1\n"
    muster("groups", "reset-offsets", "--from-file", "-", "--execute", "--output", "csv", stdin=plan)
    muster("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--execute")
    muster("groups", "evict", "g", "--all")
    muster("groups", "evict", "nope", "--all")
    muster("groups", "delete", "h")
    muster("groups", "delete", "g", "nope", "--output", "json")
    muster(
        "topics",
        "alter",
        "orders",
        "--partitions",
        "5",
        "--config",
        "cleanup.policy=compact",
        "--output",
        "json",
    )
    muster("topics", "alter", "orders", "--partitions", "2")
    muster("topics", "alter", "orders", "--config", "retention.ms=soon")
    muster("topics", "alter", "orders", "--delete-config", "retention.ms")
    muster("produce", "orders", "--partition", "0", stdin=b"compaction needs keys\n")
    muster("cluster", "describe", "--output", "json")
    muster("topics", "delete", "orders", "nope")
    return told


def comparable(ended: Ended) -> Ended:
    """The output without what differs from run to run, what only muster reports, and what a broker says in
    its own words: a refusal keeps who says it and Kafka's name for the error."""
    out = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", ended.out)
    out = re.sub(r'("port": |127\.0\.0\.1:)\d+', r"\1<port>", out)
    out = re.sub(r'"cluster_id": "[^"]*"', '"cluster_id": <id>', out)
    out = re.sub(r'"leader_epoch": \d+', '"leader_epoch": <epoch>', out)
    out = re.sub(r'"message": "[^"]*"', '"message": <words>', out)
    out = re.sub(rf'"({"|".join(TOLD_BY_MUSTER + RECORDED_BY_MUSTER)})": [^,\n]+', r'"\1": <told>', out)
    out = ANSWERED_BY_MUSTER.sub('"answered_by": <told>', out)
    out = "\n".join(" ".join(line.split()) for line in out.splitlines())
    said = [
        f"{line.split(': ')[0]} {re.findall(r'[A-Z]+(?:_[A-Z]+)+', line)}" for line in ended.err.splitlines()
    ]
    return Ended(ended.code, out, "\n".join(said))


def test_the_same_commands_say_the_same_of_either(kafka_of_configs: KafkaOfConfigs) -> None:
    there = story(kafka_of_configs.unused(KAFKA_CONFIGS).bootstrap)
    with Broker(auto_create_topics_enable=False) as broker:
        here = story(broker.bootstrap)
    different = [
        f"muster {command}\n  Apache Kafka: {comparable(kafka)}\n  muster:       {comparable(ours)}"
        for (command, kafka), (_, ours) in zip(there, here, strict=True)
        if comparable(kafka) != comparable(ours)
    ]
    assert not different, "\n".join(different)
    # The comparison is meaningful only if the commands meant to succeed did.
    assert sum(ended.code == 0 for _, ended in there) > 25


def test_many_records(kafka_of_configs: KafkaOfConfigs, tmp_path: Path) -> None:
    bootstrap = kafka_of_configs(KAFKA_CONFIGS).bootstrap
    lines = b"".join(b"line %d\n" % index for index in range(100_000))
    assert run(bootstrap, "topics", "create", "many", "--partitions", "1").code == 0
    sent = run(bootstrap, "produce", "many", "--compression", "lz4", stdin=lines)
    assert (sent.code, sent.out) == (0, "100000 records to many\n")
    alone = run(bootstrap, "consume", "many", *ALL)
    assert (alone.code, alone.out.encode()) == (0, lines)
    group = run(
        bootstrap, "consume", "many", "--group", "all", "--from-beginning", "--max-messages", "100000"
    )
    assert (group.code, group.out.encode()) == (0, lines)
    (described,) = run(bootstrap, "groups", "describe", "all", "--output", "json").json
    assert [each["lag"] for each in described["offsets"]] == [0]


def test_what_only_brokers_of_muster_tell(kafka_of_configs: KafkaOfConfigs) -> None:
    bootstrap = kafka_of_configs(KAFKA_CONFIGS).bootstrap
    facts = run(bootstrap, "cluster", "describe", "--leases", "--output", "json").json
    assert facts["leases"] is None
    assert {facts["brokers"][0][name] for name in TOLD_BY_MUSTER} == {None}
    shown = run(bootstrap, "cluster", "describe", "--leases").out
    assert "DRAINED" not in shown
    assert shown.endswith(
        "\n\nno leases to show: these are not muster brokers, or you may not describe the cluster\n"
    )
    assert run(bootstrap, "cluster", "ready").out == "ready\n"
    ready = run(bootstrap, "cluster", "ready", "--output", "json").json
    assert ready == {"node_id": None, "ready": True, "why": None}
    for action in ("drain", "undrain"):
        ended = run(bootstrap, "cluster", action, "1")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err == (
            f"muster cluster {action}: only muster brokers can be drained; "
            "the broker that responded is not one, or you may not describe the cluster\n"
        )
    watched = run(bootstrap, "top", "--output", "json")
    assert (watched.code, watched.err) == (0, "")
    assert {each["rebalances"] for each in watched.json} <= {None}
    for action in ("why", "timeline"):
        ended = run(bootstrap, "groups", action, "g")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"muster groups {action}: there is no topic __group_events: ")
        assert ended.err.endswith("Apache Kafka does not\n")
    assert "__group_events" not in run(bootstrap, "topics", "list").out, "asking created nothing"
