"""The topics of the cluster: what exists, with which id, how many partitions and which configs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.listeners import call_all
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.placement import (
    EVENTS_TOPIC,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    internal_topic_id,
)
from muster.coordinator.storage.store import (
    Assignment,
    Grant,
    Lease,
    Replicas,
    Store,
    StoreConflict,
    StoreError,
    TopicRow,
)
from muster.coordinator.topics.config import (
    SPECS,
    ConfigChange,
    TopicConfig,
    changed,
    parse,
    readable,
    to_check,
    validated,
)
from muster.coordinator.topics.replicas import Hosts, factor_of, lists_of
from muster.protocol.errors import ErrorCode, KafkaError

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, EVENTS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
METADATA_TOPIC: Final = "__cluster_metadata"
"""Where Kafka's controllers keep what the store keeps here; tools take it for granted that no client can have
made it."""
NAME_LENGTH_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
"""Partitions of one topic: Kafka's controller takes no more in one request."""
PARTITIONS_TOTAL_MAX: Final = 100_000
"""Partitions of all topics: Metadata may ask about all of them at once, and is answered in one turn of the
loop."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ATTEMPTS: Final = 8
_ONE_HOST: Final = Hosts({1: None})

_log = Logger(part="topics")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it stands; a change makes a new object. `configs` are the overrides that this muster can
    read, `config` the values in force."""

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str]
    created_ms: int
    config: TopicConfig = field(compare=False)
    assignments: Mapping[int, Assignment] = field(default_factory=dict)
    """For the partitions that have a replica list; the others are led by any broker, their only replica."""

    @property
    def internal(self) -> bool:
        """Whether it is one of Kafka's internal topics or ours, which Metadata lists as internal and clients
        may not produce to."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition: Kafka has no number for the topic."""
        return factor_of(self.assignments)

    def epoch_base(self, partition: int) -> int:
        """By how much the partition's leader epoch exceeds the epoch of its lease."""
        assignment = self.assignments.get(partition)
        return 0 if assignment is None else assignment.epoch_base


def offsets_topic(cluster_id: UUID, partitions: int) -> Topic:
    """`__consumer_offsets` as clients see it: a partition for each group shard, led by the shard's holder.

    Its records are the rows of the store. Its configs are those that Kafka gives it.
    """
    configs = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
    return _kept_topic(cluster_id, OFFSETS_TOPIC, partitions, configs)


def transactions_topic(cluster_id: UUID, partitions: int) -> Topic:
    """`__transaction_state` as clients see it: a partition for each transaction shard, led by the shard's
    holder.

    Its records are the rows of the store. Its configs are those that Kafka gives it with a single replica.
    """
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    return _kept_topic(cluster_id, TRANSACTIONS_TOPIC, partitions, configs)


def events_topic(cluster_id: UUID, partitions: int, *, retention_ms: int, retention_bytes: int) -> Topic:
    """`__group_events` as clients see it: a partition for each group shard, led by the shard's holder.

    Its records are the rows of the store's journals, with `retention_bytes` for each partition.
    """
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
    }
    return _kept_topic(cluster_id, EVENTS_TOPIC, partitions, configs)


