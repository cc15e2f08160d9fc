"""What the scripts do to groups of real clients, and the truth that explanations are checked against."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muster.client import Admin
from muster.coordinator.testing import Cluster
from tests.causes.acting import CLIENTS, JAVA, Member, Stage, wait_until

GROUP: Final = "billing"
TOPIC: Final = "orders"
OTHER_TOPIC: Final = "refunds"
PARTITIONS: Final = 6

SHORT_MS: Final = 6_000
"""Kafka's group.min.session.timeout.ms: the shortest session timeout that a client may request."""
LONGER_S: Final = 11.0
"""Longer than SHORT_MS, with room for a slow machine."""

_CLIENTS_OF_STATIC_MEMBERS: Final = (JAVA, "confluent", "kafka_python", "muster")
_CLIENTS_WITH_THREADS: Final = (JAVA, "confluent", "kafka_python")
_CLIENTS_ON_A_LOOP: Final = ("aiokafka", "muster")
_CLIENTS_THAT_REJOIN: Final = tuple(each for each in CLIENTS if each != "kafka_python")
"""A kafka-python 3.0 that subscribes to one more topic often keeps its old assignment."""


class Scene(NamedTuple):
    """What a case works with."""

    cluster: Cluster
    stage: Stage
    client: str
    protocol: str = "classic"

    def stable(self, members: int, generation: int | None = None) -> None:
        """Wait until the group is stable."""
        self.cluster.group(GROUP).stable(members=members, generation=generation, timeout="90s")

    @property
    def generation(self) -> int:
        return self.cluster.group(GROUP).generation

    def start(self, name: str, client: str | None = None, **options: Any) -> Member:
        return self.stage.start(client or self.client, name, **{"protocol": self.protocol, **options})

    def pair(self, **options: Any) -> tuple[Member, Member]:
        """Start two members that share the topic: `web-1` and `web-2`."""
        first = self.start("web-1", **options)
        self.shared(first)
        second = self.start("web-2", **options)
        self.shared(first, second)
        return first, second

    def shared(self, *members: Member) -> None:
        """Wait until exactly these members share all partitions, and each knows its own. (kafka-python may
        join twice until then: the first time without knowing the topic's partitions.)"""
        wait_until(
            lambda: (
                all(member.owned for member in members)
                and sorted(each for member in members for each in member.owned)
                == [(TOPIC, number) for number in range(PARTITIONS)]
            ),
            "the members to share all partitions",
        )
        self.stable(members=len(members))

    def wait_for_entries(self, type: str, count: int = 1) -> None:
        """Wait until the group's journal has `count` entries of this type."""
        wait_until(
            lambda: sum(each.type == type for each in self.cluster.group(GROUP).timeline()) >= count,
            f"{count} {type} in the journal",
        )

    def admin(self, call: Callable[[Admin], Any]) -> None:
        """Make one call as an admin."""

        async def make() -> None:
            async with Admin(self.cluster.bootstrap) as admin:
                await call(admin)

        asyncio.run(make())


class Truth(NamedTuple):
    """The true cause of the rebalance that led to `generation`, or of the latest event if None."""

    generation: int | None
    cause: str | None
    """None accepts any cause: for events that are no rebalance or have no single trigger."""
    diagnosis: str
    member: str | None = None
    """Client id of the member responsible."""


