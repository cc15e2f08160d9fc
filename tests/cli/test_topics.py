"""`muster topics`, as a user runs it."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from muster.client.admin.acls import Acl, AclOperation, AclResourceType
from muster.client.admin.client import Admin
from muster.client.admin.topics import CreatedTopic
from muster.client.network.cluster import Cluster
from muster.coordinator.commands import topics
from muster.coordinator.testing import Broker
from muster.coordinator.testing.security import USER
from tests.cli.running import DEADLINE_S, Muster
from tests.support.each import each
from tests.support.leases import TERM_MS


def test_create_list_describe_delete(muster: Muster) -> None:
    assert muster.done("topics", "create", "orders", "--partitions", "3") == "orders created: 3 partitions\n"
    assert muster.done("topics", "create", "audit") == "audit created: 1 partition\n"
    assert muster.done("topics", "list", "--exclude-internal") == (
        "TOPIC   PARTITIONS  REPLICAS\n"
        "audit            1         1\n"
        "orders           3         1\n"
    )  # fmt: skip
    first, *table = muster.done("topics", "describe", "orders").splitlines()
    assert first.startswith("orders ")
    assert first.endswith(": 3 partitions")
    assert table == [
        "PARTITION  LEADER  REPLICAS  ISR  OFFLINE",
        "        0       1  1         1    -",
        "        1       1  1         1    -",
        "        2       1  1         1    -",
    ]
    assert muster.done("topics", "delete", "orders", "audit") == "orders deleted\naudit deleted\n"
    assert muster.done("topics", "list", "--exclude-internal") == "TOPIC  PARTITIONS  REPLICAS\n"


def test_a_topic_that_appears_in_between_exists(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    existing, unknown = topics._existing, [None, None]

    async def look(cluster: Cluster, name: str, until: float) -> CreatedTopic | None:
        return unknown.pop() if unknown else await existing(cluster, name, until)

    monkeypatch.setattr(topics, "_existing", look)
    create = ("topics", "create", "orders", "--if-not-exists")
    assert muster.done(*create) == "orders exists\n"  # the broker asked does not know it yet
    unknown.append(None)
    assert muster.done(*create) == "orders exists: 2 partitions\n"
    unknown.append(None)
    assert "TOPIC_ALREADY_EXISTS" in muster.refused("topics", "create", "orders")


def test_who_may_change_but_not_see_is_told_of_the_change(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ann = tmp_path / "ann.properties"
    ann.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="secret";\n'
    )
    as_ann, as_json = ("--command-config", str(ann)), ("--output", "json")
    with Broker(security="SASL_PLAINTEXT", super_users=f"User:{USER}") as broker:
        muster = Muster(broker.bootstrap, capfd)
        allow(
            broker,
            Acl.of_cluster("User:ann", AclOperation.CREATE),
            Acl.of_cluster("User:ann", AclOperation.ALTER),
            Acl(AclResourceType.TOPIC, "orders", "User:ann", AclOperation.ALTER),
        )
        assert muster.done("topics", "create", "orders", *as_ann) == "orders created: 1 partition\n"
        assert muster.done("topics", "create", "audit", *as_ann) == "audit created\n"
        stock = ("topics", "create", "stock", "--if-not-exists", *as_ann)
        assert muster.done(*stock) == "stock created\n"
        assert muster.done(*stock) == "stock exists\n"
        created = muster("topics", "create", "sales", *as_ann, *as_json)
        assert (created.code, created.json["partitions"], created.json["replication_factor"]) == (
            0,
            None,
            None,
        )

        table = muster.done("topics", "alter", "orders", "--partitions", "2", *as_ann)
        assert table.splitlines()[0].endswith(": 2 partitions")
        altered = muster("topics", "alter", "orders", "--partitions", "3", *as_ann, *as_json)
        assert (altered.code, len(altered.json[0]["partitions"]), altered.json[0]["configs"]) == (0, 3, None)

        reassign = ("topics", "reassign", "audit", "--partition", "0=1", *as_ann)
        assert muster.done(*reassign) == "audit changed; you may not describe it\n"
        hidden = {"topic_id": None, "internal": None, "partitions": None, "configs": None}
        assert muster(*reassign, *as_json).json == [{"name": "audit"} | hidden]


def allow(broker: Broker, *acls: Acl) -> None:
    """Create the user ann, password secret, and these ACLs."""

    async def work() -> None:
        async with Admin(**broker.client_settings("muster")) as admin:
            await admin.upsert_user_scram_credentials("ann", "secret")
            (await admin.create_acls(acls)).raise_for_failures()

    asyncio.run(work())


def test_json(muster: Muster) -> None:
    created = muster("topics", "create", "orders", "--config", "retention.ms=5000", "--output", "json").json
    assert created == {
        "name": "orders",
        "topic_id": created["topic_id"],
        "partitions": 1,
        "replication_factor": 1,
    }
    assert uuid.UUID(created["topic_id"])
    listed = muster("topics", "list", "--output", "json").json
    assert created | {"internal": False} in listed
    internal = [each["name"] for each in listed if each["internal"]]
    assert internal == ["__consumer_offsets", "__group_events", "__transaction_state"]
    (described,) = muster("topics", "describe", "orders", "--output", "json").json
    assert described == {
        "name": "orders",
        "topic_id": created["topic_id"],
        "internal": False,
        "partitions": [
            {"partition": 0, "leader": 1, "leader_epoch": 1, "replicas": [1], "isr": [1], "offline": []}
        ],
        "configs": [{"name": "retention.ms", "value": "5000", "source": "topic"}],
    }
    deleted = muster("topics", "delete", "orders", "nope", "--output", "json")
    assert deleted.code == 1
    assert deleted.json[0] == {"name": "orders", "error": None}
    assert deleted.json[1]["name"] == "nope"
    assert deleted.json[1]["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_alter(muster: Muster) -> None:
    muster.done("topics", "create", "t", "--config", "retention.ms=5000", "--config", "segment.ms=7000")
    muster.done(
        "topics", "alter", "t", "--partitions", "3", "--config", "cleanup.policy=compact,delete",
        "--delete-config", "retention.ms",
    )  # fmt: skip
    (topic,) = muster("topics", "describe", "t", "--output", "json").json
    assert len(topic["partitions"]) == 3
    assert {each["name"]: each["value"] for each in topic["configs"]} == {
        "cleanup.policy": "compact,delete",
        "segment.ms": "7000",
    }
    table = muster.done("topics", "alter", "t", "--delete-config", "segment.ms").splitlines()
    assert table[-2:] == ["CONFIG          VALUE           SOURCE", "cleanup.policy  compact,delete  topic"]
    everything = muster("topics", "describe", "t", "--all-configs", "--output", "json").json[0]["configs"]
    assert {"name": "segment.ms", "value": "604800000", "source": "default"} in everything


def test_alter_knows_the_spelling_of_the_broker(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits until the change is shown, which the broker may spell another way."""
    monkeypatch.setattr(topics, "_SHOWN_S", DEADLINE_S)
    muster.done("topics", "create", "t")
    words = ("preallocate=TRUE", "retention.ms=+5", "cleanup.policy= compact, delete")
    configs = [each for word in words for each in ("--config", word)]
    began = time.monotonic()
    changed = muster("topics", "alter", "t", *configs, "--output", "json").json
    assert time.monotonic() - began < 25  # --timeout is 30 s
    assert {each["name"]: each["value"] for each in changed[0]["configs"]} == {
        "preallocate": "true",
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
    }


