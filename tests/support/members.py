"""Members that follow a test's orders over the wire: dynamic and static, with any assignor and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.support.embedded import Part, assignment, by_topic, subscription
from tests.support.wire import Wire

SESSION_MS = 45_000
PATIENT_MS = 30 * 60_000
"""The longest session timeout that brokers grant: longer than all waits of any test."""
REBALANCE_MS = 60_000


class Member:
    """A process in a group: at most one connection, and what it knows of its membership."""

    def __init__(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        instance: str | None = None,
        *,
        host: str | None = None,
        assignor: str = "range",
        session_ms: int = SESSION_MS,
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.topics = list(topics)
        self.instance = instance
        self.host = host
        """A local address to connect from; None: any."""
        self.assignor = assignor
        self.session_ms = session_ms
        self.owned: list[Part] = []
        """The partitions it claims to own when it joins (KIP-429); empty with a non-cooperative assignor."""
        self.id = ""
        self.generation = -1
        self.leads: list[str] | None = None
        """From the last JoinGroup: the members' ids if it leads, else None."""
        self._wire: Wire | None = None

    async def connect(self, port: int) -> None:
        """Open its connection, replacing any open one."""
        await self.close()
        self._wire = await Wire.connect(port, client_id=self.client_id, from_host=self.host)

    async def close(self) -> None:
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    @property
    def connected(self) -> bool:
        return self._wire is not None

    @property
    def wire(self) -> Wire:
        assert self._wire is not None, f"{self.client_id} is not connected"
        return self._wire

    @property
    def rebalance_ms(self) -> int:
        """Its rebalance timeout, which clients take from max.poll.interval.ms."""
        return max(REBALANCE_MS, self.session_ms)

    async def ask_for_id(self) -> None:
        """Send the JoinGroup that only fetches a member id (KIP-394), and take the id."""
        told = await self.wire.call(self._join(None), 9)
        assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED, told
        self.id = told.member_id

    async def ask_to_join(self, reason: str | None = None) -> None:
        """Send a JoinGroup that counts; `joined` takes the answer."""
        if not self.id and self.instance is None:
            await self.ask_for_id()
        await self.wire.send(self._join(reason), 9)

    async def joined(self) -> None:
        answer = await self.wire.receive()
        assert answer.error_code == ErrorCode.NONE, (self.client_id, answer)
        self.id, self.generation = answer.member_id, answer.generation_id
        leads = answer.leader == self.id and not answer.skip_assignment
        self.leads = [each.member_id for each in answer.members] if leads else None

    async def ask_to_sync(self, assigned: Mapping[str, Sequence[Part]] | None = None) -> None:
        """Send a SyncGroup, with everybody's partitions if it leads; `synced` takes the answer."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=self.assignor,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment(by_topic(parts)))
                for member_id, parts in (assigned or {}).items()
            ],
        )
        await self.wire.send(request, 5)

    async def synced(self) -> None:
        answer = await self.wire.receive()
        assert answer.error_code == ErrorCode.NONE, (self.client_id, answer)

    async def heartbeat(self, as_id: str | None = None) -> ErrorCode:
        """Send a heartbeat under its member id or another one."""
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id if as_id is None else as_id,
            group_instance_id=self.instance,
        )
        return ErrorCode((await self.wire.call(request, 4)).error_code)

    async def leave(self, reason: str | None = None) -> None:
        """Send LeaveGroup; the connection stays open, and the next JoinGroup is a new member's."""
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.id, reason=reason)
        await self.wire.call(LeaveGroupRequest(group_id=self.group, members=[leaving]), 5)
        self.id = ""

    async def commit(self, offsets: Mapping[Part, int], generation: int | None = None) -> ErrorCode:
        """Commit offsets under its generation or another."""
        topics: dict[str, list[OffsetCommitRequest.Partition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequest.Partition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequest.Topic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        answer = await self.wire.call(request, 8)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def _join(self, reason: str | None) -> JoinGroupRequest:
        metadata = subscription(sorted(self.topics), owned=sorted(self.owned))
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name=self.assignor, metadata=metadata)],
            reason=reason,
        )
