"""Random sequences of what administrators' tools send, in any version and often at some edge: Apache Kafka
and muster give the same answers, field by field.

A request is sent once all parts of Kafka's broker have heard of what the one before it changed. What no tool
sends, or muster answers differently on purpose (FINDINGS.md), is left out of requests by the methods of
`_Request` that are named after them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.broker_configs import Source
from muster.coordinator.server.group_configs import GROUP_SPECS
from muster.coordinator.testing import Broker
from muster.coordinator.topics.config import INTERNAL, SPECS
from muster.protocol.api import ApiKey, request_class, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Field, Struct
from muster.protocol.messages.configs import ListConfigResourcesResponse
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.scram import AlterUserScramCredentialsRequest
from muster.protocol.messages.topics import CreateTopicsResponse, DeleteTopicsRequest
from muster.protocol.types import ZERO_UUID, Array, Boolean
from muster.settings import Type
from tests.kafka.compared import error_codes
from tests.kafka.conftest import KafkaOfConfigs, Lives
from tests.kafka.stories import KAFKA_CONFIGS, Side, fields_apart
from tests.kafka.test_quotas import altering, describing, entry, set_quotas
from tests.support.wire_configs import GROUP

pytestmark = pytest.mark.kafka

_SEED: Final = 4410
_SEQUENCES: Final = 8
_REQUESTS: Final = 25

_CHANGES: Final = {
    ApiKey.CREATE_TOPICS: 6,
    **dict.fromkeys((ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CLIENT_QUOTAS), 4),
    **dict.fromkeys((ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS, ApiKey.ALTER_CONFIGS), 2),
    **dict.fromkeys((ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS), 2),
}
_APIS: Final = {
    **_CHANGES,
    **dict.fromkeys((ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS), 3),
    **dict.fromkeys((ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.OFFSET_COMMIT), 3),
    **dict.fromkeys((ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.OFFSET_DELETE), 2),
    **dict.fromkeys((ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.LIST_CONFIG_RESOURCES), 1),
    **dict.fromkeys((ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DELETE_GROUPS), 1),
}


class _Pool(NamedTuple):
    """Values of a field; those at an edge come less often. In texts {} is the life's prefix."""

    usual: Sequence[Any]
    odd: Sequence[Any] = ()


_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_TOPICS = _Pool(
    ("{}.a", "{}_a", "{}-b", "{}-c", "{}.d.e"),
    ("{:x<249}", "{:x<250}", "", ".", "..", "a b", "a/b", "ä"),
)
_GROUPS = _Pool(("{}-g", "{}-h"), ("", "{}-n"))
_USERS = _Pool(("{}-u", "{}-v"), ("", "{}-n"))
_CONFIGS = _Pool(sorted({*SPECS, *GROUP_SPECS} - INTERNAL), ("", "no.such"))
_RATES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_CONNECTIONS = "connection_creation_rate"
_NUMBERS = (-2, -1, 0, 1, 5, 14, 1_024, 2**20, _INT_MAX, 2**31, -(2**31) - 1, _LONG_MAX, 2**63)
_WORDS = (
    *("0.5", "1.0", "true", "false", "gzip", "zstd", "producer", "delete", "compact", "delete,compact"),
    *("CreateTime", "0:1,1:1", "*"),
)
_ODD_WORDS = ("", " 7 ", "soon", "0x10", "+5", "1e3", ".5", "Infinity", "-0", "007", "1_0", "TRUE", ",")
_ODD_RATES = (0.0, -1.0, 0.5, 1.000_000_5, 1e-9, 1e19, 2.0**31, float("nan"), float("inf"))