@dataclass(frozen=True)
class Case:
    """Something that happens to a group."""

    name: str
    what: str
    """What the script does, as the table shows it."""
    clients: tuple[str, ...]
    act: Callable[[Scene], Truth]
    brokers: int = 1
    protocol: str = "classic"
    """Default protocol of the members, unless the script sets another."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def _killed(scene: Scene) -> Truth:
    _, second = scene.pair()
    generation = scene.generation
    second.kill()
    scene.cluster.group(GROUP).member("web-2").disconnected()
    scene.cluster.clock.advance("46s")
    scene.stable(members=1)
    return Truth(generation + 1, "session expired", "crashed", "web-2")


def _started_again(scene: Scene) -> Truth:
    first, second = scene.pair()
    generation = scene.generation
    second.kill()
    scene.cluster.group(GROUP).member("web-2").disconnected()
    third = scene.start("web-2")
    scene.cluster.group(GROUP).in_state("PreparingRebalance")
    scene.cluster.clock.advance("46s")
    scene.shared(first, third)
    return Truth(generation + 1, "member joined", "crashed", "web-2")


def _paused(scene: Scene) -> Truth:
    _, second = scene.pair(session_timeout_ms=SHORT_MS)
    generation = scene.generation
    second.stand_still()
    scene.stable(members=1)
    return Truth(generation + 1, "session expired", "stalled", "web-2")


def _loop_blocked(scene: Scene) -> Truth:
    _, second = scene.pair(session_timeout_ms=SHORT_MS)
    generation, said = scene.generation, len(second.said)
    second.tell(f"block {LONGER_S}")
    second.wait_for("awake", after=said)
    second.wait_for("assigned", after=said)
    scene.stable(members=2)
    return Truth(generation + 1, "session expired", "stalled", "web-2")


def _poll_deadline_missed(scene: Scene) -> Truth:
    _, second = scene.pair(session_timeout_ms=SHORT_MS, max_poll_interval_ms=SHORT_MS)
    generation, said = scene.generation, len(second.said)
    second.tell(f"nap {LONGER_S}")
    second.wait_for("awake", after=said)
    second.wait_for("assigned", after=said)
    scene.stable(members=2)
    return Truth(generation + 1, "member left", "poll-deadline-missed", "web-2")


def _came_back(scene: Scene) -> Truth:
    truth = _poll_deadline_missed(scene)
    assert truth.generation is not None
    return Truth(truth.generation + 1, "member joined", "rejoined-after-eviction", "web-2")


def _closed(scene: Scene) -> Truth:
    _, second = scene.pair()
    generation = scene.generation
    second.close()
    scene.stable(members=1)
    return Truth(generation + 1, "member left", "clean-shutdown", "web-2")


def _joined(scene: Scene) -> Truth:
    scene.pair()
    return Truth(scene.generation, "member joined", "new-member", "web-2")


def _topic_grown(scene: Scene) -> Truth:
    scene.pair(metadata_max_age_ms=1_000)
    scene.admin(lambda admin: admin.create_partitions({TOPIC: PARTITIONS + 3}))

    def shared_out() -> list[int | None]:
        """The generations in which the new partitions had owners; kafka-python may join earlier, for reasons
        of its own."""
        timeline = scene.cluster.group(GROUP).timeline()
        grown = PARTITIONS + 3
        return [
            each.generation
            for each in timeline
            if each.type == "assigned" and each.data["partitions"] == grown
        ]

    wait_until(shared_out, "the new partitions to be shared out")
    scene.stable(members=2)
    # The leader's JoinGroup differs by client: Java's includes its owned partitions, so its metadata has
    # changed too.
    return Truth(shared_out()[0], None, "topics-grown")


def _resubscribed(scene: Scene) -> Truth:
    _, second = scene.pair()
    generation = scene.generation
    second.tell(f"subscribe {TOPIC},{OTHER_TOPIC}")
    scene.stable(members=2, generation=generation + 1)
    return Truth(generation + 1, "subscription or protocols changed", "subscription-changed", "web-2")


def _rolling_restart(scene: Scene) -> Truth:
    """Restart static members one after the other, each back within its session timeout."""
    names = ("web-1", "web-2", "web-3")
    running = {name: scene.start(name, instance=name) for name in names}
    scene.shared(*running.values())
    generation = scene.generation
    for count, name in enumerate(names, 1):
        running[name].kill()
        running[name] = scene.start(name, instance=name)
        scene.wait_for_entries("member_replaced", count)
        running[name].wait_for("assigned")
    assert scene.generation == generation, "static members have rebalanced"
    return Truth(None, None, "rolling-restart")


def _twins(scene: Scene) -> Truth:
    """Start two processes with the same instance id."""
    scene.start("web-1", instance="web").wait_for("assigned")
    scene.start("web-2", instance="web").wait_for("assigned")
    scene.wait_for_entries("member_fenced")
    return Truth(None, None, "duplicate-instance-id")


def _coordinator_killed(scene: Scene) -> Truth:
    scene.pair()
    generation = scene.generation
    coordinator = scene.cluster.coordinator_of(GROUP)
    assert coordinator is not None
    scene.cluster.kill(coordinator)
    wait_until(lambda: scene.cluster.coordinator_of(GROUP) not in (None, coordinator), "another coordinator")
    scene.wait_for_entries("shard_loaded")
    scene.stable(members=2)
    assert scene.generation == generation, "the group has rebalanced"
    return Truth(None, None, "coordinator-moved")


def _never_came_back(scene: Scene) -> Truth:
    """A client receives its member id and dies before it can join with it."""
    scene.start("web-1").wait_for("assigned")
    scene.stable(members=1)
    with scene.cluster.faults.add(api="JoinGroup", client_id="web-2", drop_response=True) as rule:
        lost = scene.start("web-2")
        rule.hit(timeout="90s")
        lost.kill()
    scene.start("web-3")
    scene.wait_for_entries("member_rejoined")  # now the group waits only for web-2
    scene.cluster.clock.advance("10s")
    return Truth(None, "member joined", "pending-member", "web-2")


def _evicted(scene: Scene) -> Truth:
    scene.pair()
    generation = scene.generation
    second = scene.cluster.group(GROUP).member("web-2").facts
    scene.admin(lambda admin: admin.remove_members(GROUP, member_ids=[second.id], reason="maintenance"))
    scene.wait_for_entries("member_removed")
    scene.stable(members=2)
    return Truth(generation + 1, "member left", "evicted-by-admin", "web-2")


def _full(scene: Scene) -> Truth:
    scene.pair()
    scene.start("web-3")
    scene.wait_for_entries("join_refused")
    return Truth(None, None, "group-full", "web-3")


CLASSIC: Final = (
    Case("killed", "a member's process is killed (SIGKILL)", CLIENTS, _killed),
    Case("started-again", "… and started again before its session expires", CLIENTS, _started_again),
    Case("paused", "a member's process stands still for longer than its session (SIGSTOP)", CLIENTS, _paused),
    Case(
        "loop-blocked",
        "a handler blocks the event loop for longer than the session",
        _CLIENTS_ON_A_LOOP,
        _loop_blocked,
    ),
    Case("poll-deadline", "a handler takes longer than max.poll.interval.ms", CLIENTS, _poll_deadline_missed),
    Case("came-back", "… and polls again", _CLIENTS_WITH_THREADS, _came_back),
    Case("closed", "a member is closed", CLIENTS, _closed),
    Case("joined", "a second member starts", CLIENTS, _joined),
    Case("topic-grown", "the topic gets three more partitions", CLIENTS, _topic_grown),
    Case("resubscribed", "a member subscribes to another topic as well", _CLIENTS_THAT_REJOIN, _resubscribed),
    Case(
        "rolling-restart",
        "three static members are killed and started, one after the other",
        _CLIENTS_OF_STATIC_MEMBERS,
        _rolling_restart,
    ),
    Case("twins", "two processes with one group.instance.id", _CLIENTS_OF_STATIC_MEMBERS, _twins),
    Case(
        "coordinator-killed",
        "the group's coordinator is killed",
        (JAVA, "confluent"),
        _coordinator_killed,
        brokers=3,
    ),
    Case(
        "never-came-back",
        "a client is told its member id and dies; then another joins",
        (JAVA, "confluent", "kafka_python"),
        _never_came_back,
    ),
    Case("evicted", "an admin removes a member", (JAVA, "confluent", "muster"), _evicted),
    Case(
        "full",
        "a third member joins a group limited to two",
        (JAVA, "confluent"),
        _full,
        settings={"group_max_size": 2},
    ),
)
