"""The harm done to a run, one act after the other, as the seed's dice decide; and its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from muster.coordinator.storage.store import Append, LeaseKind, Outcome, StoreError
from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import JoinGroupRequest
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from tests.simulator.checkers import Violation
from tests.simulator.consumer import OwnConsumer
from tests.simulator.coverage import Coverage, Ending
from tests.simulator.crowd import COOPERATIVE, GROUPS, Crowd, Kind
from tests.simulator.fleet import Fleet
from tests.simulator.member import NO_TOPICS, PASSING_TOPICS, TOPICS, Client, Member
from tests.simulator.network import Disconnected, Network
from tests.simulator.node import Node
from tests.simulator.store import Weather

_MEMBERS_MAX = 4  # of a group
_PARTITIONS_MAX = 7  # of a topic


class Harm:
    """Does the harm. `say` adds a trace line; `failed` is called with exceptions that no act may raise."""

    def __init__(
        self,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        nodes: list[Node],
        crowd: Crowd,
        network: Network,
        weather: Weather,
        coverage: Coverage,
        fleet: Fleet | None,
        *,
        say: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._rng = rng
        self._loop = loop
        self._nodes = nodes
        self._crowd = crowd
        self._network = network
        self._weather = weather
        self._coverage = coverage
        self._say = say
        self._failed = failed
        self._errands: set[asyncio.Task[None]] = set()
        self._doom: LeaseKind | None = None
        """The next broker to write to a lease of this kind dies of it."""
        self._acts: list[tuple[int, Callable[[], str | None]]] = [
            (4, self._member_joins),
            (2, self._member_leaves),
            (3, self._member_crashes),
            (3, self._member_stalls),
            (2, self._member_subscribes),
            (2, self._static_member_restarts),
            (2, self._static_members_swap),
            (1, self._member_id_is_wasted),
            (2, self._connection_breaks),
            (2, self._connection_is_half_open),
            (1, self._topic_grows),
            (2, self._topic_comes),
            (1, self._topic_goes),
            (5, self._group_migrates),
            (3, self._node_dies),
            (1, self._node_leaves),
            (2, self._node_pauses),
            (3, self._node_is_cut_off_from_the_store),
            (2, self._node_is_cut_off_from_its_clients),
            (3, self._store_fails),
            (2, self._store_stalls),
            (2, self._store_fills),
            (1, self._store_is_busy),
            (1, self._network_slows),
        ]
        if fleet is not None:
            self._acts += fleet.acts
            self._acts.append((5, self._node_dies_at_a_step))

    def act(self) -> None:
        weights, acts = zip(*self._acts, strict=True)
        (act,) = self._rng.choices(acts, weights)
        what = act()
        if what is not None:
            self._say(what)

    async def end(self, patience_s: float) -> None:
        """Heal whatever heals, and wait until all brokers are back. Raises Violation if one is not."""
        self._doom = None
        self._weather.failure = self._weather.busy = self._network.latency.slow = 0.0
        self._weather.letters_lost = 0.0
        self._weather.stalled_until_s = self._weather.full_until_s = 0.0
        for node in self._nodes:
            self._wake(node)
            self._network.cut_off(node.address, 0)
            if node.store is not None:
                node.store.cut_off(0)
        if self._errands:
            _, late = await asyncio.wait(list(self._errands), timeout=patience_s)
            if late:
                raise Violation(f"brokers neither start nor stop: {late}")

    def errand(self, errand: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the plot; `end` waits for it."""
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # --- members ------------------------------------------------------------------------------------

    def _member_joins(self) -> str | None:
        group_id = self._rng.choice(GROUPS)
        if len(self._crowd.living(group_id)) >= _MEMBERS_MAX:
            return None
        instance_id = self._crowd.new_instance(group_id) if self._rng.random() < 0.4 else None
        return f"joins: {self._crowd.add(group_id, instance_id).name}"

    def _member_leaves(self) -> str | None:
        member = self._crowd.some()
        if member is None:
            return None
        member.leave()
        self._coverage.member_ends(member.group_id, member.name)
        return f"leaves: {member.name}"

    def _member_crashes(self) -> str | None:
        member = self._crowd.some()
        if member is None:
            return None
        silently = self._crash(member)
        return f"crashes{' silently' if silently else ''}: {member.name}"

    def _crash(self, member: Member | OwnConsumer) -> bool:
        silently = self._rng.random() < 0.5
        member.crash(silently=silently)
        self._coverage.member_ends(member.group_id, member.name)
        return silently

    def _member_stalls(self) -> str | None:
        member = self._crowd.some()
        if member is None:
            return None
        seconds = self._rng.uniform(0.5, 15)
        member.stall(seconds)
        return f"stalls for {seconds:.1f} s: {member.name}"

    def _member_subscribes(self) -> str | None:
        # Static members do not: a returning one gets what it had, whatever it subscribes to now.
        dynamic = [member for member in self._crowd.living() if member.instance_id is None]
        if not dynamic:
            return None
        member = self._rng.choice(dynamic)
        member.subscribe(*self._crowd.subscription(member))
        return f"subscribes to {sorted(member.topics)}, {member.regex!r}: {member.name}"

    def _static_member_restarts(self) -> str | None:
        """Restart a static member, sometimes before the old process has gone: then one of them is fenced."""
        static = self._crowd.static()
        if not static:
            return None
        member = self._rng.choice(static)
        luck = self._rng.random()
        if member.speaks == "consumer" and luck < 0.5:
            member.leave()
            self._coverage.member_ends(member.group_id, member.name)
        elif luck < 0.7:
            self._crash(member)
        successor = self._succeed(member, member.speaks)
        return f"restarts {member.name} as {successor.name}"

    def _succeed(self, member: Member | OwnConsumer, protocol: str) -> Member | OwnConsumer:
        """Start a new process in place of a member's."""
        return self._crowd.add(
            member.group_id,
            member.instance_id,
            member.topics or None,
            protocol=protocol,
            regex=member.regex,
        )

    def _group_migrates(self) -> str | None:
        """One member leaves and comes back with the other protocol."""
        migrating = [group_id for group_id, kind in self._crowd.kinds.items() if kind is Kind.MIGRATING]
        if not migrating:
            return None
        group_id = self._rng.choice(migrating)
        member = self._crowd.next_to_migrate(group_id)
        if member is None:
            return f"goes over to {self._crowd.goals[group_id]} from now on: {group_id}"
        if self._rng.random() < 0.75:
            member.leave()
            self._coverage.member_ends(group_id, member.name)
        else:
            self._crash(member)
        successor = self._succeed(member, self._crowd.goals[group_id])
        return f"goes over to {successor.speaks}: {member.name} as {successor.name}"

    def _static_members_swap(self) -> str | None:
        """Two processes restart, each with the other's instance id."""
        static = self._crowd.static(self._rng.choice(GROUPS))
        instances = {member.instance_id: member for member in static}
        if len(instances) < 2:
            return None
        one, other = self._rng.sample(list(instances.values()), 2)
        for member in (one, other):
            self._crash(member)
        for name, former in ((one.name, other), (other.name, one)):
            self._crowd.add(
                former.group_id,
                former.instance_id,
                former.topics or None,
                name,
                protocol=former.speaks,
                regex=former.regex,
            )
        return f"swap instances: {one.name}, {other.name}"

    def _member_id_is_wasted(self) -> str:
        """A client asks for a member id and disappears; the group waits for it at the next rebalance."""
        client = self._crowd.client(self._crowd.new_instance("nobody"))
        group_id = self._rng.choice(GROUPS)
        self.errand(self._waste_member_id(client, group_id))
        return f"takes a member id of {group_id} and is gone: {client.name}"

    async def _waste_member_id(self, client: Client, group_id: str) -> None:
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=[
                JoinGroupRequest.Protocol(name=name, metadata=NO_TOPICS) for name in ("range", COOPERATIVE)
            ],
        )
        address = await client.find_coordinator(group_id, [node.address for node in self._nodes])
        if address is None:
            return
        try:
            link = await client.connect(address)
            await client.ask(link, ApiKey.JOIN_GROUP, 9, request)
            link.close()
        except Disconnected:
            pass
        self._coverage.member_ends(group_id, client.name)

    def _connection_breaks(self) -> str | None:
        member = self._crowd.some()
        if member is None:
            return None
        silently = self._rng.random() < 0.5
        member.cut(silently=silently)
        return f"connection breaks{', which its broker does not hear' if silently else ''}: {member.name}"

    def _connection_is_half_open(self) -> str | None:
        member = self._crowd.some()
        if member is None or member.link is None:
            return None
        outward = self._rng.random() < 0.5
        member.link.lose(requests=outward, replies=not outward)
        return f"{'requests' if outward else 'replies'} are lost for good: {member.name}"

    def _topic_grows(self) -> str | None:
        topic = self._rng.choice(sorted(TOPICS))
        total = self._crowd.partitions()[topic] + self._rng.randint(1, 2)
        if total > _PARTITIONS_MAX:
            return None
        self.errand(self._grow(topic, total))
        return f"is to have {total} partitions: {topic}"

    async def _grow(self, topic: str, total: int) -> None:
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=3_000, validate_only=False)
        await self._administer(ApiKey.CREATE_PARTITIONS, 3, request)

    def _topic_comes(self) -> str | None:
        """Create a topic that members' regular expressions match, perhaps under the name of a deleted one."""
        missing = sorted(PASSING_TOPICS.keys() - self._crowd.partitions().keys())
        if not missing:
            return None
        topic = self._rng.choice(missing)
        created = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=PASSING_TOPICS[topic],
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        request = CreateTopicsRequest(topics=[created], timeout_ms=3_000)
        self.errand(self._administer(ApiKey.CREATE_TOPICS, 7, request))
        return f"is created: {topic}"

    def _topic_goes(self) -> str | None:
        present = sorted(PASSING_TOPICS.keys() & self._crowd.partitions().keys())
        if not present:
            return None
        topic = self._rng.choice(present)
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=3_000)
        self.errand(self._administer(ApiKey.DELETE_TOPICS, 5, request))
        return f"is deleted: {topic}"

    async def _administer(self, api_key: ApiKey, version: int, request: Message) -> None:
        """Send a request to some broker, once, whatever the outcome."""
        admin = self._crowd.client("admin")
        try:
            link = await admin.connect(self._rng.choice(self._nodes).address)
            await admin.ask(link, api_key, version, request)
            link.close()
        except Disconnected:
            pass

    # --- brokers ------------------------------------------------------------------------------------

    def _some_node(self) -> Node | None:
        up = [node for node in self._nodes if node.up]
        return self._rng.choice(up) if up else None

    def _node_dies(self) -> str | None:
        alive = [
            node for node in self._nodes if node.broker is not None
        ]  # also one that starts, or is paused
        if not alive:
            return None
        node = self._rng.choice(alive)
        before = f"dies: {node}"
        self._coverage.broker_ends(node.address, Ending.DIES)
        self.errand(self._kill_and_start(node, self._rng.uniform(0.05, 8)))
        return before

    async def _kill_and_start(self, node: Node, down_s: float) -> None:
        await node.kill()
        await asyncio.sleep(down_s)
        await self._start(node)

    def _node_dies_at_a_step(self) -> str:
        """Kill it right after the next stored step of a transaction or group, or a moment later."""
        self._doom = self._rng.choice([LeaseKind.TRANSACTION, LeaseKind.TRANSACTION, LeaseKind.GROUP])
        return f"who writes to a lease of {self._doom} next dies"

    def appended(self, append: Append, outcome: Outcome, room: bool) -> None:
        """Called when a broker's step was stored or refused."""
        if append.lease.kind is not self._doom or outcome is not Outcome.WRITTEN or not append.records:
            return
        for node in self._nodes:
            if node.broker is not None and node.broker.membership.serving(append.lease):
                self._doom = None
                delay_s = self._rng.choice([0.0, 0.005, 0.03]) * self._rng.random()
                self._loop.call_later(delay_s, self._dies_at_a_step, node, node.kills)

    def _dies_at_a_step(self, node: Node, kills: int) -> None:
        if node.broker is not None and node.kills == kills:
            self._say(f"dies of what it wrote: {node}")
            self._coverage.broker_ends(node.address, Ending.DIES)
            self.errand(self._kill_and_start(node, self._rng.uniform(0.05, 8)))

    def _node_leaves(self) -> str | None:
        node = self._some_node()
        if node is None:
            return None
        self._coverage.broker_ends(node.address, Ending.LEAVES)
        self.errand(self._stop_and_start(node, self._rng.uniform(0.05, 5)))
        return f"leaves: {node}"

    async def _stop_and_start(self, node: Node, down_s: float) -> None:
        await node.stop()
        await asyncio.sleep(down_s)
        await self._start(node)

    async def _start(self, node: Node) -> None:
        while True:
            kills = node.kills
            try:
                await node.start()
            except StoreError as error:
                if node.kills != kills:
                    return  # whoever killed it starts it again
                self._say(f"cannot start {node}: {error}")
                await node.kill()
                await asyncio.sleep(1)
            else:
                self._say(f"started: {node}")
                return

    def _node_pauses(self) -> str | None:
        node = self._some_node()
        if node is None:
            return None
        seconds = self._rng.choice([0.3, 2, 8, 15]) * self._rng.uniform(0.5, 1.5)
        node.pause()
        self._coverage.broker_pauses(node.address)
        self._loop.call_later(seconds, self._wake, node)
        return f"pauses for {seconds:.1f} s: {node}"

    def _wake(self, node: Node) -> None:
        if node.paused:
            self._coverage.broker_wakes(node.address)
        node.resume()

    def _node_is_cut_off_from_the_store(self) -> str | None:
        """Brokers know of each other only through the store, so this partitions them from each other too."""
        node = self._some_node()
        if node is None or node.store is None:
            return None
        seconds = self._rng.choice([0.5, 3, 8]) * self._rng.uniform(0.5, 1.5)
        node.store.cut_off(seconds)
        return f"does not reach the store for {seconds:.1f} s: {node}"

    def _node_is_cut_off_from_its_clients(self) -> str | None:
        node = self._some_node()
        if node is None:
            return None
        seconds = self._rng.choice([0.5, 3, 12]) * self._rng.uniform(0.5, 1.5)
        self._network.cut_off(node.address, seconds)
        self._coverage.broker_is_cut_off(node.address)
        return f"is not reached by clients for {seconds:.1f} s: {node}"

    # --- what they share ----------------------------------------------------------------------------

    def _store_fails(self) -> str:
        seconds = self._rng.uniform(0.2, 3)
        self._weather.failure = self._rng.choice([0.1, 0.5])
        self._loop.call_later(seconds, partial(setattr, self._weather, "failure", 0.0))
        return f"store fails for {seconds:.1f} s, {self._weather.failure:.0%} of changes"

    def _store_stalls(self) -> str:
        seconds = self._rng.choice([0.2, 1, 6]) * self._rng.uniform(0.5, 1.5)
        self._weather.stalled_until_s = self._loop.time() + seconds
        return f"store stalls for {seconds:.1f} s"

    def _store_fills(self) -> str:
        seconds = self._rng.uniform(0.2, 5)
        self._weather.full_until_s = self._loop.time() + seconds
        return f"store is full for {seconds:.1f} s"

    def _store_is_busy(self) -> str:
        seconds = self._rng.uniform(0.2, 3)
        self._weather.busy = self._rng.choice([0.3, 1.0])
        self._loop.call_later(seconds, partial(setattr, self._weather, "busy", 0.0))
        return f"store is busy for {seconds:.1f} s, {self._weather.busy:.0%} of appends"

    def _network_slows(self) -> str:
        seconds = self._rng.uniform(0.5, 5)
        self._network.latency.slow = 0.3
        self._loop.call_later(seconds, partial(setattr, self._network.latency, "slow", 0.0))
        return f"network slows for {seconds:.1f} s"
