"""Repeated requests, which a session does not read again, get the same bytes as those it reads (promise
8)."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from muster.coordinator.group import shard
from muster.coordinator.server.apis import offsets
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.connection import Connection, Session
from muster.coordinator.server.wire import Response
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.header import encode_request
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.server.conftest import StartBrokers
from tests.server.made_up import framed
from tests.server.test_metadata import creating
from tests.support.wire import Wire

GARBAGE_FRAMES = 150
UNKNOWN_ID = uuid.UUID(int=7)


class Ids:
    """Stands in for the module `uuid` where member ids are made: both brokers hand out the same ones."""

    def __init__(self) -> None:
        self._last = 0

    def uuid4(self) -> uuid.UUID:
        self._last += 1
        return uuid.UUID(int=self._last)


class Forgetful:
    """A session that reads every request."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget = session.forget
        self.close = session.close

    @property
    def client_id(self) -> str:
        return self._session.client_id

    def begin(self, frame: bytes) -> Response | None:
        self._session.forget()
        return self._session.begin(frame)


class Twin:
    """A broker that remembers requests, or does not."""

    def __init__(self, broker: Broker, *, remembers: bool) -> None:
        self.broker = broker
        self._ids = Ids()
        open_session = broker.connections.open_session

        def forgetful(connection: Connection) -> Session:
            return Forgetful(open_session(connection))

        if not remembers:
            broker.connections.open_session = forgetful

    async def play(self, monkeypatch: pytest.MonkeyPatch, frames: list[bytes]) -> list[bytes | None]:
        """The answer to each frame, over one connection; None if it closes, and then the next frame goes over
        a new one."""
        monkeypatch.setattr(shard, "uuid", SimpleNamespace(uuid4=self._ids.uuid4))
        answers: list[bytes | None] = []
        wire: Wire | None = None
        try:
            for frame in frames:
                wire = wire or await Wire.connect(self.broker.port)
                try:
                    await wire.send_bytes(frame)
                    answers.append(await wire.receive_bytes())
                except (ConnectionError, asyncio.IncompleteReadError):
                    answers.append(None)
                    await wire.close()
                    wire = None
        finally:
            if wire is not None:
                await wire.close()
        return answers


