"""`muster topics`: list, create, describe, alter, delete."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from muster.client import admin
from muster.client.cluster import Cluster
from muster.client.connection import deadline
from muster.coordinator.commands import output
from muster.coordinator.commands.options import actions, command, number, setting
from muster.coordinator.commands.run import Usage, distinct, report_outcomes

_LIST_JSON = """\
JSON: [{"name": text, "topic_id": UUID, "internal": true or false, "partitions": number,
        "replication_factor": number}], by name"""

_CREATE_JSON = """\
JSON: {"name": text, "topic_id": UUID, "partitions": number, "replication_factor": number}"""

_DESCRIBE_JSON = """\
JSON: [{"name": text, "topic_id": UUID, "internal": true or false,
        "partitions": [{"partition": number, "leader": node id or -1, "leader_epoch": number,
                        "replicas": [node id], "isr": [node id], "offline": [node id]}],
        "configs": [{"name": text, "value": text or null, "source": text}]}]
The source of what was set for the topic itself is "topic"."""

_ALTER_JSON = """\
JSON: the topic as muster topics describe shows it"""

_DELETE_JSON = """\
JSON: [{"name": text, "error": null or {"code": Kafka's name, "message": text}}]"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list topics", _LIST_JSON)
    listing.add_argument("--exclude-internal", action="store_true", help="leave out the cluster's own topics")
    listing.set_defaults(work=list_topics)

    create = command(below, "create", "create a topic", _CREATE_JSON)
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "--partitions", type=number(1), default=-1, metavar="N", help="default: what the broker is set to"
    )
    create.add_argument(
        "--replication-factor",
        type=number(1, 32_767),
        default=-1,
        metavar="N",
        help="copies of each partition (default: what the broker is set to)",
    )
    create.add_argument(
        "--config",
        type=setting,
        action="append",
        metavar="NAME=VALUE",
        help="a config of the topic, such as retention.ms=60000; may be repeated",
    )
    create.add_argument("--if-not-exists", action="store_true", help="a topic that is there is no failure")
    create.set_defaults(work=create_topic)

    describe = command(below, "describe", "show partitions, leaders, replicas and configs", _DESCRIBE_JSON)
    describe.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all")
    describe.add_argument(
        "--all-configs", action="store_true", help="also configs that were not set for the topic itself"
    )
    describe.set_defaults(work=describe_topics)

    alter = command(below, "alter", "add partitions, change configs", _ALTER_JSON)
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument("--partitions", type=number(1), metavar="N", help="how many it is to have in all")
    alter.add_argument(
        "--config", type=setting, action="append", metavar="NAME=VALUE", help="set this; may be repeated"
    )
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="NAME",
        help="back to what the broker says; may be repeated",
    )
    alter.set_defaults(work=alter_topic)

    delete = command(below, "delete", "delete topics with their records and committed offsets", _DELETE_JSON)
    delete.add_argument("topics", metavar="TOPIC", nargs="+")
    delete.add_argument("--if-exists", action="store_true", help="a topic that is not there is no failure")
    delete.set_defaults(work=delete_topics)


async def list_topics(cluster: Cluster, given: Namespace) -> int:
    """Show every topic on a line."""
    topics = await admin.topics(cluster, deadline(given.timeout))
    shown = [each for each in topics if not (given.exclude_internal and each.internal)]
    if given.output == "json":
        print(output.document([_summary(each) | {"internal": each.internal} for each in shown]))
    else:
        rows = [(each.name, len(each.partitions), each.replication_factor) for each in shown]
        print(output.table(("TOPIC", "PARTITIONS", "REPLICAS"), rows))
    return 0


async def create_topic(cluster: Cluster, given: Namespace) -> int:
    """Create a topic."""
    until = deadline(given.timeout)
    topic = None
    if given.if_not_exists:
        topic = next((each for each in await admin.topics(cluster, until) if each.name == given.topic), None)
    created = topic is None
    if topic is None:
        topic = await admin.create_topic(
            cluster,
            given.topic,
            until,
            partitions=given.partitions,
            replication_factor=given.replication_factor,
            configs=distinct(given.config, "--config"),
        )
    if given.output == "json":
        print(output.document(_summary(topic)))
    else:
        count = len(topic.partitions)
        state = "created" if created else "exists"
        print(f"{topic.name} {state}: {count} partition{'s' if count != 1 else ''}")
    return 0


async def describe_topics(cluster: Cluster, given: Namespace) -> int:
    """Show topics with their partitions."""
    until = deadline(given.timeout)
    names = list(dict.fromkeys(given.topics)) or None
    topics = await admin.topics(cluster, until, names)
    configs = await admin.topic_configs(cluster, [each.name for each in topics], until)
    _show(given, topics, configs, all_configs=given.all_configs)
    return 0


async def alter_topic(cluster: Cluster, given: Namespace) -> int:
    """Give a topic more partitions and other configs."""
    until = deadline(given.timeout)
    values = distinct(given.config, "--config")
    for name in given.delete_config:
        if name in values:
            raise Usage(f"{name} is to be set and deleted")
    changes_configs = bool(values or given.delete_config)
    if given.partitions is None and not changes_configs:
        raise Usage("nothing to change: it takes --partitions, --config or --delete-config")

    async def change(*, validate_only: bool) -> None:
        await admin.alter_topic_configs(
            cluster,
            given.topic,
            until,
            values=values,
            deleted=dict.fromkeys(given.delete_config),
            validate_only=validate_only,
        )

    if given.partitions is not None:
        if changes_configs:  # Both or neither, as far as can be told before.
            await change(validate_only=True)
        await admin.create_partitions(cluster, given.topic, given.partitions, until)
    if changes_configs:
        await change(validate_only=False)
    topics = await admin.topics(cluster, until, [given.topic])
    configs = await admin.topic_configs(cluster, [given.topic], until)
    _show(given, topics, configs, all_configs=False)
    return 0


async def delete_topics(cluster: Cluster, given: Namespace) -> int:
    """Delete topics."""
    until = deadline(given.timeout)
    names = list(dict.fromkeys(given.topics))
    if given.if_exists:
        there = {each.name for each in await admin.topics(cluster, until)}
        names = [name for name in names if name in there]
    outcomes = await admin.delete_topics(cluster, names, until) if names else {}
    return report_outcomes(given, outcomes, "name", "deleted")


def _summary(topic: admin.Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _show(
    given: Namespace, topics: list[admin.Topic], configs: dict[str, list[admin.Config]], *, all_configs: bool
) -> None:
    shown = {
        each.name: [config for config in configs[each.name] if all_configs or config.source == admin.OWN]
        for each in topics
    }
    if given.output == "json":
        print(output.document([_json(each, shown[each.name]) for each in topics]))
    else:
        print("\n\n".join(_described(each, shown[each.name]) for each in topics))


def _json(topic: admin.Topic, configs: list[admin.Config]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.internal,
        "partitions": [each._asdict() for each in topic.partitions],
        "configs": [each._asdict() for each in configs],
    }


def _described(topic: admin.Topic, configs: list[admin.Config]) -> str:
    count = len(topic.partitions)
    rows = [
        (each.partition, None if each.leader < 0 else each.leader, each.replicas, each.isr, each.offline)
        for each in topic.partitions
    ]
    parts = [
        f"{topic.name} {topic.topic_id}: {count} partition{'s' if count != 1 else ''}",
        output.table(("PARTITION", "LEADER", "REPLICAS", "ISR", "OFFLINE"), rows),
    ]
    if configs:
        parts.append(output.table(("CONFIG", "VALUE", "SOURCE"), configs))
    return "\n".join(parts)
