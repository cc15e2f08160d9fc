"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Any broker handles them for topics, for groups, and for all brokers together; for one broker, or its log
level, only that broker does. muster keeps no client metrics subscriptions: there are none to describe or to
list, and setting one is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from muster.coordinator.base import log
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts, Turns, heard_of_all, make_heard
from muster.coordinator.server.broker_config_specs import shown
from muster.coordinator.server.broker_configs import (
    Source,
    Synonym,
    source_of,
)
from muster.coordinator.server.names import Listed, Name, Names
from muster.coordinator.server.needs import (
    Asking,
    Elements,
    Needs,
    Twice,
    cluster,
    group_refusal,
    topic_refusal,
)
from muster.coordinator.server.refusal import entry, listing
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic, check_name
from muster.coordinator.topics.config import (
    INTERNAL,
    SPECS,
    ConfigChange,
    Operation,
    described,
    present,
)
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation as AclOperation
from muster.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ResourceType,
)
from muster.settings import Setting

R = TypeVar(
    "R",
    AlterConfigsResponse.AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)

_OfResource = DescribeConfigsResponse.DescribeConfigsResult
_Described = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_DescribedSynonym = _Described.DescribeConfigsSynonym

CONFIGS_DESCRIBED_MAX: Final = 200_000
"""Configs in one DescribeConfigs response: those of some 5,000 topics, in up to 36 MB and half a second."""
_TEXT_OF_A_CONFIG: Final = 100
"""Characters of values that come with a config; each hundred more count as another config."""

_HEARD_OF_WITHIN_MS: Final = 2_000
"""How long a description waits for a store that does not answer; then it shows what this broker knows."""

_ROOT: Final = "root"
_LEVELS: Final = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error"}
"""Kafka's names of the log levels that muster has."""
_log = log.Logger(part="configs")


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {number}") from None


def _topics_known(broker: Broker, resources: Iterable[Any]) -> bool:
    return all(
        broker.catalogue.by_name(each.resource_name) is not None
        for each in resources
        if each.resource_type == ResourceType.TOPIC
    )


def _check_is_this_broker(broker: Broker, name: str) -> None:
    """INVALID_REQUEST unless `name` is this broker's id; 01 is 1, as in Kafka."""
    if re.fullmatch(r"[+-]?[0-9]{1,10}", name) is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a broker's resource name is its node id, not {name!r}")
    node_id = int(name)
    if node_id != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.node_id}: ask broker {node_id} for its own configs",
        )


# --- describing ---------------------------------------------------------------------------------------------


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Each resource's configs, by name. A resource named twice is described twice."""
    attempts = Attempts(ApiKey.DESCRIBE_CONFIGS, context, _HEARD_OF_WITHIN_MS)
    await heard_of_all(broker, attempts, _topics_known(broker, request.resources))
    describer = _Describer(broker, request)
    results = []
    turns = Turns()
    for asked in request.resources:
        await turns.next()
        try:
            configs = describer.describe(asked)
        except KafkaError as error:
            results.append(
                entry(
                    _OfResource,
                    context.api_version,
                    error,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                )
            )
        else:
            results.append(
                _OfResource(
                    error_code=ErrorCode.NONE,
                    error_message="",
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                    configs=configs,
                )
            )
    return DescribeConfigsResponse(results=results)


