"""What a broker does that wakes up after a stop past its lease: a write is sent to it while it sleeps."""

from __future__ import annotations

import asyncio
import time
from asyncio import IncompleteReadError
from contextlib import suppress
from typing import Any, Final, Self

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.faults.batches import Violation
from tests.faults.cluster.lab import NODES, PORT
from tests.faults.cluster.netns import address
from tests.faults.cluster.setting import TOPIC
from tests.support.wire import Wire

_NAMES: Final = 60
"""With this many group names, every broker's shards get some."""
_ANSWER_S: Final = 5.0
_GONE: Final = (OSError, IncompleteReadError, TimeoutError)


class Zombie:
    """A group without members that `node` coordinates. `begin` commits 1 there; `ask` leaves commit 2 in the
    sleeping node's socket; `overtake` commits 3 at the new coordinator; `check` looks at the outcome of 2."""

    def __init__(self, node: int, group: str, wire: Wire) -> None:
        self._node = node
        self._group = group
        self._wire = wire

    @classmethod
    async def begin(cls, node: int, seconds: float) -> Self:
        wire = await Wire.connect(PORT, address(node))
        names = [f"zombie-{time.monotonic_ns()}-{number}" for number in range(_NAMES)]
        ends = time.monotonic() + seconds
        while True:
            found = (
                await wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4)
            ).coordinators
            here = [each.key for each in found if each.node_id == node and not each.error_code]
            if here:
                zombie = cls(node, here[0], wire)
                code = _code(await wire.call(zombie._commit(1), 8))
                if not code:
                    return zombie
            if time.monotonic() > ends:
                raise AssertionError(f"broker {node} coordinates none of {_NAMES} groups")
            await asyncio.sleep(0.1)

    async def ask(self) -> None:
        await self._wire.send(self._commit(2), 8)

    async def overtake(self, seconds: float) -> None:
        await self._elsewhere(self._commit(3), 8, _code, seconds)

    async def check(self, seconds: float) -> None:
        """Raises Violation if the commit had any effect."""
        code: int | str
        try:
            code = _code(await self._wire.receive())
        except _GONE as gone:
            code = repr(gone)
        finally:
            with suppress(*_GONE):
                await self._wire.close()
        if code == 0:
            raise Violation(f"broker {self._node} woke up past its lease and acknowledged a commit")
        if isinstance(code, int) and code not in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ):
            raise Violation(f"broker {self._node} woke up past its lease and answered a commit with {code}")
        topic = OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=[0])
        asked = OffsetFetchRequest(group_id=self._group, topics=[topic])
        answer = await self._elsewhere(asked, 5, lambda answer: int(answer.error_code), seconds)
        offset = answer.topics[0].partitions[0].committed_offset
        if offset != 3:
            raise Violation(
                f"group {self._group}: 3 was acknowledged after broker {self._node}, now it is {offset}"
            )

    def _commit(self, offset: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequest.Partition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequest.Topic(name=TOPIC, partitions=[partition])],
        )

    async def _elsewhere(self, request: Any, version: int, code_of: Any, seconds: float) -> Any:
        """The first good answer from another broker that coordinates the group, or from this one if it does
        so again."""
        ends = time.monotonic() + seconds
        last: object = None
        while time.monotonic() < ends:
            for node in NODES:
                try:
                    async with asyncio.timeout(_ANSWER_S), await Wire.connect(PORT, address(node)) as wire:
                        last = answer = await wire.call(request, version)
                except _GONE:
                    continue
                if code_of(answer) == 0:
                    return answer
            await asyncio.sleep(0.1)
        raise AssertionError(f"group {self._group} is not served within {seconds:.0f} s: {last}")


def _code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)