_POOLS: Final[Mapping[str, _Pool]] = {
    **dict.fromkeys(("name", "topic", "topic_name", "topic_names"), _TOPICS),
    **dict.fromkeys(("partition_index", "partition_indexes", "partitions"), _Pool((0, 0, 0, 1, 2), (-1, 99))),
    **dict.fromkeys(("broker_ids", "replicas"), _Pool((1,), (7, -1))),
    "num_partitions": _Pool((1, 1, 2, 3, -1), (0, -2, 20_000, _INT_MAX)),
    "replication_factor": _Pool((1, 1, -1), (0, 2, -2, 2**15 - 1)),
    "count": _Pool((2, 3, 4, 5), (1, 0, -1, 20_000, _INT_MAX)),
    "response_partition_limit": _Pool((2_000, 1, 2, 3), (0, -1, _INT_MAX, -(2**31))),
    "election_type": _Pool((0, 1)),
    "timeout_ms": _Pool((30_000,)),
    "resource_type": _Pool((2, 2, 2, GROUP)),
    "resource_types": _Pool((2, 4, 8, 16, 32), (0, 1, 64, -1)),
    "resource_name": _Pool((*_TOPICS.usual, *_GROUPS.usual), _TOPICS.odd),
    **dict.fromkeys(("CreatableTopicConfig.name", "AlterableConfig.name", "configuration_keys"), _CONFIGS),
    "config_operation": _Pool((0, 0, 0, 1, 2, 3)),
    "value": _Pool((*map(str, _NUMBERS), *_WORDS), _ODD_WORDS),
    "entity_type": _Pool(("user", "client-id", "ip"), ("zzz", "", "USER")),
    "entity_name": _Pool((*_USERS.usual, "10.0.0.1"), ("", "10.0.0.300")),
    "match": _Pool((*_USERS.usual, "10.0.0.1")),
    "match_type": _Pool((0, 1, 2), (3, -1)),
    "key": _Pool(_RATES, ("zzz", "", _CONNECTIONS)),
    "OpData.value": _Pool((1.0, 1_024.0, 1e6), _ODD_RATES),
    **{f"{of}.name": _USERS for of in ("ScramCredentialDeletion", "ScramCredentialUpsertion", "UserName")},
    "mechanism": _Pool((1, 2), (0, 3, -1)),
    "iterations": _Pool((4_096, 16_384), (0, -1, 4_095, 16_385, _INT_MAX)),
    "salt": _Pool((b"salt",), (b"", b"s" * 300)),
    "salted_password": _Pool((b"p" * 32,), (b"p", b"p" * 300)),
    **dict.fromkeys(("group_id", "groups_names"), _GROUPS),
    "generation_id_or_member_epoch": _Pool((-1,)),
    "member_id": _Pool(("",)),
    "committed_offset": _Pool((0, 5, _LONG_MAX)),
    "committed_metadata": _Pool(("", "x")),
}