def test_alter_is_both_or_neither(muster: Muster) -> None:
    muster.done("topics", "create", "t")
    said = muster.refused("topics", "alter", "t", "--partitions", "3", "--config", "no.such=1")
    assert "no.such" in said
    assert "INVALID_CONFIG" in said
    (topic,) = muster("topics", "describe", "t", "--output", "json").json
    assert len(topic["partitions"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "taken"], "topic taken already exists"),
        (["create", "no/name"], "INVALID_TOPIC_EXCEPTION"),
        (["create", "t", "--replication-factor", "3"], "INVALID_REPLICATION_FACTOR"),
        (["create", "t", "--config", "retention.ms=soon"], "INVALID_CONFIG"),
        (["describe", "nope"], "topic nope"),
        (["alter", "taken", "--partitions", "1"], "INVALID_PARTITIONS"),
        (["alter", "nope", "--config", "retention.ms=1"], "nope"),
        (["delete", "nope"], "muster topics list shows the topics"),
    ],
)
def test_what_the_broker_refuses_is_one_line(muster: Muster, arguments: list[str], said: str) -> None:
    muster.done("topics", "create", "taken")
    line = muster.refused("topics", *arguments)
    assert line.startswith(f"muster topics {arguments[0]}: ")
    assert said in line


def test_what_is_or_is_not_there_already_need_not_be_a_failure(muster: Muster) -> None:
    muster.done("topics", "create", "t")
    assert muster.done("topics", "create", "t", "--if-not-exists") == "t exists: 1 partition\n"
    assert muster.done("topics", "delete", "nope", "t", "--if-exists") == "t deleted\n"
    assert muster.done("topics", "delete", "nope", "--if-exists") == ""


