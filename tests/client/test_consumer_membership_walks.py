"""Members of the consumer protocol that survive anything: random answers, failures and calls in random order,
and at the end a coordinator that behaves.

Whatever came before, the member always has something to do, an answer to wait for, or a time to wait for; no
request is repeated forever without a pause; a member never claims partitions that its consumer does not have;
and with a well-behaved coordinator it always ends up with its assignment.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.errors import ClientError, ConnectionLost
from muster.client.group.choosing import classic_instead
from muster.client.group.consumer_answers import not_offered
from muster.client.group.consumer_membership import ConsumerMembership
from muster.client.group.membership_types import Ask, Joined, Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.client.consumer_memberships import NAMES, NODE, T, U, beaten
from tests.client.consumer_memberships import settings as member_settings
from tests.client.memberships import ALL_CODES

STEPS = 150
USUAL = [
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]
BOUND_TO_PASS_MS = 120_000
EVERYTHING = [(topic_id, number) for topic_id in (T, U) for number in range(3)]


class Walk:
    """One member, a clock, its open requests, and the partitions that its consumer has."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        options = {"group_instance_id": "i"} if self.random.random() < 0.3 else {}
        protocol = self.random.choice(["consumer", "auto"])
        self.member = ConsumerMembership(
            member_settings(group_protocol=protocol, **options),
            member_id="m",
            jitter=lambda: self.random.uniform(0.8, 1.2),
        )
        self.now_ms = 1_000
        self.open: list[Ask] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        self.working: Joined | None = None
        self.fenced = False
        self.epoch = 0
        self.member.subscribe(frozenset({"t"}))

    # --- what holds at every moment -----------------------------------------------------------------------

    def look(self) -> None:
        """Collect what is due, and check that the member is not stuck."""
        member = self.member
        asks = member.due(self.now_ms)
        for ask in asks:
            if ask.kind is Kind.HEARTBEAT:
                self.check_owned(ask)
        self.open += asks
        assert all(each in self.open for each in member.awaited)
        next_ms = member.next_deadline_ms()
        assert next_ms is None or next_ms > self.now_ms, "something is due and is not done"
        if member.heartbeat.is_on:
            assert next_ms is not None or member.awaited, f"{member} waits for nothing"
        if member.is_subscribed and not member.heartbeat.is_on and member.not_offered is None:
            assert member.rejoin_needed, f"{member}: nobody knows that it is to join"
        if member.state in (State.RECONCILING, State.ACKNOWLEDGING, State.STABLE):
            assert member.generation.is_valid
            assert member.heartbeat.is_on
        if self.owned and not member.generation.is_valid and member.is_subscribed:
            assert member.lost, f"{member}: the consumer does not know that it lost {self.owned}"
        if member.lost:
            assert not member.heartbeat.is_on
            assert not member.owned

    def check_owned(self, ask: Ask) -> None:
        request = ask.request
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        if request.member_epoch == 0:
            assert request.topic_partitions == []
            assert request.subscribed_topic_names is not None
            assert request.rebalance_timeout_ms > 0
        if request.topic_partitions is not None and self.working is None:
            told = {
                TopicPartition(NAMES[topic.topic_id], each)
                for topic in request.topic_partitions
                for each in topic.partitions
            }
            assert told == self.owned

    # --- what a consumer does -----------------------------------------------------------------------------

    def read(self) -> None:
        """A reading call: give up what is lost, take a result, or finish with the one that was taken."""
        member = self.member
        member.polled(self.now_ms)
        member.take_error()
        if member.lost:
            self.working = None
        if self.working is not None:
            self.owned = self.working.assigned
            member.reconciled(self.working, self.now_ms)
            self.working = None
            return
        if not member.rejoin_needed:
            return
        preparation = member.prepare(self.owned)
        assert preparation.revoked is None
        assert (preparation.lost is None) == (preparation.kept == self.owned)
        self.owned = preparation.kept
        try:
            member.join(self.owned, self.now_ms)
        except KafkaError:
            self.fenced = True  # The only final error.
            return
        if member.result is not None:
            result = member.result
            assert member.take(result)
            assert result.added == result.assigned - self.owned
            assert (result.revoked or frozenset()) == self.owned - result.assigned
            assert self.owned | result.assigned == member.owned
            self.working = result

    def consume(self) -> None:
        member, choice = self.member, self.random.random()
        if choice < 0.7:
            self.read()
        elif choice < 0.8:
            member.subscribe(frozenset(self.random.sample(["t", "u"], self.random.randint(0, 2))))
        elif choice < 0.9:
            generation = self.random.choice([member.generation, member.generation._replace(generation_id=0)])
            member.commit_refused(self.random.choice(ALL_CODES), generation)
        elif choice < 0.95:
            member.coordinator_lost(self.random.choice([NODE, NODE + 1]), self.now_ms)
        else:
            member.leave("why not")
            self.owned, self.working = frozenset(), None
            member.subscribe(frozenset({"t"}))

    # --- what a coordinator does --------------------------------------------------------------------------

    def fails(self) -> None:
        ask = self.open.pop(self.random.randrange(len(self.open)))
        choice = self.random.random()
        if choice < 0.05 and ask.kind is Kind.HEARTBEAT:
            self.member.failed(ask, not_offered("a broker", None), self.now_ms, final=True)
            return
        final = choice < 0.15
        error = ClientError("for good") if final else ConnectionLost("gone")
        self.member.failed(ask, error, self.now_ms, final=final)

    def answers(self, *, well: bool = False) -> None:
        ask = self.open.pop(self.random.randrange(len(self.open)))
        self.member.answered(ask, self.answer(ask, well=well), self.now_ms)

    def answer(self, ask: Ask, *, well: bool) -> object:
        match ask.kind:
            case Kind.FIND_COORDINATOR:
                return self.random.choice([NODE, NODE + 1])
            case Kind.HEARTBEAT:
                return self.beats(ask, well=well)
            case Kind.NAMES:
                return {each: NAMES[each] for each in ask.topic_ids if well or self.random.random() < 0.7}
            case _:
                return {}

    def beats(self, ask: Ask, *, well: bool) -> object:
        if not well and self.random.random() < 0.4:
            return beaten(code=self.random.choice(USUAL if self.random.random() < 0.8 else ALL_CODES))
        request = ask.request
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        if well:
            return beaten(1_000, EVERYTHING)
        self.epoch += self.random.randint(0, 1)
        assigned = None
        if request.member_epoch == 0 or self.random.random() < 0.5:
            assigned = self.random.sample(EVERYTHING, self.random.randint(0, 6))
        return beaten(self.random.choice([self.epoch, self.epoch + 1]), assigned)

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
        """Everybody behaves: the member must end up with everything."""
        member = self.member
        end_ms = self.now_ms + BOUND_TO_PASS_MS
        rounds = 0
        while len(self.owned) < len(EVERYTHING) or member.state is not State.STABLE:
            rounds += 1
            assert rounds < 2_000, f"{member} asks and asks: {self.open}"
            assert self.now_ms < end_ms, f"{member} does not get in: {self.open}"
            self.read()
            self.look()
            if self.fenced:
                return
            if self.open:
                self.answers(well=True)
            elif not (member.rejoin_needed or self.working):
                next_ms = member.next_deadline_ms()
                assert next_ms is not None
                self.now_ms = max(self.now_ms, next_ms)
            self.look()
        assert self.owned == member.owned


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_it_never_gets_stuck(seed: int) -> None:
    walk = Walk(seed)
    walk.look()
    for _ in range(STEPS):
        walk.step()
        if walk.fenced:
            return
        if walk.member.not_offered is not None:
            assert classic_instead(walk.member) is not None
            return
    walk.settle()
