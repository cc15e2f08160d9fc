"""Members that survive anything: random answers, failures and calls in random order, and at the end a
coordinator that behaves.

Whatever came before, the member always has something to do, an answer to wait for, or a time to wait for; no
request is repeated forever without a pause; and a well-behaved coordinator always gets the member into its
group.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.assignors import TopicPartitions
from muster.client.errors import ClientError, ConnectionLost
from muster.client.group.membership import Membership
from muster.client.group.membership_types import Ask, Joined, Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse
from tests.client.memberships import (
    ALL_CODES,
    LEFT,
    NODE,
    beaten,
    joined,
    partitions,
    refused_join,
    synced,
)
from tests.client.memberships import settings as member_settings

STEPS = 150
USUAL = [
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]
BOUND_TO_PASS_MS = 60_000


class Walk:
    """One member, a clock, its open requests, and what its consumer thinks it owns."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.protocol = self.random.choice(["range", "cooperative-sticky"])
        options = {"group_instance_id": "i"} if self.random.random() < 0.3 else {}
        self.member = Membership(
            member_settings(self.protocol, **options), jitter=lambda: self.random.uniform(0.8, 1.2)
        )
        self.now_ms = 1_000
        self.open: list[Ask] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        self.fenced = False
        self.stable: dict[str, int] = {}
        self.generation_id = 0
        self.members = 0
        self.member.subscribe(frozenset({"t"}))

    # --- what holds at every moment -----------------------------------------------------------------------

    def look(self) -> None:
        """Collect what is due, and check that the member is not stuck."""
        member = self.member
        asks = member.due(self.now_ms)
        self.open += asks
        assert all(each in self.open for each in member.awaited)
        next_ms = member.next_deadline_ms()
        assert next_ms is None or next_ms > self.now_ms, "something is due and is not done"
        if member.is_joining or member.heartbeat.is_on:
            assert next_ms is not None or member.awaited, f"{member} waits for nothing"
        if member.is_subscribed and not member.is_joining and member.state is not State.STABLE:
            assert member.rejoin_needed, f"{member}: nobody knows that it is to join"
        if member.state in (State.STABLE, State.COMPLETING_REBALANCE):
            assert member.generation.is_valid
            assert member.heartbeat.is_on
        if member.state is State.STABLE:
            assert member.assignment <= member.owned
            last = self.stable.get(member.member_id, -1)
            assert member.generation_id >= last, "a generation went back within a membership"
            self.stable[member.member_id] = member.generation_id
        if self.owned and not member.generation.is_valid and member.is_subscribed:
            assert member.lost, f"{member}: the consumer does not know that it lost {self.owned}"
        if member.lost:
            assert not member.is_joining
            assert not member.generation.is_valid

    # --- what a consumer does -----------------------------------------------------------------------------

    def read(self) -> None:
        """A reading call: take a result, give up what must be given up, join."""
        member = self.member
        member.polled(self.now_ms)
        member.take_error()
        if not member.rejoin_needed:
            return
        if member.result is not None:
            self.take(member.result)
            return
        preparation = member.prepare(self.owned)
        assert preparation.kept <= self.owned
        self.owned = preparation.kept
        try:
            member.join(self.owned, self.now_ms)
        except KafkaError:
            self.fenced = True  # The only final error.
            self.owned = frozenset()
            return
        assert member.is_joining or not member.rejoin_needed

    def take(self, result: Joined) -> None:
        assert self.member.take(result)
        if self.protocol == "range":
            assert not self.owned
            assert result.added == result.assigned
        else:
            assert result.added == result.assigned - self.owned
            assert (result.revoked or frozenset()) == self.owned - result.assigned
        self.owned = result.assigned

    def consume(self) -> None:
        member, choice = self.member, self.random.random()
        if choice < 0.6:
            self.read()
        elif choice < 0.7:
            member.subscribe(frozenset(self.random.sample(["t", "u", "v"], self.random.randint(0, 3))))
        elif choice < 0.8:
            member.request_rejoin("why not")
        elif choice < 0.9:
            generation = self.random.choice([member.generation, member.generation._replace(generation_id=0)])
            member.commit_refused(self.random.choice(ALL_CODES), generation)
        elif choice < 0.95:
            member.coordinator_lost(self.random.choice([NODE, NODE + 1]), self.now_ms)
        else:
            member.leave("why not")
            self.owned = frozenset()
            member.subscribe(frozenset({"t"}))

    # --- what a coordinator does --------------------------------------------------------------------------

    def fails(self) -> None:
        ask = self.open.pop(self.random.randrange(len(self.open)))
        final = self.random.random() < 0.1
        error = ClientError("for good") if final else ConnectionLost("gone")
        self.member.failed(ask, error, self.now_ms, final=final)

    def answers(self, *, well: bool = False) -> None:
        ask = self.open.pop(self.random.randrange(len(self.open)))
        code = 0
        if not well and self.random.random() < 0.5:
            code = self.random.choice(USUAL if self.random.random() < 0.8 else ALL_CODES)
        self.member.answered(ask, self.answer(ask, code, well=well), self.now_ms)

    def answer(self, ask: Ask, code: int, *, well: bool) -> object:
        match ask.kind:
            case Kind.FIND_COORDINATOR:
                return self.random.choice([NODE, NODE + 1])
            case Kind.JOIN:
                if not well and self.random.random() < 0.2:
                    return refused_join(ErrorCode.MEMBER_ID_REQUIRED, self.new_member_id())
                return refused_join(code) if code else self.lets_in(well)
            case Kind.SYNC:
                topics = self.random.sample(["t", "u"], self.random.randint(0, 2))
                wild = frozenset(TopicPartition(each, self.random.randrange(4)) for each in topics)
                fits = frozenset(each for each in partitions(0, 1) if each.topic in self.member.topics)
                return synced(fits if well else wild, code)
            case Kind.HEARTBEAT:
                return beaten(code)
            case Kind.TOPICS | Kind.WATCH:
                return {"t": TopicPartitions(4 if well else self.random.randint(1, 4))}
            case Kind.ASSIGN:
                return ask.work()
            case Kind.LEAVE:
                return LEFT
            case Kind.PROBE:
                return None

    def new_member_id(self) -> str:
        self.members += 1
        return f"m{self.members}"

    def lets_in(self, well: bool) -> JoinGroupResponse:
        self.generation_id += 1
        if not well and self.random.random() < 0.2:
            self.generation_id = self.random.randrange(self.generation_id + 1)
        member_id = self.member.member_id or self.new_member_id()
        leader = self.random.choice([member_id, "other"])
        return joined(self.generation_id, member_id, leader=leader, protocol=self.protocol, others=["n"])

    # --- walking ------------------------------------------------------------------------------------------

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.3:
            self.consume()
        elif choice < 0.5:
            next_ms = self.member.next_deadline_ms()
            if next_ms is not None:
                self.now_ms = max(self.now_ms, next_ms)
        elif self.open and choice < 0.6:
            self.fails()
        elif self.open:
            self.answers()
        self.look()

    def settle(self) -> None:
        """Everybody behaves: the member must get into the group, and stay."""
        member = self.member
        self.generation_id += 1_000  # A coordinator does not go back behind what it has stored.
        end_ms = self.now_ms + BOUND_TO_PASS_MS
        rounds = 0
        while member.state is not State.STABLE or member.rejoin_needed:
            rounds += 1
            assert rounds < 2_000, f"{member} asks and asks: {self.open}"
            assert self.now_ms < end_ms, f"{member} does not get in: {self.open}"
            self.read()
            self.look()
            if self.fenced:
                return
            if self.open:
                self.answers(well=True)
            elif member.rejoin_needed and member.is_joining:
                next_ms = member.next_deadline_ms()
                assert next_ms is not None
                self.now_ms = max(self.now_ms, next_ms)
            self.look()
        assert self.owned == member.assignment


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_it_never_gets_stuck(seed: int) -> None:
    walk = Walk(seed)
    walk.look()
    for _ in range(STEPS):
        walk.step()
        if walk.fenced:
            return
    walk.settle()
