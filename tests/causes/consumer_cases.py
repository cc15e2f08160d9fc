"""What is done to groups of the consumer protocol (KIP-848), and to groups that switch protocols."""

from __future__ import annotations

from typing import Any, Final

from tests.causes.acting import JAVA, Member, wait_until
from tests.causes.cases import GROUP, OTHER_TOPIC, PARTITIONS, TOPIC, Case, Scene, Truth

_NEW_TOPIC: Final = "orders-eu"
_CLIENTS: Final = ("confluent", "muster")
_SETTINGS: Final[dict[str, Any]] = {
    "group_consumer_min_heartbeat_interval_ms": 200,
    "group_consumer_heartbeat_interval_ms": 200,
    "group_consumer_assignment_interval_ms": 0,
}


def _pair(scene: Scene, **options: Any) -> tuple[Member, Member]:
    return scene.pair(**options)


def _joined(scene: Scene) -> Truth:
    _pair(scene)
    return Truth(scene.generation, "member joined", "new-member", "web-2")


def _closed(scene: Scene) -> Truth:
    _, second = _pair(scene)
    epoch = scene.generation
    second.close()
    scene.stable(members=1)
    return Truth(epoch + 1, "member left", "clean-shutdown", "web-2")


def _killed(scene: Scene) -> Truth:
    _, second = _pair(scene)
    epoch = scene.generation
    second.kill()
    scene.cluster.group(GROUP).member("web-2").disconnected()
    scene.cluster.clock.advance("46s")
    scene.stable(members=1)
    return Truth(epoch + 1, "session expired", "crashed", "web-2")


def _started_again(scene: Scene) -> Truth:
    first, second = _pair(scene)
    epoch = scene.generation
    second.kill()
    scene.cluster.group(GROUP).member("web-2").disconnected()
    third = scene.start("web-2")
    scene.wait_for_entries("member_added", 3)
    scene.cluster.clock.advance("46s")
    scene.shared(first, third)
    return Truth(epoch + 1, "member joined", "crashed", "web-2")


def _paused(scene: Scene) -> Truth:
    _, second = _pair(scene)
    epoch = scene.generation
    second.stand_still()
    scene.cluster.clock.stall(GROUP, scene.cluster.group(GROUP).member("web-2").facts.id)
    scene.cluster.clock.advance("46s")
    scene.stable(members=1)
    return Truth(epoch + 1, "session expired", "stalled", "web-2")


def _poll_deadline_missed(scene: Scene) -> Truth:
    _, second = _pair(scene, max_poll_interval_ms=2_000)
    epoch, said = scene.generation, len(second.said)
    second.tell("nap 5")
    second.wait_for("awake", after=said)
    scene.wait_for_entries("member_added", 3)
    return Truth(epoch + 1, "member left", "poll-deadline-missed", "web-2")


def _came_back(scene: Scene) -> Truth:
    _poll_deadline_missed(scene)
    scene.stable(members=2)
    return Truth(scene.generation, "member joined", "rejoined-after-eviction", "web-2")


def _slow_to_revoke(scene: Scene) -> Truth:
    """A member does not poll while another waits for its partitions."""
    first = scene.start("web-1")
    scene.shared(first)
    first.tell("nap 6")
    scene.start("web-2")
    scene.wait_for_entries("revocation_requested")
    scene.cluster.clock.advance("301s")
    scene.wait_for_entries("member_removed")
    epoch = next(
        each.generation
        for each in scene.cluster.group(GROUP).timeline()
        if each.type == "epoch_bumped" and each.trigger == "revocation timed out"
    )
    return Truth(epoch, "revocation timed out", "slow-revoke", "web-1")


def _slow_meanwhile(scene: Scene) -> Truth:
    """The same, asked while the revocation is still pending."""
    first = scene.start("web-1")
    scene.shared(first)
    first.tell("nap 4")
    scene.start("web-2")
    scene.wait_for_entries("revocation_requested")
    scene.cluster.clock.advance("10s")
    return Truth(None, "member joined", "slow-revoke", "web-1")


