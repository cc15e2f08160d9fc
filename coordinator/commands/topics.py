"""`muster topics`: list, create, describe, alter, reassign, delete."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, TypeVar

from muster.client.admin import configs as config_calls
from muster.client.admin import replicas as replica_calls
from muster.client.admin import topics as topic_calls
from muster.client.admin.configs import Config, ConfigChange, ConfigResource, ConfigSource
from muster.client.admin.topics import CreatedTopic, NewTopic, TopicDescription
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.arguments import printable
from muster.coordinator.commands import output
from muster.coordinator.commands.options import (
    actions,
    any_name,
    command,
    number,
    partition_replicas,
    replica_lists,
    setting,
)
from muster.coordinator.commands.run import Usage, distinct, report_outcomes
from muster.protocol.errors import ErrorCode, KafkaError

_LIST_JSON = """\
JSON: [{"name": text, "topic_id": UUID, "internal": true or false, "partitions": number,
        "replication_factor": number}], by name"""

_CREATE_JSON = """\
JSON: {"name": text, "topic_id": UUID, "partitions": number, "replication_factor": number}
What you may not describe is null."""

_DESCRIBE_JSON = """\
JSON: [{"name": text, "topic_id": UUID, "internal": true or false,
        "partitions": [{"partition": number, "leader": node id or -1, "leader_epoch": number,
                        "replicas": [node id], "isr": [node id], "offline": [node id]}],
        "configs": [{"name": text, "value": text or null, "source": text}]}]