class _Describer:
    """Describes resources with the options of one request."""

    def __init__(self, broker: Broker, request: DescribeConfigsRequest) -> None:
        self._broker = broker
        self._synonyms = request.include_synonyms
        self._documentation = request.include_documentation
        self._inherited: dict[str, _Described] = {}  # topic configs for topics that do not set them
        self._left = CONFIGS_DESCRIBED_MAX

    def describe(self, asked: DescribeConfigsRequest.DescribeConfigsResource) -> list[_Described]:
        """The resource's configs; INVALID_REQUEST from the first resource on that makes them too many."""
        configs = self._configs(asked) if self._left >= 0 else []
        self._left -= sum(map(_weight, configs))
        if self._left < 0:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"one response describes at most {CONFIGS_DESCRIBED_MAX} configs, fewer with long values: "
                "ask about fewer resources",
            )
        return configs

    def _configs(self, asked: DescribeConfigsRequest.DescribeConfigsResource) -> list[_Described]:
        wanted = None if not asked.configuration_keys else frozenset(asked.configuration_keys)
        match _resource_type(asked.resource_type):
            case ResourceType.TOPIC:
                check_name(asked.resource_name)
                return self._topic(self._broker.catalogue.named(asked.resource_name), wanted)
            case ResourceType.BROKER:
                return self._of_broker(asked.resource_name, wanted)
            case ResourceType.BROKER_LOGGER:
                return self._loggers(asked.resource_name, wanted)
            case ResourceType.GROUP:
                return self._of_group(asked.resource_name, wanted)
        if not asked.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource name is empty")
        return []

    def _topic(self, topic: Topic, wanted: frozenset[str] | None) -> list[_Described]:
        names = [name for name, _ in described()] + [name for name in INTERNAL if name in topic.configs]
        return [self._topic_config(topic, name) for name in sorted(names) if wanted is None or name in wanted]

    def _topic_config(self, topic: Topic, name: str) -> _Described:
        if name in topic.configs:
            value = present(name, topic.config)
            return self._described_topic_config(name, value, [Synonym(name, value, Source.TOPIC)])
        inherited = self._inherited.get(name)
        if inherited is None:
            value = present(name, self._broker.catalogue.default_config)
            inherited = self._inherited[name] = self._described_topic_config(name, value, [])
        return inherited

    def _described_topic_config(self, name: str, value: str, own: list[Synonym]) -> _Described:
        synonyms = own + self._broker.configs.inherited(name)
        return self._config(name, value, synonyms, SPECS[name])

    def _of_broker(self, name: str, wanted: frozenset[str] | None) -> list[_Described]:
        configs = self._broker.configs
        if name:
            _check_is_this_broker(self._broker, name)
        found = []
        for each, spec in configs.described(name):
            if wanted is None or each in wanted:
                synonyms = [
                    synonym._replace(value=None) if spec.sensitive else synonym
                    for synonym in configs.synonyms(each)
                    if name or synonym.source is Source.DYNAMIC_DEFAULT_BROKER
                ]
                text = synonyms[0].value if synonyms else None
                value = None if text is None else shown(spec, text)
                found.append(self._config(each, value, synonyms, spec))
        return found

    def _of_group(self, name: str, wanted: frozenset[str] | None) -> list[_Described]:
        return [
            self._config(each, synonyms[0].value, synonyms, spec)
            for each, spec, synonyms in self._broker.group_configs.described(name)
            if wanted is None or each in wanted
        ]

    def _loggers(self, name: str, wanted: frozenset[str] | None) -> list[_Described]:
        """One logger, of this process: its brokers write one log."""
        _check_is_this_broker(self._broker, name)
        if wanted is not None and _ROOT not in wanted:
            return []
        level = next(theirs for theirs, ours in _LEVELS.items() if ours == log.level())
        return [
            _Described(
                name=_ROOT,
                value=level,
                read_only=False,
                config_source=Source.BROKER_LOGGER,
                is_sensitive=False,
            )
        ]

    def _config(self, name: str, value: str | None, synonyms: Sequence[Synonym], spec: Setting) -> _Described:
        return _Described(
            name=name,
            value=value,
            read_only=not spec.dynamic,
            config_source=source_of(synonyms),
            is_sensitive=spec.sensitive,
            synonyms=[
                _DescribedSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
            ]
            if self._synonyms
            else [],
            config_type=spec.type.value,
            documentation=spec.documentation if self._documentation else None,
        )


def _weight(config: _Described) -> int:
    texts = [config.value, *(each.value for each in config.synonyms)]
    return 1 + sum(len(text) for text in texts if text is not None) // _TEXT_OF_A_CONFIG