def _resubscribed(scene: Scene) -> Truth:
    _, second = _pair(scene)
    epoch = scene.generation
    second.tell(f"subscribe {TOPIC},{OTHER_TOPIC}")
    scene.stable(members=2, generation=epoch + 1)
    return Truth(epoch + 1, "subscription or protocols changed", "subscription-changed", "web-2")


def _topic_grown(scene: Scene) -> Truth:
    _pair(scene)
    epoch = scene.generation
    scene.admin(lambda admin: admin.create_partitions({TOPIC: PARTITIONS + 3}))
    scene.stable(members=2, generation=epoch + 1)
    return Truth(epoch + 1, "topics changed", "topics-grown")


def _topic_created(scene: Scene) -> Truth:
    """A topic is created after a member subscribed to it."""
    first = scene.start("web-1", topics=(TOPIC, _NEW_TOPIC))
    scene.shared(first)
    epoch = scene.generation
    scene.cluster.create_topic(_NEW_TOPIC, 2)
    scene.stable(members=1, generation=epoch + 1)
    return Truth(epoch + 1, "topics changed", "topics-grown")


def _topic_deleted(scene: Scene) -> Truth:
    first = scene.start("web-1", topics=(TOPIC, OTHER_TOPIC))
    wait_until(lambda: len(first.owned) == PARTITIONS + 1, "both topics")
    scene.stable(members=1)
    epoch = scene.generation
    scene.admin(lambda admin: admin.delete_topics([OTHER_TOPIC]))
    scene.stable(members=1, generation=epoch + 1)
    return Truth(epoch + 1, "topics changed", "topics-grown")


def _regex(scene: Scene) -> Truth:
    first = scene.start("web-1", topics=("^orders.*",))
    scene.shared(first)
    epoch = scene.generation
    scene.cluster.create_topic(_NEW_TOPIC, 2)
    scene.cluster.clock.advance("11s")  # past the interval at which regular expressions are resolved again
    wait_until(lambda: len(first.owned) == PARTITIONS + 2, "the new topic")
    scene.stable(members=1, generation=epoch + 1)
    return Truth(epoch + 1, "regular expression resolved", "regex-resolved")


def _rolling_restart(scene: Scene) -> Truth:
    """Restart static members one after the other, each closed and started again."""
    names = ("web-1", "web-2", "web-3")
    running = {name: scene.start(name, instance=name) for name in names}
    scene.shared(*running.values())
    epoch = scene.generation
    for count, name in enumerate(names, 1):
        running[name].close()
        running[name] = scene.start(name, instance=name)
        scene.wait_for_entries("member_replaced", count)
        running[name].wait_for("gained")
    assert scene.generation == epoch, "static members have rebalanced"
    return Truth(None, None, "rolling-restart")


def _away(scene: Scene) -> Truth:
    """A static member is closed and not restarted yet."""
    first = scene.start("web-1", instance="web-1")
    second = scene.start("web-2", instance="web-2")
    scene.shared(first, second)
    second.close()
    wait_until(lambda: scene.cluster.group(GROUP).state == "Reconciling", "the group to miss it")
    return Truth(None, None, "static-member-away", "web-2")


def _other_assignor(scene: Scene) -> Truth:
    """A static member restarts with another group.remote.assignor."""
    first = scene.start("web-1", instance="web")
    scene.shared(first)
    epoch = scene.generation
    first.close()
    scene.start("web-1", instance="web", remote_assignor="range").wait_for("gained")
    scene.stable(members=1, generation=epoch + 1)
    return Truth(epoch + 1, "static member returned", "assignor-changed", "web-1")


def _twins(scene: Scene) -> Truth:
    """Start two processes with the same instance id."""
    scene.shared(scene.start("web-1", instance="web"))
    scene.start("web-2", instance="web")
    scene.wait_for_entries("join_refused")
    return Truth(None, None, "duplicate-instance-id", "web-2")


def _coordinator_killed(scene: Scene) -> Truth:
    _pair(scene)
    epoch = scene.generation
    coordinator = scene.cluster.coordinator_of(GROUP)
    assert coordinator is not None
    scene.cluster.kill(coordinator)
    wait_until(lambda: scene.cluster.coordinator_of(GROUP) not in (None, coordinator), "another coordinator")
    scene.wait_for_entries("shard_loaded")
    scene.stable(members=2)
    assert scene.generation == epoch, "the group has rebalanced"
    return Truth(None, None, "coordinator-moved")