async def both(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> tuple[Twin, Twin]:
    """The twin that remembers and the one that does not, each with the topic `orders` of three partitions."""
    twins = []
    for remembers in (True, False):
        (broker,) = (await start_brokers(log_level="error")).brokers
        async with await Wire.connect(broker.port) as wire:
            (created,) = (await wire.call(creating("orders", num_partitions=3), 7)).topics
            assert created.error_code == ErrorCode.NONE
        twins.append(Twin(broker, remembers=remembers))
    return twins[0], twins[1]


def member_id(number: int, prefix: str = "bench") -> str:
    return f"{prefix}-{uuid.UUID(int=number)}"


class Story:
    """Frames with correlation ids that count up, as one client sends them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, request: Message, version: int, *, client_id: str | None = "bench") -> None:
        api_key = request.__schema__.api_key
        assert api_key is not None
        self.frames.append(encode_request(api_key, version, len(self.frames) - 3, client_id, request))


def joining(group_id: str, member: str, *, instance: str | None = None, session_ms: int = 30_000) -> Message:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")],
    )


def syncing(group_id: str, member: str, version: int, generation_id: int = 1) -> Message:
    named: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member,
        assignments=[SyncGroupRequest.Assignment(member_id=member, assignment=b"\x00\x00mine")],
        **named,
    )


def beating(group_id: str, member: str, generation_id: int = 1) -> Message:
    return HeartbeatRequest(group_id=group_id, generation_id=generation_id, member_id=member)


def committing(
    group_id: str, member: str, *topics: tuple[object, list[tuple[int, str | None]]], generation_id: int = 1
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member,
        topics=[
            OffsetCommitRequest.Topic(
                **({"topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic}),
                partitions=[
                    OffsetCommitRequest.Partition(
                        partition_index=index, committed_offset=index + 5, committed_metadata=metadata
                    )
                    for index, metadata in partitions
                ],
            )
            for topic, partitions in topics
        ],
    )


def story_of_members() -> list[bytes]:
    """Groups of one member, in every version: refused, let in, alive, expelled."""
    story = Story()
    made = 0
    for version in range(versions(ApiKey.JOIN_GROUP).last + 1):
        group = f"group-{version}"
        sync_version = min(version, versions(ApiKey.SYNC_GROUP).last)
        beat_version = min(version, versions(ApiKey.HEARTBEAT).last)
        leave_version = min(version, versions(ApiKey.LEAVE_GROUP).last)
        story.send(joining(group, "nobody"), version)
        story.send(joining("", ""), version)
        story.send(joining(group, "", session_ms=1), version)
        made += 1  # for the first of them; the others are refused before an id is made
        made += 1
        story.send(joining(group, ""), version)
        if version >= 4:
            story.send(joining(group, member_id(made)), version)
            me, made = member_id(made), made + 1
        else:
            me = member_id(made)
        story.send(beating(group, me), beat_version)
        story.send(syncing(group, me, sync_version), sync_version)
        story.send(syncing(group, "nobody", sync_version), sync_version)
        story.send(syncing(group, me, sync_version, generation_id=9), sync_version)
        for client_id in ("bench", "bench", "another", None):
            story.send(beating(group, me), beat_version, client_id=client_id)
        for generation_id in (2, 1):
            story.send(beating(group, me, generation_id), beat_version)
        story.send(beating(group, "nobody"), beat_version)
        story.send(beating("", me), beat_version)
        story.send(beating("no group", me), beat_version)
        if version >= 5:
            story.send(joining(f"static-{version}", "", instance="one"), version)
            story.send(joining(f"static-{version}", "", instance="one"), version)
            made += 2
        leaver: dict[str, Any] = {"member_id": me}
        if leave_version >= 3:
            leaver = {"members": [LeaveGroupRequest.MemberIdentity(member_id=me)]}
        for group_id in (group, group, "no group"):
            story.send(LeaveGroupRequest(group_id=group_id, **leaver), leave_version)
        story.send(beating(group, me), beat_version)
    return story.frames


def story_of_consumers(topic_id: uuid.UUID) -> list[bytes]:
    """Members of the consumer protocol, in every version: what they repeat, what they say only once, and what
    is refused."""
    story = Story()
    Owned = ConsumerGroupHeartbeatRequest.TopicPartitions
    for version in range(versions(ApiKey.CONSUMER_GROUP_HEARTBEAT).last + 1):
        group = f"consumers-{version}"

        def beat(epoch: int, *, client_id: str = "bench", member: str = "m", **fields: Any) -> None:
            request = ConsumerGroupHeartbeatRequest(
                group_id=fields.pop("group_id", group),  # noqa: B023
                member_id=member,
                member_epoch=epoch,
                **fields,
            )
            story.send(request, version, client_id=client_id)  # noqa: B023

        said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
        beat(2)
        beat(0, **said)
        for _ in range(3):
            beat(2)
        beat(2, client_id="another")
        for _ in range(2):
            beat(2, topic_partitions=[Owned(topic_id=topic_id, partitions=[0, 1, 2])])
        for epoch in (1, 2, 3, 2, -3, 2):
            beat(epoch)
        beat(2, member="nobody")
        beat(2, group_id="")
        beat(2, server_assignor="none")
        for _ in range(2):
            beat(2, subscribed_topic_names=["orders", "others"])
        for epoch in (2, 3, 3):
            beat(epoch)
        for _ in range(2):
            beat(-1)
        beat(3)
    return story.frames


def story_of_commits(topic_id: uuid.UUID) -> list[bytes]:
    story = Story()
    for version in range(versions(ApiKey.OFFSET_COMMIT).first, versions(ApiKey.OFFSET_COMMIT).last + 1):
        known: object = topic_id if version >= 10 else "orders"
        unknown: object = UNKNOWN_ID if version >= 10 else "nothing"
        group = f"commits-{version}"

        def commit(*topics: tuple[object, list[tuple[int, str | None]]], **options: Any) -> None:
            story.send(committing(group, "", *topics, **{"generation_id": -1, **options}), version)  # noqa: B023

        commit((known, [(0, "")]))
        commit((known, [(0, "here"), (2, None), (1, "é")]))
        commit((known, [(0, "x" * 5_000), (1, "")]))
        commit((known, [(0, ""), (0, "x" * 5_000)]))
        commit((known, [(0, ""), (3, ""), (-1, "")]))
        commit((unknown, [(0, "")]))
        commit((known, [(0, "")]), (unknown, [(1, "")]))
        commit((known, [(0, "")]), (known, [(0, "")]))
        commit((known, []))
        commit()
        commit((known, [(0, "")]), generation_id=4)
        story.send(committing("never seen", "", (known, [(1, "")]), generation_id=4), version)
        story.send(committing("never seen", "", (known, [(9, "")]), generation_id=4), version)
    return story.frames


@pytest.mark.interpreted
async def test_members_are_answered_with_the_same_bytes(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, plain = await both(start_brokers, monkeypatch)
    frames = story_of_members()
    answers = await fast.play(monkeypatch, frames)
    assert answers == await plain.play(monkeypatch, frames)
    assert None not in answers


async def test_consumers_are_answered_with_the_same_bytes(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[list[bytes]] = []
    for twin in await both(start_brokers, monkeypatch):
        topic_id = twin.broker.catalogue.named("orders").topic_id
        played = await twin.play(monkeypatch, story_of_consumers(topic_id))
        assert None not in played
        answers.append([(answer or b"").replace(topic_id.bytes, b"<topic id>") for answer in played])
    assert answers[0] == answers[1]


async def test_commits_are_answered_with_the_same_bytes(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, plain = await both(start_brokers, monkeypatch)
    answers: list[list[bytes]] = []
    for twin in (fast, plain):
        topic_id = twin.broker.catalogue.named("orders").topic_id
        played = await twin.play(monkeypatch, story_of_commits(topic_id))
        answers.append([(answer or b"closed").replace(topic_id.bytes, b"<topic id>") for answer in played])
    assert answers[0] == answers[1]
    kept = [
        {group_id: dict(host.machine.hard.offsets[group_id]) for group_id in host.machine.hard.offsets}
        for twin in (fast, plain)
        for host in twin.broker.runtime.hosts()
        if host.machine is not None
    ]
    half = len(kept) // 2
    for ours, theirs in zip(kept[:half], kept[half:], strict=True):
        assert without_times(ours) == without_times(theirs)
    assert any(kept)


def story_of_repeats(topic_id: uuid.UUID, rng: random.Random) -> list[bytes]:
    """Commits that differ only in their position, and others that differ elsewhere or in their form; fetches
    in between read what is stored."""
    story = Story()
    for version in range(6, versions(ApiKey.OFFSET_COMMIT).last + 1):
        topic: object = topic_id if version >= 10 else "orders"
        group = f"repeats-{version}"
        for metadata in ("", None, "é" * 20, "x" * 126, "x" * 127):
            request = committing(group, "", (topic, [(1, metadata)]), generation_id=-1)
            for number in range(8):
                partition = request.topics[0].partitions[0]
                partition.committed_offset = rng.choice([number, -1, 2**63 - 1, -(2**63)])
                partition.committed_leader_epoch = rng.choice([number, -1, 2**31 - 1])
                story.send(request, version)
                if number >= 4:
                    frame, id_at = story.frames[-1], story.frames[-1].find(topic_id.bytes)
                    at = rng.choice(
                        [at for at in range(12, len(frame)) if not (0 <= id_at <= at < id_at + 16)]
                    )
                    story.frames[-1] = frame[:at] + rng.randbytes(1) + frame[at + 1 :]
                    # Unknown tags, in the bytes where another commit has its position.
                    tagged = [
                        framed(frame[4:-1] + b"\x01\x07\x10" + rng.randbytes(12) + bytes(4)) for _ in range(2)
                    ]
                    story.frames += [framed(frame[4:] + b"\x00\x00"), *tagged]
                fetched = OffsetFetchRequest.Group(group_id=group, topics=None)
                story.send(OffsetFetchRequest(groups=[fetched]), 8)
    return story.frames


@pytest.mark.interpreted
async def test_repeated_commits_are_stored_and_answered_alike(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    position = offsets._POSITION
    known: list[bytes] = []

    def unpack_from(frame: bytes, at: int) -> tuple[Any, ...]:
        known.append(frame)
        return position.unpack_from(frame, at)

    monkeypatch.setattr(offsets, "_POSITION", SimpleNamespace(size=position.size, unpack_from=unpack_from))
    fast, plain = await both(start_brokers, monkeypatch)
    answers: list[list[bytes]] = []
    for twin in (plain, fast):
        topic_id = twin.broker.catalogue.named("orders").topic_id
        played = await twin.play(monkeypatch, story_of_repeats(topic_id, random.Random(seed)))
        answers.append([(answer or b"closed").replace(topic_id.bytes, b"<topic id>") for answer in played])
    assert answers[0] == answers[1]
    # For each short metadata and each version with tags: the commits that differ only in their position.
    assert len(known) >= 3 * 4 * (versions(ApiKey.OFFSET_COMMIT).last - 7)


def without_times(offsets: dict[str, dict[Any, Any]]) -> object:
    """Committed offsets without what differs between two brokers: the time and the topic id."""
    return {
        group_id: {
            where: (each.offset, each.leader_epoch, each.metadata, each.topic_id.int == 0)
            for where, each in committed.items()
        }
        for group_id, committed in offsets.items()
    }


@pytest.mark.interpreted
async def test_garbage_is_answered_with_the_same_bytes(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    fast, plain = await both(start_brokers, monkeypatch)
    whole = [*story_of_members(), *story_of_commits(UNKNOWN_ID)]
    frames = [broken(rng, alone(rng.choice(whole), number)) for number in range(GARBAGE_FRAMES)]
    answers = await fast.play(monkeypatch, frames)
    assert answers == await plain.play(monkeypatch, frames)


def alone(frame: bytes, number: int) -> bytes:
    """The frame with a group of its own, whose id is as long: two members that join the same group may wait
    for each other's whole session."""
    return re.sub(rb"(group|static)-\d+", lambda found: b"%0*d" % (len(found[0]), number), frame)


def broken(rng: random.Random, frame: bytes) -> bytes:
    """The frame with a few bytes changed, cut off or added; its size and API stay correct."""
    body = bytearray(frame[4:])
    match rng.randrange(3):
        case 0:
            for _ in range(rng.randrange(1, 4)):
                # Versions below 128 keep the layout of the header known; after it anything goes.
                at = rng.choice([3, *range(8, len(body))])
                body[at] = rng.randrange(128 if at == 3 else 256)
        case 1:
            del body[rng.randrange(2, len(body)) :]
        case 2:
            body += rng.randbytes(rng.randrange(1, 6))
    return framed(bytes(body))
