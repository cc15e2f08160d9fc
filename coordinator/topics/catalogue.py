"""The topics of the cluster: what exists, with which id, how many partitions and which configs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from muster.coordinator.runtime.clock import Clock
from muster.coordinator.storage.store import Store, StoreConflict, TopicRow
from muster.coordinator.topics.config import SPECS, ConfigType, TopicConfig, parse
from muster.protocol.errors import ErrorCode, KafkaError

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
NAME_LENGTH_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
"""Partitions of one topic: Kafka's controller takes no more in one request."""
PARTITIONS_TOTAL_MAX: Final = 100_000
"""Partitions of all topics: Metadata may ask about all of them at once, and is answered in one turn of the
loop."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it stands; a change makes a new object. `configs` are the overrides, `config` the values
    in force."""

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str]
    created_ms: int
    config: TopicConfig = field(compare=False)

    @property
    def internal(self) -> bool:
        """Kafka's own topics: listed as internal in Metadata, and clients may not produce to them."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Change:
    """What one refresh found. `altered` holds (before, after) of topics with other partitions or configs."""

    created: Sequence[Topic] = ()
    deleted: Sequence[Topic] = ()
    altered: Sequence[tuple[Topic, Topic]] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.altered)


class Catalogue:
    """Reads are answered from memory; changes go through the store first and are visible here when they
    return.

    Every refusal is a KafkaError. `defaults` are topic configs (Kafka's topic config names) that override
    Kafka's defaults for every topic of this broker; INVALID_CONFIG at once when one is not valid.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        defaults: Mapping[str, str] | None = None,
        num_partitions: int = 1,
        auto_create_topics: bool = True,
        partitions_total_max: int = PARTITIONS_TOTAL_MAX,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._store = store
        self._clock = clock
        self._defaults = dict(defaults or {})
        self.default_config = parse(self._defaults)
        self._num_partitions = num_partitions
        self._auto_create_topics = auto_create_topics
        self._partitions_total_max = partitions_total_max
        self._new_id = new_id
        self._rows: dict[UUID, TopicRow] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_name: dict[str, Topic] = {}
        self._partitions_total = 0
        self._folded: dict[str, str] = {}  # names with "." as "_", to find those whose metrics would collide
        self._subscribers: list[Callable[[Change], None]] = []
        self._refreshes = 0  # begun
        self._taken = 0  # the one that the present picture is from

    def __repr__(self) -> str:
        return f"<Catalogue topics={len(self._by_id)}>"

    # --- reading ----------------------------------------------------------------------------------

    async def refresh(self) -> Change:
        """Read the store's topics and tell the subscribers what changed. Call it at start, and whenever the
        store's `revision()` moved (this object's own changes refresh it themselves)."""
        self._refreshes += 1
        number = self._refreshes
        rows = await self._store.topics()
        if number < self._taken:
            return Change()  # a refresh that began later was answered sooner, and saw at least as much
        self._taken = number
        return self._take(rows)

    def _take(self, rows: Sequence[TopicRow]) -> Change:
        created, altered = [], []
        before, self._rows = self._rows, {row.topic_id: row for row in rows}
        deleted = [self._by_id[topic_id] for topic_id in before if topic_id not in self._rows]
        for row in rows:
            if before.get(row.topic_id) == row:
                continue
            topic, known = self._topic(row), self._by_id.get(row.topic_id)
            self._by_id[row.topic_id] = topic
            if known is None:
                created.append(topic)
            else:
                altered.append((known, topic))
        for topic in deleted:
            del self._by_id[topic.topic_id]
        self._by_name = {
            topic.name: topic for topic in sorted(self._by_id.values(), key=lambda topic: topic.name)
        }
        self._folded = {_fold(name): name for name in self._by_name}
        self._partitions_total = sum(row.partitions for row in rows)
        change = Change(tuple(created), tuple(deleted), tuple(altered))
        if change:
            for callback in list(self._subscribers):
                callback(change)
        return change

    def _topic(self, row: TopicRow) -> Topic:
        config = parse({**self._defaults, **row.configs})
        return Topic(row.topic_id, row.name, row.partitions, dict(row.configs), row.created_ms, config)

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call `callback` on the loop after each change, with the catalogue already new; returns the
        unsubscription."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def topics(self) -> list[Topic]:
        """Every topic, by name."""
        return list(self._by_name.values())

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def named(self, name: str) -> Topic:
        """The topic, or UNKNOWN_TOPIC_OR_PARTITION (3); INVALID_TOPIC_EXCEPTION (17) for a name no topic can
        have."""
        topic = self._by_name.get(name)
        if topic is None:
            check_name(name)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    def identified(self, topic_id: UUID) -> Topic:
        """The topic, or UNKNOWN_TOPIC_ID (100)."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        return topic

    # --- changing ---------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        brokers: int = 1,
        validate_only: bool = False,
    ) -> Topic:
        """CreateTopics for one topic: -1 means the broker's default; `brokers` is how many are alive.

        Codes: 17 bad or colliding name, 36 exists, 37 partitions, 38 replication factor, 39 assignments, 40
        configs, 42 assignments together with counts, 44 more partitions than one topic, or all of them, may
        have. Who leads a partition is decided by leases, so of `assignments` only the number of partitions
        counts.
        """
        check_name(name)
        self._check_free(name)
        if assignments:
            if partitions != -1 or replication_factor != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "a topic has either assignments or counts, not both"
                )
            partitions = _check_assignments(assignments)
        elif partitions == -1:
            partitions = self._num_partitions
        if partitions < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"a topic cannot have {partitions} partitions")
        self._check_partitions_max(partitions, partitions)
        if not assignments and (replication_factor == 0 or not -1 <= replication_factor <= brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {replication_factor} with {brokers} brokers",
            )
        overrides = _overrides(configs or {})
        parse({**self._defaults, **overrides})
        row = TopicRow(self._new_id(), name, partitions, overrides, self._clock.now_ms())
        if validate_only:
            return self._topic(row)
        try:
            await self._store.create_topic(row)
        except StoreConflict:
            raise _exists(name) from None
        finally:
            await self.refresh()
        return self._by_id.get(row.topic_id) or self._topic(row)

    async def ensure(self, name: str) -> Topic:
        """Auto-creation (Metadata, when the request allows it): the topic, made with the default partitions
        if missing.

        UNKNOWN_TOPIC_OR_PARTITION when auto-creation is off, 17 for a bad name or one of Kafka's internal
        topics.
        """
        topic = self._by_name.get(name)
        if topic is not None:
            return topic
        check_name(name)
        if not self._auto_create_topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        if name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal, and kept elsewhere")
        try:
            return await self.create(name)
        except KafkaError as refusal:
            if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:  # made by another request meanwhile
                return self.named(name)
            raise

    async def delete(self, topic: Topic) -> None:
        """DeleteTopics for one topic; UNKNOWN_TOPIC_ID when it went meanwhile."""
        try:
            found = await self._store.delete_topic(topic.topic_id)
        finally:
            await self.refresh()
        if not found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic.name} was deleted already")

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """CreatePartitions: grow to `total`. 37 unless it grows, 39 for assignments that do not match, 44
        beyond the same bounds as in `create`, 3 unknown."""

        def grown(row: TopicRow) -> TopicRow:
            if total <= row.partitions:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"topic {name} has {row.partitions} partitions already, asked for {total}",
                )
            self._check_partitions_max(total, total - row.partitions)
            if assignments is not None and len(assignments) != total - row.partitions:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(assignments)} assignments for {total - row.partitions} new partitions",
                )
            return TopicRow(row.topic_id, row.name, total, row.configs, row.created_ms)

        return await self._update(name, grown, validate_only=validate_only)

    async def alter_configs(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        replace: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        """Set (None: back to the default) topic configs. INVALID_CONFIG (40), 3.

        `replace` drops all others (AlterConfigs, as against IncrementalAlterConfigs). `append` and `subtract`
        add values to a list config and take values from it.
        """

        def changed(row: TopicRow) -> TopicRow:
            configs = {} if replace else dict(row.configs)
            for key, value in changes.items():
                if key not in SPECS:
                    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
                if value is None:
                    configs.pop(key, None)
                else:
                    configs[key] = value
            for key, text, adds in _list_changes(append or {}, subtract or {}):
                default = SPECS[key].default
                present = configs.get(key, self._defaults.get(key, ",".join(default)))
                configs[key] = _edited(present, text, adds=adds)
            parse({**self._defaults, **configs})
            return TopicRow(row.topic_id, row.name, row.partitions, configs, row.created_ms)

        return await self._update(name, changed, validate_only=validate_only)

    def _check_partitions_max(self, of_topic: int, more: int) -> None:
        if of_topic > PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"a topic may have {PARTITIONS_MAX} partitions, not {of_topic}"
            )
        if self._partitions_total + more > self._partitions_total_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"all topics together may have {self._partitions_total_max} partitions; there are "
                f"{self._partitions_total} already, asked for {more} more",
            )

    async def _update(
        self, name: str, change: Callable[[TopicRow], TopicRow], *, validate_only: bool
    ) -> Topic:
        """Compute the new row from the present one; again when another broker changed it in between."""
        for _ in range(_ATTEMPTS):
            row = self._rows[self.named(name).topic_id]
            updated = change(row)
            if validate_only:
                return self._topic(updated)
            try:
                await self._store.update_topic(updated, expected=row)
            except StoreConflict:
                await self.refresh()
                continue
            await self.refresh()
            return self._by_id.get(updated.topic_id) or self._topic(updated)
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"topic {name} is being changed from elsewhere all the time"
        )

    def _check_free(self, name: str) -> None:
        if name in self._by_name:
            raise _exists(name)
        colliding = self._folded.get(_fold(name))
        if colliding is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} differs from topic {colliding} in '.' and '_' only",
            )


def check_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION (17) unless Kafka allows the name."""
    if not name:
        why = "a topic's name is not empty"
    elif name in (".", ".."):
        why = f"a topic cannot be called {name}"
    elif len(name) > NAME_LENGTH_MAX:
        why = f"a topic's name has at most {NAME_LENGTH_MAX} characters, not {len(name)}"
    elif _NAME.fullmatch(name) is None:
        why = f"a topic's name has letters, digits, '.', '_' and '-' only, unlike {name!r}"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)