def _evicted(scene: Scene) -> Truth:
    _pair(scene)
    epoch = scene.generation
    second = scene.cluster.group(GROUP).member("web-2").facts
    scene.admin(lambda admin: admin.remove_members(GROUP, member_ids=[second.id], reason="maintenance"))
    scene.wait_for_entries("member_removed")
    return Truth(epoch + 1, "member left", "evicted-by-admin", "web-2")


def _full(scene: Scene) -> Truth:
    _pair(scene)
    scene.start("web-3")
    scene.wait_for_entries("join_refused")
    return Truth(None, None, "group-full", "web-3")


def _upgraded(scene: Scene) -> Truth:
    scene.pair(protocol="classic")
    scene.start("web-3").wait_for("gained")
    epoch = next(
        each.generation for each in scene.cluster.group(GROUP).timeline() if each.type == "epoch_bumped"
    )
    return Truth(epoch, "member joined", "upgraded", "web-3")


def _downgraded(scene: Scene) -> Truth:
    first = scene.start("web-1", protocol="classic")
    scene.shared(first)
    second = scene.start("web-2")
    second.wait_for("gained")
    scene.stable(members=2)
    second.close()
    scene.stable(members=1)
    wait_until(lambda: len(first.owned) == PARTITIONS, "the rest to be one group")
    return Truth(scene.generation, "member left", "downgraded", "web-2")


def _case(
    name: str,
    what: str,
    act: Any,
    clients: tuple[str, ...] = _CLIENTS,
    *,
    brokers: int = 1,
    **settings: Any,
) -> Case:
    return Case(
        f"consumer-{name}",
        f"consumer protocol: {what}",
        clients,
        act,
        brokers=brokers,
        protocol="consumer",
        settings={**_SETTINGS, **settings},
    )


CONSUMER: Final = (
    _case("joined", "a second member starts", _joined, (JAVA, *_CLIENTS)),
    _case("closed", "a member is closed", _closed, (JAVA, *_CLIENTS)),
    _case("killed", "a member's process is killed (SIGKILL)", _killed),
    _case("started-again", "… and started again before its session expires", _started_again),
    _case("paused", "a member's process stands still for longer than its session (SIGSTOP)", _paused),
    _case(
        "poll-deadline",
        "a handler takes longer than max.poll.interval.ms",
        _poll_deadline_missed,
        ("confluent",),
    ),
    _case("came-back", "… and polls again", _came_back, ("confluent",)),
    _case(
        "slow-to-revoke",
        "a member does not poll while another waits for its partitions, until it is removed",
        _slow_to_revoke,
        ("confluent",),
    ),
    _case("revoking", "… asked while it is still under way", _slow_meanwhile, ("confluent",)),
    _case("resubscribed", "a member subscribes to another topic as well", _resubscribed),
    _case("topic-grown", "the topic gets three more partitions", _topic_grown),
    _case("topic-created", "a topic that was subscribed to is created", _topic_created, ("confluent",)),
    _case("topic-deleted", "a topic is deleted", _topic_deleted, ("confluent",)),
    _case("regex", "a topic is created that a regular expression matches", _regex, ("confluent",)),
    _case(
        "rolling-restart",
        "three static members are closed and started, one after the other",
        _rolling_restart,
        ("confluent",),
    ),
    _case("away", "a static member is closed", _away),
    _case(
        "other-assignor",
        "a static member is started again with another group.remote.assignor",
        _other_assignor,
    ),
    _case("twins", "two processes with one group.instance.id", _twins, ("confluent",)),
    _case(
        "coordinator-killed",
        "the group's coordinator is killed",
        _coordinator_killed,
        ("confluent",),
        brokers=3,
    ),
    _case("evicted", "an admin removes a member", _evicted, ("confluent",)),
    _case(
        "full",
        "a third member joins a group limited to two",
        _full,
        ("confluent",),
        group_consumer_max_size=2,
    ),
    _case("upgraded", "it joins a group of two classic members", _upgraded),
    _case("downgraded", "its last member leaves a classic one behind", _downgraded),
)
