"""Three brokers, each of which can fail in every way and take back what it had."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeVar

from muster.coordinator.base.clock import Clock
from muster.coordinator.cluster.placement import GROUP_SHARDS, place, shard_of
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.storage.store import LeaseKind, Store
from muster.coordinator.testing import Cluster
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.configs import IncrementalAlterConfigsResponse
from tests.support.leases import TERM_MS, run_out
from tests.support.ports import free_ports
from tests.support.wire_blocking import WireConnection
from tests.support.wire_configs import BROKER, SET, altering

T = TypeVar("T")

COUNT: Final = 3
_NODE_IDS: Final = tuple(range(1, COUNT + 1))
DEADLINE_S: Final = 60.0
_PAUSE_S: Final = 0.005  # poll interval


class Fault(StrEnum):
    """How a broker goes away. `again` brings it back."""

    KILL = "kill"
    """It dies, and its leases expire."""
    STOP = "stop"
    """It shuts down cleanly."""
    PAUSE = "pause"
    """It pauses while its leases expire, then resumes: by then it has been replaced, and joins anew."""
    DRAIN = "drain"
    """It stays, and gives its shards away."""


def homes(group_id: str) -> tuple[int, int]:
    """The broker, of three and by index, that placement gives the group's shard, and the next one without
    it."""
    shard = shard_of(group_id)
    first = place(LeaseKind.GROUP.value, shard, _NODE_IDS)
    second = place(LeaseKind.GROUP.value, shard, [node_id for node_id in _NODE_IDS if node_id != first])
    assert first is not None
    assert second is not None
    return first - 1, second - 1


class ThreeBrokers(Cluster):
    """Leases expire only when a test says so: no test waits for a term, and none expires by accident."""

    def __init__(self, *, clock: Clock | None = None, **settings: Any) -> None:
        # Ports that nobody takes while a broker is down.
        super().__init__(COUNT, port=free_ports(COUNT), clock=clock, **{"lease_term_ms": TERM_MS, **settings})
        self._still: set[int] = set()
        self._gone: set[int] = set()

    @property
    def store(self) -> Store:
        return self._core.brokers.shared.store

    def holder(self, group_id: str) -> int | None:
        """Index of the broker that serves the group's shard: it holds the lease and has loaded the shard. A
        paused broker does not count, nor does one that resumed and does not know yet that it was replaced."""
        epoch, index = self._served_at(group_id)
        return index if epoch and index not in self._still else None

    def _settled(self) -> bool:
        """Whether every shard is loaded where placement puts it among the brokers that are still there."""
        there = [node_id for index, node_id in enumerate(_NODE_IDS) if index not in self._gone]
        served = self._served()
        return all(
            served.get(number, (0, -1))[1] + 1 == place(LeaseKind.GROUP.value, number, there)
            for number in range(GROUP_SHARDS)
        )

    def _served_at(self, group_id: str) -> tuple[int, int]:
        """The highest epoch under which the group's shard is loaded, and the broker's index; (0, -1) if
        none."""
        return self._served().get(shard_of(group_id), (0, -1))

    def _served(self) -> dict[int, tuple[int, int]]:
        """The highest epoch of each loaded shard, and the index of its broker."""
        served: dict[int, tuple[int, int]] = {}
        for node in self._core.brokers.running:
            index = self._core.brokers.brokers.index(node)
            for status in node.runtime.shards():
                if status.state == "active":
                    served[status.number] = max(served.get(status.number, (0, -1)), (status.epoch, index))
        return served

    def loads(self, group_id: str) -> int | None:
        """Index of the broker that is loading the group's shard."""
        for node in self._core.brokers.running:
            for status in node.runtime.shards():
                if status.number == shard_of(group_id) and status.state == "loading":
                    return self._core.brokers.brokers.index(node)
        return None

    def asked(self, ask: Callable[[], T]) -> T:
        """The result of `ask`, called on the brokers' loop."""

        async def call() -> T:
            return ask()

        return self._core.thread.run(call, DEADLINE_S)

    def all_heard(self, group_id: str) -> bool:
        """Whether every member has contacted the coordinator since it loaded the group."""
        group = self._group_of(group_id)
        return all(member.connection_id is not None for member in group.members.values())

    def generation_id(self, group_id: str) -> int:
        """The generation as the group's coordinator knows it."""
        return self._group_of(group_id).generation_id

    def _group_of(self, group_id: str) -> ClassicGroup:
        index = self.holder(group_id)
        assert index is not None
        hosts = {host.lease.number: host for host in self._core.brokers.brokers[index].runtime.hosts()}
        shard = hosts[shard_of(group_id)].machine
        assert shard is not None
        group = shard.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    # --- faults ---------------------------------------------------------------------------------------------

    def let_leases_run_out(self, index: int) -> None:
        """Expire the leases of a broker that does not renew them, at once."""
        node = self._core.brokers.brokers[index]
        self._core.thread.run(lambda: run_out(self.store, node), DEADLINE_S)

    def goes(self, fault: Fault, group_id: str) -> int:
        """Make the group's current coordinator go away and return its index. By then others have loaded all
        its shards: a broker that is still loading one cannot list groups."""
        index = self.holder(group_id)
        assert index is not None
        self._gone.add(index)
        match fault:
            case Fault.KILL:
                self.kill(index)
                self.let_leases_run_out(index)
            case Fault.STOP:
                self.stop(index)
            case Fault.PAUSE:
                self.pause(index)
                self._still.add(index)
                self.let_leases_run_out(index)
            case Fault.DRAIN:
                self._set_drained(index, drained=True)
        self.wait_until(self._settled, f"a new holder of all that broker {index} held")
        return index

    def again(self, fault: Fault, index: int, group_id: str) -> None:
        """Bring it back; on return it has loaded all its shards anew, not kept them from before."""
        replaced, _ = self.asked(lambda: self._served_at(group_id))

        def is_back() -> bool:
            epoch, at = self._served_at(group_id)
            return epoch > replaced and at == index and self._settled()

        self._gone.discard(index)
        match fault:
            case Fault.KILL | Fault.STOP:
                self.restart(index)
            case Fault.PAUSE:
                self._still.discard(index)
                self.resume(index)
            case Fault.DRAIN:
                self._set_drained(index, drained=False)
        self.wait_until(is_back, f"{group_id} and all else back at its broker")

    def _set_drained(self, index: int, *, drained: bool) -> None:
        """Set the config that `muster cluster drain` sets."""
        change = ("muster.drained", SET, str(drained).lower())
        request = altering((BROKER, str(self.settings.node_id + index), [change]))
        with WireConnection("127.0.0.1", self.ports[index], "drain") as connection:
            response = connection.call(request, 1, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE], response

    def wait_until(self, fact: Callable[[], bool], what: str) -> None:
        """Check on the brokers' loop until the fact holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.asked(fact):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {DEADLINE_S:g} s")
            time.sleep(_PAUSE_S)