The source of a config set for the topic itself is "topic"."""

_ALTER_JSON = """\
JSON: the topic as in muster topics describe; what you may not describe is null"""

_DELETE_JSON = """\
JSON: [{"name": text, "error": null or {"code": Kafka's name, "message": text}}]"""

_SHOWN_S: Final = 5.0

T = TypeVar("T")


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list topics", _LIST_JSON)
    listing.add_argument("--exclude-internal", action="store_true", help="leave out internal topics")
    listing.set_defaults(work=list_topics)

    create = command(below, "create", "create a topic", _CREATE_JSON)
    create.add_argument("topic", type=any_name, metavar="TOPIC")
    create.add_argument(
        "--partitions", type=number(1), default=-1, metavar="N", help="default: the broker's setting"
    )
    create.add_argument(
        "--replication-factor",
        type=number(1, 32_767),
        default=-1,
        metavar="N",
        help="replicas of each partition (default: the broker's setting)",
    )
    create.add_argument(
        "--replica-assignment",
        type=replica_lists,
        metavar="LISTS",
        help="the brokers of each partition instead of both numbers, preferred leader first, such as 3:1,2:3",
    )
    create.add_argument(
        "--config",
        type=setting,
        action="append",
        metavar="NAME=VALUE",
        help="a topic config, such as retention.ms=60000; may be repeated",
    )
    create.add_argument("--if-not-exists", action="store_true", help="do not fail if the topic exists")
    create.set_defaults(work=create_topic)

    describe = command(below, "describe", "show partitions, leaders, replicas and configs", _DESCRIBE_JSON)
    describe.add_argument("topics", type=any_name, metavar="TOPIC", nargs="*", help="default: all")
    describe.add_argument(
        "--all-configs", action="store_true", help="also configs not set for the topic itself"
    )
    describe.set_defaults(work=describe_topics)

    alter = command(below, "alter", "add partitions, change configs", _ALTER_JSON)
    alter.add_argument("topic", type=any_name, metavar="TOPIC")
    alter.add_argument("--partitions", type=number(1), metavar="N", help="new total number of partitions")
    alter.add_argument(
        "--config", type=setting, action="append", metavar="NAME=VALUE", help="set a config; may be repeated"
    )
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="NAME",
        help="reset a config to the broker's value; may be repeated",
    )
    alter.set_defaults(work=alter_topic)

    reassign = command(below, "reassign", "move partitions to other brokers", _ALTER_JSON)
    reassign.add_argument("topic", type=any_name, metavar="TOPIC")
    reassign.add_argument(
        "--partition",
        type=partition_replicas,
        action="append",
        required=True,
        metavar="PARTITION=REPLICAS",
        help="a partition and its brokers, preferred leader first, such as 0=3:1; may be repeated",
    )
    reassign.set_defaults(work=reassign_topic)

    delete = command(below, "delete", "delete topics with their records and committed offsets", _DELETE_JSON)
    delete.add_argument("topics", type=any_name, metavar="TOPIC", nargs="+")
    delete.add_argument("--if-exists", action="store_true", help="do not fail if a topic does not exist")
    delete.set_defaults(work=delete_topics)


async def list_topics(cluster: Cluster, given: Namespace) -> int:
    """List topics, one per line."""
    shown = await topic_calls.list_topics(
        cluster, deadline(given.timeout), include_internal=not given.exclude_internal
    )
    if given.output == "json":
        print(output.document([_summary(_created(each)) | {"internal": each.internal} for each in shown]))
    else:
        rows = [(each.name, len(each.partitions), each.replication_factor) for each in shown]
        print(output.table(("TOPIC", "PARTITIONS", "REPLICAS"), rows))
    return 0


async def create_topic(cluster: Cluster, given: Namespace) -> int:
    """Create a topic."""
    until, lists = deadline(given.timeout), given.replica_assignment
    if lists is not None and (given.partitions, given.replication_factor) != (-1, -1):
        raise Usage("--replica-assignment excludes --partitions and --replication-factor")
    topic = await _existing(cluster, given.topic, until) if given.if_not_exists else None
    state = "exists"
    if topic is None:
        new = NewTopic(
            name=given.topic,
            num_partitions=given.partitions,
            replication_factor=given.replication_factor,
            replica_assignments=None if lists is None else dict(enumerate(lists)),
            configs=distinct(given.config, "--config"),
        )
        created = (await topic_calls.create_topics(cluster, [new], until))[given.topic]
        if not isinstance(created, KafkaError):
            topic, state = created, "created"
        elif given.if_not_exists and created.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            # It may not be described, or another has just created it and the broker asked does not know yet.
            topic = await _existing(cluster, given.topic, until) or CreatedTopic(given.topic, None, -1, -1)
        else:
            raise created
    many = topic.num_partitions
    if given.output == "json":
        print(output.document(_summary(topic)))
    elif many < 0:
        print(f"{topic.name} {state}")
    else:
        print(f"{topic.name} {state}: {many} partition{'s' if many != 1 else ''}")
    return 0


async def _existing(cluster: Cluster, name: str, until: float) -> CreatedTopic | None:
    """The topic, or None if it does not exist or may not be described."""
    topic = (await topic_calls.describe_topics(cluster, [name], until))[name]
    if isinstance(topic, KafkaError):
        if topic.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            return None
        raise topic
    return _created(topic)


async def describe_topics(cluster: Cluster, given: Namespace) -> int:
    """Show topics with their partitions."""
    until = deadline(given.timeout)
    if given.topics:
        found = await topic_calls.describe_topics(cluster, given.topics, until)
        topics = list(found.raise_for_failures().values())
    else:
        topics = await topic_calls.list_topics(cluster, until, include_internal=True)
    await _show(cluster, given, topics, until, all_configs=given.all_configs)
    return 0


async def alter_topic(cluster: Cluster, given: Namespace) -> int:
    """Add partitions to a topic and change its configs."""
    until = deadline(given.timeout)
    changes: dict[str, ConfigChange] = dict(distinct(given.config, "--config"))
    for name in given.delete_config:
        if changes.get(name) is not None:
            raise Usage(f"{name} is both set and deleted")
        changes[name] = None
    if given.partitions is None and not changes:
        raise Usage("nothing to change: --partitions, --config or --delete-config is required")

    async def change(*, validate_only: bool) -> None:
        of_topic = {ConfigResource.of_topic(given.topic): changes}
        outcomes = await config_calls.alter_configs(cluster, of_topic, until, validate_only=validate_only)
        outcomes.raise_for_failures()

    if given.partitions is not None:
        if changes:  # Both or neither, as far as can be checked in advance.
            await change(validate_only=True)
        grown = await topic_calls.create_partitions(cluster, {given.topic: given.partitions}, until)
        grown.raise_for_failures()
    if changes:
        await change(validate_only=False)
        await _until_shown(cluster, given.topic, changes, min(until, deadline(_SHOWN_S)))
    await _show_changed(cluster, given, until)
    return 0


async def reassign_topic(cluster: Cluster, given: Namespace) -> int:
    """Assign partitions of a topic to other brokers."""
    until = deadline(given.timeout)
    lists: dict[TopicPartition, list[int]] = {}
    for index, replicas in given.partition:
        where = TopicPartition(given.topic, index)
        if where in lists:
            raise Usage(f"--partition {index} is given twice")
        lists[where] = replicas
    outcomes = await replica_calls.alter_partition_reassignments(cluster, lists, until)
    outcomes.raise_for_failures()
    await _show_changed(cluster, given, until)
    return 0


async def _until_shown(
    cluster: Cluster, name: str, changes: Mapping[str, ConfigChange], until: float
) -> None:
    """Wait until brokers show the changed configs, at most until the deadline."""
    topic = ConfigResource.of_topic(name)
    for tries in count():
        found = await config_calls.describe_configs(cluster, [topic], until, names=changes)
        configs = _if_allowed(found[topic])
        if configs is None:
            return
        shown = {each.name: each.value for each in configs.values() if each.source == ConfigSource.TOPIC}
        wait_s = cluster.backoff_s(tries)
        if all(_is_shown(value, shown.get(name)) for name, value in changes.items()):
            return
        if deadline(wait_s) >= until:
            return
        await asyncio.sleep(wait_s)


def _is_shown(given: ConfigChange, shown: str | None) -> bool:
    """Whether a value is shown as given, or in the broker's spelling: `true` for `TRUE`, `5` for `+5`."""
    if not isinstance(given, str) or shown is None:
        return given is shown
    try:
        return float(given) == float(shown)
    except ValueError:
        words = [[each.strip().lower() for each in value.split(",")] for value in (given, shown)]
        return words[0] == words[1]


async def delete_topics(cluster: Cluster, given: Namespace) -> int:
    """Delete topics."""
    outcomes = await topic_calls.delete_topics(cluster, given.topics, deadline(given.timeout))
    if given.if_exists:
        for name, error in outcomes.failed.items():
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                del outcomes[name]
    return report_outcomes(given, outcomes, "name", "deleted")


def _created(topic: TopicDescription) -> CreatedTopic:
    return CreatedTopic(topic.name, topic.topic_id, len(topic.partitions), topic.replication_factor)


def _summary(topic: CreatedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": None if topic.topic_id is None else str(topic.topic_id),
        "partitions": None if topic.num_partitions < 0 else topic.num_partitions,
        "replication_factor": None if topic.replication_factor < 0 else topic.replication_factor,
    }


async def _show(
    cluster: Cluster, given: Namespace, topics: list[TopicDescription], until: float, *, all_configs: bool
) -> None:
    resources = [ConfigResource.of_topic(each.name) for each in topics]
    configs = (await config_calls.describe_configs(cluster, resources, until)).raise_for_failures()
    shown = {
        resource.name: sorted(found.values()) if all_configs else _own(found)
        for resource, found in configs.items()
    }
    if given.output == "json":
        print(output.document([_json(each, shown[each.name]) for each in topics]))
    else:
        print("\n\n".join(_described(each, shown[each.name]) for each in topics))


async def _show_changed(cluster: Cluster, given: Namespace, until: float) -> None:
    """Show a topic after a change. The change is made, so it is no failure if not all may be described."""
    resource = ConfigResource.of_topic(given.topic)
    topic = _if_allowed((await topic_calls.describe_topics(cluster, [given.topic], until))[given.topic])
    configs = _if_allowed((await config_calls.describe_configs(cluster, [resource], until))[resource])
    own = None if configs is None else _own(configs)
    if given.output == "json":
        hidden = {"name": given.topic, "topic_id": None, "internal": None, "partitions": None}
        listed = None if own is None else _configs_json(own)
        print(output.document([(hidden if topic is None else _json(topic, [])) | {"configs": listed}]))
    elif topic is None:
        print(f"{printable(given.topic)} changed; you may not describe it")
    else:
        print(_described(topic, own or []))


def _if_allowed(outcome: T | KafkaError) -> T | None:
    """The result; None if the user may not see it. Raises any other failure."""
    if not isinstance(outcome, KafkaError):
        return outcome
    if outcome.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None
    raise outcome


def _own(configs: Mapping[str, Config]) -> list[Config]:
    """Those set for the topic itself."""
    return sorted(each for each in configs.values() if each.source == ConfigSource.TOPIC)


def _json(topic: TopicDescription, configs: list[Config]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.internal,
        "partitions": [each._asdict() for each in topic.partitions],
        "configs": _configs_json(configs),
    }


def _configs_json(configs: list[Config]) -> list[dict[str, Any]]:
    return [{"name": each.name, "value": each.value, "source": each.source} for each in configs]


def _described(topic: TopicDescription, configs: list[Config]) -> str:
    many = len(topic.partitions)
    rows = [
        (each.partition, None if each.leader < 0 else each.leader, each.replicas, each.isr, each.offline)
        for each in topic.partitions
    ]
    parts = [
        f"{topic.name} {topic.topic_id}: {many} partition{'s' if many != 1 else ''}",
        output.table(("PARTITION", "LEADER", "REPLICAS", "ISR", "OFFLINE"), rows),
    ]
    if configs:
        shown = [(each.name, each.value, each.source) for each in configs]
        parts.append(output.table(("CONFIG", "VALUE", "SOURCE"), shown))
    return "\n".join(parts)
