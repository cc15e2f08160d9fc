"""A group member on the bare wire, with any request version; it may vanish without leaving."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.fuzz.bystanders import Patient
from tests.support.embedded import assignment, subscription

SESSION_MS: Final = 12_000
"""How long a vanished member stays in the group."""

_LIFE_S: Final = (1.0, 40.0)
_BEAT_S: Final = (0.2, 1.0)
_AGAIN_S: Final = 0.2
_ELSEWHERE: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
_ANOTHER_GENERATION: Final = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}


class VeryPatient(Patient):
    """Waits long enough for a machine that is busy for minutes."""

    async def receive_bytes(self, deadline_s: float = 600.0) -> bytes:
        return await super().receive_bytes(deadline_s)


class Unexpected(AssertionError):
    """A response that no member should get."""


class WireMember:
    """One life: `live` until its time is up, then leave, close the connection, or vanish."""

    def __init__(
        self, port: int, group_id: str, topic: str, rng: random.Random, counts: Counter[str]
    ) -> None:
        self._port = port
        self._group_id = group_id
        self._topic = topic
        self._rng = rng
        self._counts = counts
        self._member_id = ""
        self._generation_id = -1
        self._join_version = rng.randint(0, 9)
        self._sync_version = rng.randint(0, 4)
        self._subscription = subscription([topic], rng.randint(0, 3))

    async def live(self) -> None:
        wire = await self._at_coordinator()
        try:
            async with asyncio.timeout(self._rng.uniform(*_LIFE_S)):
                while True:
                    try:
                        await self._member_of_one_generation(wire)
                    except _Elsewhere:
                        wire.abort()
                        wire = await self._at_coordinator()
        except TimeoutError:
            await self._go(wire)
        finally:
            wire.abort()

    async def _at_coordinator(self) -> VeryPatient:
        port = self._port
        while True:
            async with await VeryPatient.connect(port) as wire:
                found = await wire.call(FindCoordinatorRequest(coordinator_keys=[self._group_id]), 4)
            (coordinator,) = found.coordinators
            if coordinator.error_code == 0:
                return await VeryPatient.connect(coordinator.port)
            if coordinator.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                raise Unexpected(f"FindCoordinator: {coordinator}")
            await asyncio.sleep(_AGAIN_S)

    async def _member_of_one_generation(self, wire: VeryPatient) -> None:
        joined = await wire.call(
            JoinGroupRequest(
                group_id=self._group_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.Protocol(name="range", metadata=self._subscription)],
            ),
            self._join_version,
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            if self._rng.random() < 0.1:
                self._counts["ids never used"] += 1
                self._member_id = ""
            return
        if not self._goes_on("JoinGroup", joined.error_code):
            return
        self._member_id, self._generation_id = joined.member_id, joined.generation_id
        self._counts["joined"] += 1
        all_of_it = assignment({self._topic: [0]})
        synced = await wire.call(
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=self._generation_id,
                member_id=self._member_id,
                assignments=[
                    SyncGroupRequest.Assignment(member_id=member.member_id, assignment=all_of_it)
                    for member in joined.members
                ],
            ),
            self._sync_version,
        )
        if self._goes_on("SyncGroup", synced.error_code):
            await self._beat(wire)

    async def _beat(self, wire: VeryPatient) -> None:
        fetched = await wire.call(OffsetFetchRequest(group_id=self._group_id, topics=None), 7)
        assert fetched.error_code in (0, *_ELSEWHERE), fetched
        heartbeat = HeartbeatRequest(
            group_id=self._group_id, generation_id=self._generation_id, member_id=self._member_id
        )
        while True:
            answer = await wire.call(heartbeat, self._rng.randint(0, 4))
            if not self._goes_on("Heartbeat", answer.error_code):
                return
            if self._rng.random() < 0.3 and not await self._commit(wire):
                return
            await asyncio.sleep(self._rng.uniform(*_BEAT_S))

    async def _commit(self, wire: VeryPatient) -> bool:
        """Commit; return whether the generation continues."""
        partition = OffsetCommitRequest.Partition(
            partition_index=0,
            committed_offset=self._rng.randrange(1 << 40),
            committed_metadata="x" * self._rng.randrange(100),
        )
        answer = await wire.call(
            OffsetCommitRequest(
                group_id=self._group_id,
                generation_id_or_member_epoch=self._generation_id,
                member_id=self._member_id,
                topics=[OffsetCommitRequest.Topic(name=self._topic, partitions=[partition])],
            ),
            self._rng.randint(2, 9),
        )
        self._counts["committed on the wire"] += 1
        return self._goes_on("OffsetCommit", answer.topics[0].partitions[0].error_code)

    def _goes_on(self, what: str, code: int) -> bool:
        """Whether all is well; otherwise this generation is over. Raises _Elsewhere and Unexpected."""
        if code == 0:
            return True
        if code in _ELSEWHERE:
            raise _Elsewhere
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._counts["forgotten"] += 1
            self._member_id = ""
        elif code not in _ANOTHER_GENERATION:
            raise Unexpected(f"{what}: {ErrorCode(code).name}")
        return False

    async def _go(self, wire: VeryPatient) -> None:
        how = self._rng.choice(("leaves", "closes", "is reset", "vanishes"))
        self._counts[f"a wire member {how}"] += 1
        match how:
            case "leaves" if self._member_id:
                # A request may be parked on the old connection and would be answered first.
                async with await self._at_coordinator() as another:
                    await another.call(self._leaving(), self._rng.choice((3, 4, 5)))
            case "closes":
                await wire.close()
            case "vanishes":
                await asyncio.sleep(self._rng.uniform(0, 1.5 * SESSION_MS / 1000))

    def _leaving(self) -> Any:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self._member_id)
        return LeaveGroupRequest(group_id=self._group_id, members=[identity])


class _Elsewhere(Exception):
    """Another broker is the coordinator, or this one is still loading."""