# --- altering -----------------------------------------------------------------------------------------------


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace each resource's configs with those given: what is not named returns to its default."""

    def changes(asked: AlterConfigsRequest.AlterConfigsResource) -> list[ConfigChange]:
        if asked.resource_type == ResourceType.BROKER_LOGGER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "log levels can be altered only with IncrementalAlterConfigs"
            )
        return [ConfigChange(each.name, Operation.SET, each.value) for each in asked.configs]

    refusals = await _alter_each(broker, request, context, changes, replace=True)
    return AlterConfigsResponse(
        responses=_altered(AlterConfigsResponse.AlterConfigsResourceResponse, request.resources, refusals)
    )


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Change the named configs of each resource: for each resource, all are changed or none."""

    def changes(asked: IncrementalAlterConfigsRequest.AlterConfigsResource) -> list[ConfigChange]:
        return [
            ConfigChange(each.name, _operation(each.config_operation), each.value) for each in asked.configs
        ]

    refusals = await _alter_each(broker, request, context, changes, replace=False)
    return IncrementalAlterConfigsResponse(
        responses=_altered(
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, request.resources, refusals
        )
    )


def _altered(cls: type[R], resources: Iterable[Any], refusals: Iterable[KafkaError | None]) -> list[R]:
    """The answer about each resource; both requests' answers have the same fields."""
    return [
        cls(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.why,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        for asked, error in zip(resources, refusals, strict=True)
    ]


async def _alter_each(
    broker: Broker,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    context: RequestContext,
    changes: Callable[[Any], list[ConfigChange]],
    *,
    replace: bool,
) -> list[KafkaError | None]:
    """The refusal of each resource; None if it was altered."""
    api_key = ApiKey.ALTER_CONFIGS if replace else ApiKey.INCREMENTAL_ALTER_CONFIGS
    times = Counter(map(_resource, request.resources))
    refusals: list[KafkaError | None] = []
    attempts = Attempts(api_key, context)
    once = [each for each in request.resources if times[_resource(each)] == 1]
    await heard_of_all(broker, attempts, _topics_known(broker, once))
    turns = Turns()
    for asked in request.resources:
        await turns.next()
        try:
            # Nobody can tell in which order two entries were meant, so both are refused.
            if times[_resource(asked)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            resource = _resource_type(asked.resource_type), asked.resource_name
            alter = partial(_alter, broker, resource, changes(asked), replace, request.validate_only)
            # What is set on other resources is read again where it is kept.
            doubtful = {ErrorCode.INVALID_CONFIG} if resource[0] is ResourceType.TOPIC else ()
            await make_heard(broker, attempts, alter, doubtful)
        except KafkaError as error:
            refusals.append(error)
        else:
            refusals.append(None)
    return refusals


def _operation(number: int) -> Operation:
    try:
        return Operation(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {number}") from None


async def _alter(
    broker: Broker,
    resource: tuple[ResourceType, str],
    changes: Sequence[ConfigChange],
    replace: bool,
    validate_only: bool,
) -> None:
    """Change one resource's configs; `replace` drops those that it had."""
    type, name = resource
    if len({change.name for change in changes}) < len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without = [each.name for each in changes if each.value is None and each.operation is not Operation.DELETE]
    if without:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without)}")
    before = _set_on(broker, type, name)
    match type:
        case ResourceType.TOPIC:
            if not name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the topic name is empty; topics have no cluster-wide configs"
                )
            await broker.catalogue.alter_configs(name, changes, replace=replace, validate_only=validate_only)
        case ResourceType.BROKER:
            if name:
                _check_is_this_broker(broker, name)
            await broker.configs.alter(name, changes, replace=replace, validate_only=validate_only)
        case ResourceType.BROKER_LOGGER:
            _check_is_this_broker(broker, name)
            _set_level(changes, validate_only)
        case ResourceType.GROUP:
            await broker.group_configs.alter(name, changes, replace=replace, validate_only=validate_only)
        case ResourceType.CLIENT_METRICS:
            _refuse_metrics(name, [each for each in changes if each.operation is not Operation.DELETE])
            return
    # Tools such as MirrorMaker repeat all configs again and again.
    after = _set_on(broker, type, name)
    names = [each for each in dict.fromkeys((*before, *after)) if before.get(each) != after.get(each)]
    if names:
        _log.info("configs altered", node=broker.node_id, resource=type.name, name=name, configs=names)


