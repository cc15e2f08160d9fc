"""Random requests and random time against a shard; what must hold is checked after every step.

Each run prints its seed when it fails: `pytest tests/group/test_random.py -k seed-7` replays it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse, LeaveGroupRequest, SyncGroupResponse
from muster.protocol.messages.offsets import OffsetDeleteRequest
from tests.group.core_driver import topic_id
from tests.group.harness import Harness, Operation
from tests.group.requests import (
    assignment,
    commit_request,
    context,
    heartbeat_request,
    join_request,
    subscription,
    sync_request,
)

STEPS = 250
GROUPS = ("orders", "clicks")
CLIENTS = ("alice", "bob", "carol", "dave")
TOPICS = ("orders", "clicks", "payments")


class Player:
    """Clients that usually behave as clients do, and sometimes do anything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = Harness(
            GroupConfig(
                group_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
                group_max_size=self.random.choice([2, 3, 1_000]),
                offsets_retention_minutes=self.random.choice([1, 60]),
                offsets_retention_check_interval_ms=30_000,
            )
        )
        self.joined: dict[tuple[str, str], JoinGroupResponse] = {}
        self.tickets: dict[int, tuple[str, str]] = {}
        self.assigned: dict[tuple[str, int, str], bytes] = {}

    def play(self) -> None:
        moves: list[tuple[int, Callable[[], None]]] = [
            (40, self.join),
            (60, self.sync),
            (25, self.heartbeat),
            (6, self.leave),
            (10, self.commit),
            (4, self.fetch),
            (2, self.delete_offsets),
            (2, self.delete_group),
            (3, self.look),
            (10, self.advance),
            (2, self.disconnect),
            (2, self.delete_topic),
            (2, self.reload),
            (2, self.presume_alive),
        ]
        for _ in range(STEPS):
            [move] = self.random.choices([move for _, move in moves], [weight for weight, _ in moves])
            move()
            self.harvest()
        self.harness.check_replay()
        # Left alone, every request is answered, at the latest by a timer.
        self.harness.advance(2 * 3_600_000)
        assert not self.harness.open
        for group in self.harness.shard.groups.values():
            assert group.state is GroupState.EMPTY
        self.harness.unload()

    # --- who asks -------------------------------------------------------------------------------------------

    def someone(self) -> tuple[str, str]:
        return self.random.choices(GROUPS, [4, 1])[0], self.random.choice(CLIENTS)

    def memory(self, group_id: str, client: str) -> tuple[str, int]:
        """A client's member id and generation; now and then another client's."""
        known = self.joined.get((group_id, client))
        if self.random.random() < 0.05:
            known = self.joined.get((group_id, self.random.choice(CLIENTS)))
        if known is None:
            return "", -1
        generation_id = known.generation_id + (
            self.random.choice([-1, 1]) if self.random.random() < 0.05 else 0
        )
        return known.member_id, generation_id

    def instance(self, client: str) -> str | None:
        return f"{client}-instance" if client in ("carol", "dave") else None

    def harvest(self) -> None:
        """Let clients read their answers."""
        for ticket in [ticket for ticket in self.tickets if ticket in self.harness.answers]:
            group_id, client = self.tickets.pop(ticket)
            answer = self.harness.answers[ticket]
            if isinstance(answer, JoinGroupResponse):
                if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                    self.joined[group_id, client] = answer
                else:
                    self.joined.pop((group_id, client), None)
                if (
                    answer.error_code == ErrorCode.NONE
                    and answer.member_id == answer.leader
                    and answer.members
                ):
                    assert answer.member_id in {member.member_id for member in answer.members}
            elif isinstance(answer, KafkaError) and answer.code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_INSTANCE_ID,
            ):
                self.joined.pop((group_id, client), None)
            elif isinstance(answer, SyncGroupResponse):
                assert answer.assignment, "an assignment of zero bytes"

    def send(
        self,
        who: tuple[str, str],
        operation: Operation,
        request: object,
        api: ApiKey,
        version: int | None = None,
    ) -> None:
        version = self.random.choice([versions(api)[1], versions(api)[0]]) if version is None else version
        client_context = context(api, who[1], version, connection_id=CLIENTS.index(who[1]))
        ticket = self.harness.send(operation, request, client_context)
        self.tickets[ticket] = who

    # --- moves ----------------------------------------------------------------------------------------------

    def join(self) -> None:
        group_id, client = who = self.someone()
        member_id, _ = self.memory(*who)
        instance = self.instance(client)
        if instance is not None and self.random.random() < 0.3:
            member_id = ""  # a restarted process
        protocols = [(name, subscription(self.random.choice(TOPICS))) for name in ("range", "sticky")]
        self.random.shuffle(protocols)
        request = join_request(
            member_id,
            protocols=[*protocols[: self.random.choice([1, 2, 2, 2])], ("copy", b"?")],
            instance_id=instance,
            session_timeout_ms=self.random.choices([6_000, 10_000, 45_000], [1, 2, 6])[0],
            rebalance_timeout_ms=self.random.choices([0, 1_000, 30_000, 600_000], [1, 3, 10, 10])[0],
            group_id=group_id,
        )
        self.send(
            who,
            Shard.join,
            request,
            ApiKey.JOIN_GROUP,
            version=self.random.choice([5, 8, 9] if instance else [0, 3, 9]),
        )

    def sync(self) -> None:
        joined = [who for who, answer in self.joined.items() if answer.error_code == ErrorCode.NONE]
        who = self.random.choice(joined) if joined else self.someone()
        group_id, _ = who
        member_id, generation_id = self.memory(*who)
        known = self.joined.get(who)
        assignments: dict[str, bytes] = {}
        if known is not None:
            share: dict[str, list[int]] = {member.member_id: [] for member in known.members}
            for partition in range(self.random.choice([1, 6]) if share else 0):
                self.random.choice(list(share.values())).append(partition)
            assignments = {each: assignment(*partitions) for each, partitions in share.items()}
        if assignments and self.random.random() < 0.2:
            forgotten, _ = assignments.popitem()
            if self.random.random() < 0.3:
                assignments[forgotten] = b"garbage"
        request = sync_request(
            member_id, generation_id, assignments, protocol_name=None, protocol_type=None, group_id=group_id
        )
        self.send(who, Shard.sync, request, ApiKey.SYNC_GROUP, version=4)

    def heartbeat(self) -> None:
        for client in CLIENTS:
            group_id = self.random.choice(GROUPS)
            request = heartbeat_request(*self.memory(group_id, client), self.instance(client))
            request.group_id = group_id
            self.send((group_id, client), Shard.heartbeat, request, ApiKey.HEARTBEAT)

    def leave(self) -> None:
        group_id, client = who = self.someone()
        member_id, _ = self.memory(*who)
        if self.random.random() < 0.3:
            member_id = ""
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=member_id, group_instance_id=self.instance(client)
        )
        request = LeaveGroupRequest(group_id=group_id, member_id=member_id, members=[identity])
        self.send(who, Shard.leave, request, ApiKey.LEAVE_GROUP)

    def commit(self) -> None:
        group_id, _ = who = self.someone()
        member_id, generation_id = self.memory(*who)
        if self.random.random() < 0.2:
            member_id, generation_id = "", -1
        topic = self.random.choice(TOPICS)
        request = commit_request(
            {(topic, self.random.randrange(2)): self.random.randrange(100)},
            member_id=member_id,
            generation_id=generation_id,
            retention_time_ms=self.random.choice([-1, -1, -1, 10_000, 120_000]),
            topic_id=topic_id(topic),
            group_id=group_id,
        )
        self.send(who, Shard.commit_offsets, request, ApiKey.OFFSET_COMMIT)

    def fetch(self) -> None:
        group_id, _ = who = self.someone()
        self.send(who, Shard.fetch_offsets, FetchOffsets(group_id, None), ApiKey.OFFSET_FETCH)

    def delete_offsets(self) -> None:
        group_id, _ = who = self.someone()
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequest.Topic(
                    name=self.random.choice(TOPICS),
                    partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=0)],
                )
            ],
        )
        self.send(who, Shard.delete_offsets, request, ApiKey.OFFSET_DELETE)

    def delete_group(self) -> None:
        group_id, _ = who = self.someone()
        self.send(who, Shard.delete_group, group_id, ApiKey.DELETE_GROUPS)

    def look(self) -> None:
        group_id, _ = who = self.someone()
        self.send(who, Shard.describe, group_id, ApiKey.DESCRIBE_GROUPS)
        self.send(who, Shard.list_groups, None, ApiKey.LIST_GROUPS)

    def advance(self) -> None:
        self.harness.advance(self.random.choice([1, 100, 1_000, 3_000, 3_000, 5_999, 30_000, 300_000]))

    def disconnect(self) -> None:
        self.harness.disconnect(self.random.randrange(len(CLIENTS)))

    def delete_topic(self) -> None:
        topic = self.random.choice(TOPICS)
        self.harness.topics_changed(TopicsImage(frozenset({(topic, topic_id(topic))})))

    def presume_alive(self) -> None:
        until_ms = self.harness.now_ms + self.random.choice([0, 10_000, 120_000])
        stalled = {(group_id, joined.member_id) for (group_id, _), joined in self.joined.items()}
        stalled = set(self.random.sample(sorted(stalled), len(stalled) // 2))
        self.harness.presume_alive(until_ms, stalled)

    def reload(self) -> None:
        self.tickets.clear()
        self.harness.reload()


@pytest.mark.parametrize("seed", range(25), ids=lambda seed: f"seed-{seed}")
def test_random_play(seed: int) -> None:
    Player(seed).play()