class _Request:
    """What random requests to one side are made of, if its topics have these ids."""

    def __init__(self, choose: random.Random, prefix: str, ids: Mapping[str, UUID]) -> None:
        self._choose, self._prefix, self._ids = choose, prefix, ids

    def of(self, api_key: ApiKey) -> tuple[Any, int]:
        """A request and its version."""
        served = versions(api_key)
        last = 9 if api_key is ApiKey.OFFSET_COMMIT else served.last  # v10 is by id
        self._version = last if self._choose.random() < 0.5 else self._choose.randint(served.first, last)
        request = self._filled(request_class(api_key))
        getattr(self, f"_{api_key.name.lower()}", lambda request: None)(request)
        return request, self._version

    def _filled(self, cls: Any) -> Any:
        """Fields without a pool keep their defaults."""
        declared = [each for each in cls.__fields__ if self._version in each.versions and each.tag is None]
        drawn = {each.name: self._drawn(cls.__name__, each) for each in declared}
        return cls(**{name: value for name, value in drawn.items() if value is not ...})

    def _drawn(self, of: str, field: Field) -> Any:
        if self._version in field.nullable and self._choose.random() < 0.2:
            return None
        if not isinstance(field.type, Array):
            return self._element(of, field.name, field.type)
        count, element = self._choose.choice((1, 1, 1, 1, 0, 2, 3)), field.type.element
        drawn = [self._element(of, field.name, element) for _ in range(count)]
        return ... if ... in drawn else drawn

    def _element(self, of: str, name: str, type: Any) -> Any:
        if name == "topic_id":
            return self._choose.choice((*self._ids.values(), UUID(int=9)))
        if type is Boolean:
            return self._choose.random() < 0.3
        if hasattr(type, "__fields__"):
            return self._filled(type)
        pool = _POOLS.get(f"{of}.{name}") or _POOLS.get(name)
        if pool is None:
            return ...
        value = self._choose.choice(pool.odd if pool.odd and self._choose.random() < 0.08 else pool.usual)
        return value.format(self._prefix) if isinstance(value, str) else value

    # --- what is left out -------------------------------------------------------------------------

    def _create_topics(self, request: Any) -> None:
        request.topics = _once(request.topics, lambda each: each.name.replace(".", "_"))
        for each in request.topics:
            each.assignments = _once(each.assignments, lambda assigned: assigned.partition_index)
            if self._choose.random() < 0.8:
                each.assignments = []
            if each.assignments:
                each.num_partitions = each.replication_factor = -1
            elif each.num_partitions in _POOLS["num_partitions"].odd:
                each.replication_factor = 1
            if not request.validate_only:  # no log of an absurd size
                each.configs = [one for one in each.configs if one.name in ("cleanup.policy", "retention.ms")]

    def _create_partitions(self, request: Any) -> None:
        too_many = [each for each in request.topics if each.count > 10_000]
        request.topics = too_many[:1] or request.topics

    def _delete_topics(self, request: Any) -> None:
        self._by_name_or_id(request.topics, by_id=self._choose.random() < 0.3)

    def _metadata(self, request: Any) -> None:
        self._by_name_or_id(request.topics or (), by_id=self._version >= 10 and self._choose.random() < 0.3)
        request.allow_auto_topic_creation = self._version < 4

    def _by_name_or_id(self, topics: Sequence[Any], *, by_id: bool) -> None:
        for each in topics:
            each.name, each.topic_id = (None, each.topic_id) if by_id else (each.name or "absent", ZERO_UUID)

    def _describe_topic_partitions(self, request: Any) -> None:
        request.topics = [each for each in request.topics if each.name] or [
            request.TopicRequest(name="absent")
        ]
        request.cursor = self._choose.choice((None, request.cursor))

    def _alter_partition_reassignments(self, request: Any) -> None:
        request.allow_replication_factor_change |= not request.topics
        for each in request.topics:
            each.partitions = _once(each.partitions, lambda part: part.partition_index)

    def _describe_configs(self, request: Any) -> None:
        request.include_documentation = False

    def _alter_configs(self, request: Any) -> None:
        request.resources = _once(request.resources, lambda each: (each.resource_type, each.resource_name))

    def _incremental_alter_configs(self, request: Any) -> None:
        self._alter_configs(request)
        for each in (config for resource in request.resources for config in resource.configs):
            spec = SPECS.get(each.name)
            each.config_operation %= 4 if spec and spec.type is Type.LIST else 2

    def _alter_client_quotas(self, request: Any) -> None:
        for each in request.entries:
            each.entity = _once(each.entity, lambda part: part.entity_type)
            of_ip = any(part.entity_type == "ip" for part in each.entity)
            of_any = any(part.entity_name is None for part in each.entity)
            for op in each.ops:  # none that slows this test down
                op.key = _CONNECTIONS if of_ip else _RATES[0] if of_any else op.key
        request.entries = _once(request.entries, lambda each: repr(each.entity))

    def _describe_client_quotas(self, request: Any) -> None:
        request.components = _once(request.components, lambda each: each.entity_type)
        for each in request.components:
            each.match_type = each.match_type if each.entity_type in _POOLS["entity_type"].usual else 2
            each.match = None if each.match_type else each.match

    def _alter_user_scram_credentials(self, request: Any) -> None:
        (request.deletions if self._choose.random() < 0.6 else request.upsertions).clear()

    def _offset_commit(self, request: Any) -> None:
        part = request.Topic.Partition(partition_index=0, committed_offset=5, committed_metadata="")
        request.group_id = request.group_id or f"{self._prefix}-n"  # others look at the empty one
        there = [name for name in self._ids if self._choose.random() < 0.5]
        request.topics = [request.Topic(name=name, partitions=[part]) for name in there]

    def _offset_delete(self, request: Any) -> None:
        request.topics = [each for each in request.topics if each.partitions]


def _once(things: Sequence[Any], name: Callable[[Any], Any]) -> list[Any]:
    return list({name(each): each for each in things}.values())


# --- compared -----------------------------------------------------------------------------------------------