@each(
    "arguments, said",
    [
        ([], "muster topics: the following arguments are required: ACTION"),
        (["lst"], "muster topics: unknown action 'lst', did you mean list?"),
        (["list", "--nope"], "muster topics list: unknown option --nope"),
        (["create"], "muster topics create: the following arguments are required: TOPIC"),
        (["create", "t", "--partitions", "0"], "it takes a whole number, 1 to 2147483647"),
        (["create", "t", "--config", "x"], "it takes NAME=VALUE"),
        (["create", "t", "--config", "x=1", "--config", "x=2"], "--config: x is given twice"),
        (["create", "t", "--replica-assignment", "1,"], "node ids separated by colons"),
        (["create", "t", "--replica-assignment", "1", "--partitions", "1"], "excludes --partitions"),
        (["reassign", "t"], "the following arguments are required: --partition"),
        (["reassign", "t", "--partition", "1:2"], "it takes PARTITION=REPLICAS, such as 0=3:1"),
        (["reassign", "t", "--partition", "0=a"], "node ids separated by colons"),
        (["reassign", "t", "--partition", "0=1", "--partition", "0=2"], "--partition 0 is given twice"),
        (["alter", "t"], "--partitions, --config or --delete-config is required"),
        (["alter", "t", "--config", "x=1", "--delete-config", "x"], "x is both set and deleted"),
        (["list", "--timeout", "0"], "a number of seconds, above 0"),
        (["list", "--timeout", "nan"], "a number of seconds, above 0"),
        (["list", "--output", "xml"], "choose from"),
        (["list", "--bootstrap-server", "somewhere"], "--bootstrap-server: 'somewhere' is no address"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(muster: Muster, arguments: list[str], said: str) -> None:
    line = muster.misused("topics", *arguments)
    assert said in line
    assert "--help" in line or "takes host:port" in line


def test_partitions_of_several_brokers(capfd: pytest.CaptureFixture[str]) -> None:
    from muster.coordinator.testing import Cluster

    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        muster = Muster(cluster.bootstrap, capfd)
        muster.done("topics", "create", "t", "--partitions", "12")
        (topic,) = muster("topics", "describe", "t", "--output", "json").json
        assert {each["leader"] for each in topic["partitions"]} == {1, 2, 3}


def test_replicas_are_assigned_and_reassigned(capfd: pytest.CaptureFixture[str]) -> None:
    from muster.coordinator.testing import Cluster

    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        muster = Muster(cluster.bootstrap, capfd)
        muster.done("topics", "create", "t", "--replica-assignment", "3:1,2:3")
        assert muster.done("topics", "describe", "t").splitlines()[1:] == [
            "PARTITION  LEADER  REPLICAS  ISR  OFFLINE",
            "        0       3  3,1       3,1  -",
            "        1       2  2,3       2,3  -",
        ]
        shown = muster.done("topics", "reassign", "t", "--partition", "0=1:2:3", "--partition", "1=2")
        assert shown.splitlines()[1:] == [
            "PARTITION  LEADER  REPLICAS  ISR    OFFLINE",
            "        0       1  1,2,3     1,2,3  -",
            "        1       2  2         2      -",
        ]
        assert "INVALID_REPLICA_ASSIGNMENT" in muster.refused(
            "topics", "reassign", "t", "--partition", "0=1:9"
        )


def test_a_broker_may_forbid_deleting(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(delete_topic_enable=False) as broker:
        muster = Muster(broker.bootstrap, capfd)
        muster.done("topics", "create", "t")
        assert "TOPIC_DELETION_DISABLED" in muster.refused("topics", "delete", "t")