def _fold(name: str) -> str:
    return name.replace(".", "_")


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")


def _check_assignments(assignments: Mapping[int, Sequence[int]]) -> int:
    """The number of partitions; each is assigned, to at least one broker and to none twice."""
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions are numbered from 0 without gaps, not {sorted(assignments)}",
        )
    for partition, replicas in assignments.items():
        if not replicas or len(set(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} is assigned to {list(replicas)}"
            )
    return len(assignments)


def _overrides(configs: Mapping[str, str | None]) -> dict[str, str]:
    missing = [key for key, value in configs.items() if value is None]
    if missing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"no value for topic configs: {', '.join(missing)}")
    return {key: value for key, value in configs.items() if value is not None}


def _list_changes(append: Mapping[str, str], subtract: Mapping[str, str]) -> list[tuple[str, str, bool]]:
    changes = [(key, text, True) for key, text in append.items()] + [
        (key, text, False) for key, text in subtract.items()
    ]
    for key, _, _ in changes:
        if key not in SPECS or SPECS[key].type is not ConfigType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"topic config {key} is not a list, so nothing can be added to it"
            )
    return changes


def _edited(present: str, text: str, *, adds: bool) -> str:
    values = [value for value in present.split(",") if value]
    named = [value.strip() for value in text.split(",")]
    if adds:
        return ",".join(values + [value for value in named if value not in values])
    return ",".join(value for value in values if value not in named)