class Life:
    """Topics, groups and users with names of their own, and requests about them."""

    def __init__(self, name: str, *sides: Side) -> None:
        self._name, self._prefix, self._sides = name, name.replace("/", "-"), sides
        self._log = [f"life {name}"]
        self.codes: set[int] = set()
        for side in sides:
            side.coordinate(*(each.format(self._prefix) for each in _GROUPS.usual))

    def play(self) -> None:
        """Make a request on both sides, and compare the answers."""
        number = len(self._log)
        (api_key,) = random.Random(f"{self._name} {number}").choices([*_APIS], [*_APIS.values()])
        told = []
        for side in self._sides:
            choose = random.Random(f"{self._name} {number} {api_key.name}")
            request, version = _Request(choose, self._prefix, self._ids(side)).of(api_key)
            arranged = partial(self._arrange, asked=repr(request))
            answer = side.ask(str(number), request, version, but="leader_epoch", arranged=arranged)
            told.append(side.told.pop((str(number), api_key.name)))
            self.codes.update(error_codes(answer) if answer is not None else ())
            if api_key in _CHANGES:
                set_quotas(side)  # in force after whatever was decided before
        self._log.append(f"{api_key.name} v{version} {request}")
        apart = list(fields_apart(*told))
        assert not apart, "\n".join((*self._log, *map(str, apart)))

    def _ids(self, side: Side) -> dict[str, UUID]:
        told = side.quietly(MetadataRequest(topics=None), 12).topics
        own = [(each.name, each.topic_id) for each in told if each.name.startswith(self._prefix)]
        return dict(sorted(own))

    def _arrange(self, struct: Any, asked: str) -> None:
        """Sort what Kafka's hash tables order; leave out other tests' things and what differs on purpose."""
        for declared in type(struct).__fields__:
            value = getattr(struct, declared.name)
            if isinstance(value, Sequence) and value and isinstance(value[0], Struct):
                kept = [each for each in value if not self._is_beside(each, asked)]
                for each in kept:
                    self._arrange(each, asked)
                setattr(struct, declared.name, sorted(kept, key=_sort_key))
        match struct:
            case CreateTopicsResponse.CreatableTopicResult() if "validate_only=True" in asked:
                struct.topic_id = ZERO_UUID
            case CreateTopicsResponse.CreatableTopicConfigs(config_source=Source.TOPIC):
                struct.value = None  # Kafka tells what was sent, muster what it means
        if getattr(struct, "name", "") == "min.insync.replicas":  # Kafka sets it when it is formatted
            for declared in type(struct).__fields__:
                if declared.name in ("config_source", "source", "synonyms"):
                    setattr(struct, declared.name, [] if declared.name == "synonyms" else Source.DEFAULT)

    def _is_beside(self, struct: Any, asked: str) -> bool:
        """Whether it is another test's, or a config of groups that muster does not have."""
        names = [getattr(struct, each, None) for each in ("name", "topic", "user")]
        if isinstance(struct, ListConfigResourcesResponse.ConfigResource):
            names = [struct.resource_name]
        name = next(filter(None, names), "")
        if hasattr(struct, "value"):
            return name.startswith(("share.", "streams.", "errors."))
        return bool(name) and repr(name) not in asked and not name.startswith(self._prefix)

    def close(self) -> None:
        """Remove what other tests would notice."""
        for side in self._sides:
            side.quietly(DeleteTopicsRequest(topic_names=[*self._ids(side)], timeout_ms=30_000), 5)
            for each in side.quietly(describing(), 1).entries:
                entity = {of.entity_type: of.entity_name for of in each.entity}
                removed = [(rate.key, None) for rate in each.values]
                side.quietly(altering(entry(entity, *removed)), 1)
            Altering = AlterUserScramCredentialsRequest
            for mechanism in (1, 2):
                names = [each.format(self._prefix) for each in (*_USERS.usual, *_USERS.odd)]
                gone = [Altering.ScramCredentialDeletion(name=name, mechanism=mechanism) for name in names]
                side.quietly(Altering(deletions=gone, upsertions=[]), 0)
            set_quotas(side)


def _sort_key(struct: Struct) -> str:
    """Ids and texts are left out."""
    beside = {"error_message", "topic_id", "configs", "partitions"}
    names = [each.name for each in type(struct).__fields__ if each.name not in beside]
    return repr([getattr(struct, name) for name in names])


def test_random_administration(kafka_of_configs: KafkaOfConfigs, lives: Lives) -> None:
    running = kafka_of_configs(KAFKA_CONFIGS)
    codes: set[int] = set()
    settings = {"lease_term_ms": 600_000, "log_retention_ms": Settings().log_retention_ms}
    with Broker(auto_create_topics_enable=False, **settings) as muster:
        sides = Side(running.port, host=running.host, shared=False), Side(muster.port, shared=False)
        for each in lives(_SEED, _SEQUENCES):
            with closing(Life(each, *sides)) as life:
                for _ in range(_REQUESTS):
                    life.play()
            codes |= life.codes
        for side in sides:
            side.close()
    assert codes >= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_CONFIG}