def _kept_topic(cluster_id: UUID, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
    return Topic(internal_topic_id(cluster_id, name), name, partitions, configs, 0, parse(configs))


class Change(NamedTuple):
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
    Kafka's defaults for every topic of this broker; INVALID_CONFIG at once when one is not valid. `kept` are
    topics that exist outside the store (`offsets_topic`): they can be looked up, not changed. A topic of the
    store with such a name, from a time when that was free, is `hidden`: it is known only by its id, and can
    be deleted by that.
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
        kept: Sequence[Topic] = (),
    ) -> None:
        self._store = store
        self._clock = clock
        self._defaults = dict(defaults or {})
        self.default_config = parse(self._defaults)
        self._num_partitions = num_partitions
        self._auto_create_topics = auto_create_topics
        self._partitions_total_max = partitions_total_max
        self._new_id = new_id
        self._kept = {topic.name: topic for topic in kept}
        self._read: Sequence[TopicRow] | None = None  # what the last refresh read
        self._rows: dict[UUID, TopicRow] = {}  # the same, by id
        self._by_id = {topic.topic_id: topic for topic in kept}
        self._by_name = dict(sorted(self._kept.items()))
        self._partitions_total = 0
        # Names with "." as "_", to find those whose metrics would collide.
        self._folded = {_fold(name): name for name in self._by_name}
        # What is being created or changed, by folded name: how many partitions each topic will have, once for
        # each request.
        self._under_way: dict[str, dict[str, list[int]]] = {}
        self._partitions_under_way = 0  # by how many all these will grow
        self._subscribers: list[Callable[[Change], None]] = []
        self._moved: dict[Lease, int] = {}
        self._refreshes = 0  # asked for
        self._covered = 0  # of these, how many had been when the read of the present state began
        self._failed: tuple[int, type[StoreError], str] = (0, StoreError, "")  # the same of one that failed
        self._reading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Catalogue topics={len(self._by_id)}>"

    # --- reading ----------------------------------------------------------------------------------

    async def refresh(self) -> Change:
        """Read the store's topics and tell the subscribers what changed. Call it at start, and whenever the
        store's `revision()` has moved (this object's own changes refresh by themselves).

        Returns what this call's own read found: nothing if a read for another, begun after this call, was
        enough. There is one read at a time: of two at once, nobody could tell which saw more. If it fails, it
        fails for all who asked before it began: otherwise each would wait for the store in turn.
        """
        self._refreshes += 1
        number = self._refreshes
        async with self._reading:
            if number <= self._covered:
                return Change()
            failed, kind, why = self._failed
            if number <= failed:
                raise kind(why)
            covered = self._refreshes
            try:
                rows = await self._store.topics()
            except StoreError as error:
                self._failed = covered, type(error), str(error)
                raise
            self._covered = covered
            return self._take(rows)

    @asynccontextmanager
    async def _refreshing(self) -> AsyncIterator[None]:
        """Refresh at the end, even if the store fails: the change may have been made. But who is cancelled
        must not wait again; the store's `revision()` tells of the change."""
        try:
            yield
        except Exception:
            await self.refresh()
            raise
        await self.refresh()

    def _take(self, rows: Sequence[TopicRow]) -> Change:
        if rows == self._read:  # often so: the store also reports the changes made here, already read
            return Change()
        created, altered = [], []
        changed = [(row, self._topic(row)) for row in rows if self._rows.get(row.topic_id) != row]
        before, self._rows = self._rows, {row.topic_id: row for row in rows}
        self._read = rows
        deleted = [self._by_id[topic_id] for topic_id in before if topic_id not in self._rows]
        for row, topic in changed:
            if left_out := sorted(row.configs.keys() - topic.configs.keys()):
                _log.warning("topic configs that cannot be read are left out", topic=row.name, names=left_out)
            known = self._by_id.get(row.topic_id)
            self._by_id[row.topic_id] = topic
            for assignment in row.assignments.values():
                lease = assignment.moved_from
                if lease is not None:
                    self._moved[lease] = max(assignment.moved_epoch, self._moved.get(lease, 0))
            if known is None:
                created.append(topic)
            else:
                altered.append((known, topic))
        for topic in deleted:
            del self._by_id[topic.topic_id]
        self._partitions_total = sum(row.partitions for row in rows)
        return self._changed(Change(tuple(created), tuple(deleted), tuple(altered)))

    def set_defaults(self, defaults: Mapping[str, str]) -> None:
        """Replace the `defaults` of every topic's configs, and tell the subscribers which topics changed.
        INVALID_CONFIG, with nothing changed, when one is not valid."""
        if defaults == self._defaults:
            return
        self.default_config = parse(defaults)
        self._defaults = dict(defaults)
        altered = []
        for row in self._rows.values():
            known, topic = self._by_id[row.topic_id], self._topic(row)
            if topic.config != known.config:
                self._by_id[row.topic_id] = topic
                altered.append((known, topic))
        self._changed(Change(altered=tuple(altered)))

    def _changed(self, change: Change) -> Change:
        """`_by_id` has changed: update the rest of the state, and tell the subscribers."""
        renamed = any(before.name != topic.name for before, topic in change.altered)
        if change.created or change.deleted or renamed:
            by_name = {topic.name: topic for topic in self._by_id.values()} | self._kept
            self._by_name = dict(sorted(by_name.items()))
            self._folded = {_fold(name): name for name in self._by_name}
        else:
            self._by_name |= {topic.name: topic for _, topic in change.altered} | self._kept
        self._partitions_under_way = sum(
            self._growth(name) for alike in self._under_way.values() for name in alike
        )
        if change:
            call_all(list(self._subscribers), change)
        return change

    def _topic(self, row: TopicRow) -> Topic:
        configs = readable(row.configs)
        config = parse({**self._defaults, **configs})
        return Topic(
            row.topic_id,
            row.name,
            row.partitions,
            configs,
            row.created_ms,
            config,
            row.assignments,
        )

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call `callback` on the loop after each change, with the catalogue already updated; returns a call
        that unsubscribes."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    @property
    def moved(self) -> Mapping[Lease, int]:
        """Leases under which partitions were led before they were reassigned, with the highest epoch at which
        they were: the holder in a higher epoch knows of the reassignment."""
        return self._moved

    def topics(self) -> list[Topic]:
        """Every topic, by name."""
        return list(self._by_name.values())

    @property
    def hidden(self) -> list[Topic]:
        """Topics of the store whose name now means a kept one."""
        return [
            topic
            for name, kept in self._kept.items()
            for topic in self._by_id.values()
            if topic.name == name and topic is not kept
        ]

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def named(self, name: str) -> Topic:
        """The topic, or UNKNOWN_TOPIC_OR_PARTITION (3)."""
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    def identified(self, topic_id: UUID) -> Topic:
        """The topic, or UNKNOWN_TOPIC_ID (100)."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        return topic

    def is_free(self, name: str) -> bool:
        """Whether no existing topic prevents one of that name."""
        return _fold(name) not in self._folded

    # --- changing ---------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        brokers: Hosts = _ONE_HOST,
        permit: Callable[[int], None] = lambda partitions: None,
        validate_only: bool = False,
    ) -> Topic:
        """CreateTopics for one topic: -1 means the broker's default, which is one replica; `brokers` are
        those alive. After all checks `permit` is called, which raises KafkaError to refuse that many
        partitions.

        Codes: 17 bad or colliding name, 36 exists, 37 partitions, 38 replication factor, 39 assignments, 40
        configs, 42 assignments together with counts, or the name of Kafka's metadata log, 44 too many
        partitions, in this topic or in all, or too many replica lists.
        """
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        check_name(name)
        self._check_free(name)
        overrides = _overrides(configs or {})
        validated({**self._defaults, **overrides}, self._defaults)
        if assignments:
            if partitions != -1 or replication_factor != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "give either replica assignments or counts, not both"
                )
            if sorted(assignments) != list(range(len(assignments))):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"partitions are numbered from 0 without gaps, not {sorted(assignments)}",
                )
            partitions = len(assignments)
        elif partitions == -1:
            partitions = self._num_partitions
        if partitions < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"a topic cannot have {partitions} partitions")
        self._check_partitions_max(name, partitions, partitions)
        topic_id = self._new_id()
        if assignments:
            assigned = brokers.assigned({index: tuple(assignments[index]) for index in sorted(assignments)})
        else:
            factor = 1 if replication_factor == -1 else replication_factor
            assigned = brokers.spread(topic_id, range(partitions), factor)
        row = TopicRow(topic_id, name, partitions, overrides, self._clock.now_ms(), assigned)
        permit(partitions)
        if validate_only:
            return self._topic(row)
        with self._reserved(name, partitions):
            await self._number_lists(assigned)
            try:
                async with self._refreshing():
                    await self._store.create_topic(row)
            except StoreConflict:
                raise _exists(name) from None
        return self._by_id.get(row.topic_id) or self._topic(row)

    async def ensure(self, name: str, *, permit: Callable[[int], None] = lambda partitions: None) -> Topic:
        """Auto-creation (Metadata, when the request allows it): the topic, created with the default
        partitions if missing.

        UNKNOWN_TOPIC_OR_PARTITION when auto-creation is off, and for Kafka's metadata log; 17 for a bad name,
        or one of Kafka's internal topics. `permit` as in `create`.
        """
        topic = self._by_name.get(name)
        if topic is not None:
            return topic
        check_name(name)
        if not self._auto_create_topics or name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        if name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
        try:
            return await self.create(name, permit=permit)
        except KafkaError as refusal:
            if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:  # made by another request meanwhile
                return self.named(name)
            raise

    async def delete(self, topic: Topic) -> None:
        """DeleteTopics for one topic; UNKNOWN_TOPIC_ID if it was deleted meanwhile, 17 for a kept one."""
        self._check_changeable(topic)
        async with self._refreshing():
            found = await self._store.delete_topic(topic.topic_id)
        if not found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic.name} has already been deleted")

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        brokers: Hosts = _ONE_HOST,
        permit: Callable[[int], None] = lambda partitions: None,
        validate_only: bool = False,
    ) -> Topic:
        """CreatePartitions: grow to `total`, with as many replicas as the first partition has. 37 unless it
        grows, 38 for more replicas than there are brokers, 39 for assignments that do not match, 44 beyond
        the same bounds as in `create`, 3 unknown. `permit` as in `create`, once."""
        permitted = False

        def grown(row: TopicRow) -> TopicRow:
            if total <= row.partitions:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"topic {name} has {row.partitions} partitions already; {total} were requested",
                )
            self._check_partitions_max(name, total, total - row.partitions)
            new, factor = range(row.partitions, total), factor_of(row.assignments)
            if assignments is not None and len(assignments) != len(new):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(assignments)} assignments for {len(new)} new partitions",
                )
            if assignments is None:
                assigned = brokers.spread(row.topic_id, new, factor)
            else:
                assigned = brokers.assigned(dict(zip(new, map(tuple, assignments), strict=True)), factor)
            nonlocal permitted
            if not permitted:
                permit(len(new))
                permitted = True
            return row._replace(partitions=total, assignments={**row.assignments, **assigned})

        return await self._update(name, grown, validate_only=validate_only)

    async def alter_configs(
        self,
        name: str,
        changes: Sequence[ConfigChange],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        """Change topic configs; `replace` first drops those that are set (AlterConfigs, as opposed to
        IncrementalAlterConfigs). INVALID_CONFIG (40), 3, 17.

        As in Kafka, invalid configs are refused even for a topic that does not exist. Those of a newer muster
        stay, unless they are among the changed ones.
        """

        def altered(before: Mapping[str, str]) -> dict[str, str]:
            configs = changed({} if replace else before, changes, SPECS)
            validated({**self._defaults, **to_check(configs, changes, SPECS.get)}, self._defaults)
            return configs

        def altered_row(row: TopicRow) -> TopicRow:
            return row._replace(configs=altered(row.configs))

        check_name(name)
        if name not in self._by_name:
            altered({})
        return await self._update(name, altered_row, validate_only=validate_only)

    @contextmanager
    def _reserved(self, name: str, partitions: int) -> Iterator[None]:
        """While the store makes a change, those asked for meanwhile are checked as if it had been made: the
        store knows neither bound nor collisions."""
        alike = self._under_way.setdefault(_fold(name), {})
        totals = alike.setdefault(name, [])
        before = self._growth(name)
        totals.append(partitions)
        self._partitions_under_way += self._growth(name) - before
        try:
            yield
        finally:
            before = self._growth(name)
            totals.remove(partitions)
            self._partitions_under_way += self._growth(name) - before
            if not totals:
                del alike[name]
            if not alike:
                del self._under_way[_fold(name)]

    def _growth(self, name: str) -> int:
        """How many partitions the topic is about to get."""
        known = self._by_name.get(name)
        totals = self._under_way.get(_fold(name), {}).get(name, ())
        return max(max(totals, default=0) - (0 if known is None else known.partitions), 0)

    def _check_partitions_max(self, name: str, of_topic: int, more: int) -> None:
        if of_topic > PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a topic may have at most {PARTITIONS_MAX} partitions, not {of_topic}",
            )
        # Not those of the same name: the store lets one creation win, and one growth at a time.
        total = self._partitions_total + self._partitions_under_way - self._growth(name)
        if total + more > self._partitions_total_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"all topics together may have at most {self._partitions_total_max} partitions; there are "
                f"{total} already, asked for {more} more",
            )

    async def _update(
        self, name: str, change: Callable[[TopicRow], TopicRow], *, validate_only: bool
    ) -> Topic:
        """Compute the new row from the present one; retry if another broker changed it in between."""
        for _ in range(_ATTEMPTS):
            topic = self.named(name)
            self._check_changeable(topic)
            row = self._rows[topic.topic_id]
            updated = change(row)
            if validate_only:
                return self._topic(updated)
            with self._reserved(name, updated.partitions):
                await self._number_lists(updated.assignments, row.assignments)
                try:
                    await self._store.update_topic(updated, expected=row)
                except StoreConflict:
                    await self.refresh()
                    continue
                await self.refresh()
            return self._by_id.get(updated.topic_id) or self._topic(updated)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"other requests keep changing topic {name}; try again")

    async def reassign(
        self, topic: Topic, lists: Mapping[int, Replicas], led_under: Callable[[Topic, int], Grant | None]
    ) -> Topic | None:
        """Assign partitions of the topic to other brokers, which have been checked; `led_under` gives the
        lease under which a partition is led, with its present epoch, or None if unknown.

        Returns None when nothing was changed, since leases are moving or another broker changed the topic:
        retry soon. 17 for a kept topic, 44 for too many replica lists.
        """
        self._check_changeable(topic)
        row = self._rows[topic.topic_id]
        topic = self._by_id[topic.topic_id]
        assigned = dict(row.assignments)
        epochs: dict[Lease, int] = {}
        for partition, replicas in lists.items():
            before = assigned.get(partition)
            if before is not None and before.replicas == replicas:
                continue
            grant = led_under(topic, partition)
            if grant is None:
                return None
            epochs[grant.lease] = grant.epoch
            # Leases are claimed from epoch 1 on, so the leader epoch grows.
            base = topic.epoch_base(partition) + grant.epoch
            assigned[partition] = Assignment(replicas, base, grant.lease, grant.epoch)
        if assigned == row.assignments:
            return topic
        updated = row._replace(assignments=assigned)
        await self._number_lists(assigned, row.assignments)
        try:
            await self._store.update_topic(updated, expected=row, epochs=epochs)
        except StoreConflict:
            await self.refresh()
            return None
        await self.refresh()
        return self._by_id.get(updated.topic_id) or self._topic(updated)

    async def _number_lists(
        self, assignments: Mapping[int, Assignment], known: Mapping[int, Assignment] = MappingProxyType({})
    ) -> None:
        """Give new replica lists their shards; POLICY_VIOLATION (44) when there are too many."""
        new = lists_of(assignments.values()) - lists_of(known.values())
        if new:
            try:
                await self._store.add_replica_lists(new)
            except StoreConflict as conflict:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, str(conflict)) from None

    def _check_changeable(self, topic: Topic) -> None:
        if self._kept.get(topic.name) == topic:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal and cannot be changed"
            )

    def _check_free(self, name: str) -> None:
        if name in self._by_name:
            raise _exists(name)
        if name == EVENTS_TOPIC:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the name {name} is reserved")
        folded = _fold(name)
        # Not the same name: which creation wins is only known when the store has answered.
        under_way = (each for each in self._under_way.get(folded, ()) if each != name)
        colliding = self._folded.get(folded) or next(under_way, None)
        if colliding is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} differs from topic {colliding} in '.' and '_' only",
            )


def check_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION (17) unless Kafka allows the name."""
    if not name:
        why = "the topic name is empty"
    elif name in (".", ".."):
        why = f"a topic cannot be called {name}"
    elif len(name) > NAME_LENGTH_MAX:
        why = f"a topic name may have at most {NAME_LENGTH_MAX} characters, not {len(name)}"
    elif _NAME.fullmatch(name) is None:
        why = f"a topic name may have only letters, digits, '.', '_' and '-', unlike {name!r}"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)


def _fold(name: str) -> str:
    return name.replace(".", "_")


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")


def _overrides(configs: Mapping[str, str | None]) -> dict[str, str]:
    missing = [key for key, value in configs.items() if value is None]
    if missing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"no value for topic configs: {', '.join(missing)}")
    return {key: value for key, value in configs.items() if value is not None}