def _set_on(broker: Broker, type: ResourceType, name: str) -> Mapping[str, str]:
    """What is set on the resource now."""
    match type:
        case ResourceType.TOPIC:
            topic = broker.catalogue.by_name(name)
            return {} if topic is None else topic.configs
        case ResourceType.BROKER:
            return broker.configs.altered(name)
        case ResourceType.BROKER_LOGGER:
            return {_ROOT: log.level()}
        case ResourceType.GROUP:
            return broker.group_configs.altered(name)
        case ResourceType.CLIENT_METRICS:
            return {}


def _set_level(changes: Sequence[ConfigChange], validate_only: bool) -> None:
    """Set the level of the running process, as in Kafka: a restart uses the level it is started with."""
    levels = []
    for name, operation, value in changes:
        if operation in (Operation.APPEND, Operation.SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"log levels do not support {operation.name}")
        if name != _ROOT:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"there is no logger {name}, only {_ROOT}")
        if operation is Operation.DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the level of {_ROOT} cannot be removed")
        if value not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"there is no log level {value}, only {', '.join(_LEVELS)}"
            )
        levels.append(_LEVELS[value])
    if not validate_only:
        for level in levels:
            log.set_level(level)


def _refuse_metrics(name: str, setting: Sequence[ConfigChange]) -> None:
    """Refuse to set what nothing here would follow."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource name is empty")
    if setting:
        names = ", ".join(change.name for change in setting)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"muster collects no client metrics, so {names} cannot be set"
        )


# --- listing ------------------------------------------------------------------------------------------------


async def list_config_resources(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """All resources of the requested types, whether or not anything is set on them; groups only if something
    is."""
    asked = set(request.resource_types)
    if context.api_version == 0:
        asked = {ResourceType.CLIENT_METRICS}
    if not asked <= set(ResourceType):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown resource types among {sorted(asked)}")
    nodes = [str(node_id) for node_id in broker.topology.nodes]
    names = {
        ResourceType.TOPIC: [topic.name for topic in broker.catalogue.topics()],
        ResourceType.BROKER: nodes,
        ResourceType.BROKER_LOGGER: nodes,
        ResourceType.GROUP: broker.group_configs.names(),
    }
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=type)
            for type, of_type in names.items()
            if not asked or type in asked
            for name in of_type
        ],
    )


def _topic_named(resource: Any) -> Name | None:
    return str(resource.resource_name) if resource.resource_type == ResourceType.TOPIC else None


def _resource(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _each_needs(operation: AclOperation, twice: Twice = Twice.AGAIN) -> Needs:
    def check(asking: Asking, request: Any, resource: Any) -> KafkaError | None:
        match resource.resource_type:
            case ResourceType.TOPIC:
                return topic_refusal(asking, operation, resource.resource_name)
            case ResourceType.GROUP:
                return group_refusal(asking, operation, resource.resource_name)
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS:
                return cluster(operation)(asking, resource)
        return None  # there is no such type

    return Needs(elements=Elements("resources", check, _resource, twice))


_TO_DESCRIBE: Final = _each_needs(AclOperation.DESCRIBE_CONFIGS)
_TO_ALTER: Final = _each_needs(AclOperation.ALTER_CONFIGS, Twice.UNDECIDED)

_NAMES: Final = Names(topics=(Listed("resources", _topic_named),))

APIS: Final = (
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        describe_configs,
        needs=_TO_DESCRIBE,
        names=_NAMES,
        refuse=listing("results", "resources"),
    ),
    Api(
        ApiKey.ALTER_CONFIGS,
        alter_configs,
        needs=_TO_ALTER,
        names=_NAMES,
        refuse=listing("responses", "resources"),
    ),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs,
        needs=_TO_ALTER,
        names=_NAMES,
        refuse=listing("responses", "resources"),
    ),
    Api(
        ApiKey.LIST_CONFIG_RESOURCES,
        list_config_resources,
        needs=Needs((cluster(AclOperation.DESCRIBE_CONFIGS),)),
    ),
)
