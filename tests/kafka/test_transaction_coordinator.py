"""Stories of transactional ids: every API of the coordinator in every version, what each refuses, and what is
reported about ids. Sequences of requests are in `test_transactions`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import FindCoordinatorRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import CHOSEN_BY_STORIES, KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_topics import until
from tests.support.wire_transactions import (
    OF_BROKERS_FROM,
    Producer,
    adding,
    adding_as_broker,
    adding_offsets,
    describing,
    ending,
    joining,
    listing,
    starting,
)

pytestmark = pytest.mark.kafka

_NOT_YET: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_NOBODYS: Final = CHOSEN_BY_STORIES[0]
_CONTINUED_FROM: Final = 3
"""From this version on, InitProducerId takes the producer's current id and epoch."""


def _versions(api: ApiKey) -> range:
    first, last = versions(api)
    return range(first, last + 1)


class _Producers:
    """The producers of a story, whose ids are not compared while they are prepared."""

    def __init__(self, side: Side) -> None:
        self._side = side
        finding = FindCoordinatorRequest(key_type=1, coordinator_keys=[side.name("first")])

        def is_found() -> bool:
            (found,) = side.quietly(finding, 4).coordinators
            return bool(found.error_code == 0)

        until(is_found, "a coordinator of transactions")
        until(lambda: side.quietly(starting(None), 5).error_code == 0, "producer ids")
        until(lambda: side.quietly(starting(side.name("first")), 5).error_code not in _NOT_YET, "its shard")

    def start(self, transactional_id: str) -> Producer:
        answer = self._side.quietly(starting(self._side.name(transactional_id)), 5)
        assert answer.error_code == 0
        return answer.producer_id, answer.producer_epoch

    def add(self, transactional_id: str, producer: Producer, topic: str = "t") -> None:
        request = adding(self._side.name(transactional_id), producer, {self._side.name(topic): [0]})
        self._side.quietly(request, 3)

    def end(self, transactional_id: str, producer: Producer, *, commits: bool, version: int = 4) -> Producer:
        """Returns once all markers are written."""
        request = ending(self._side.name(transactional_id), producer, commits=commits)
        answer = self._side.quietly(request, version)
        assert answer.error_code == 0
        self.settle(transactional_id)
        return answer.producer_id, answer.producer_epoch

    def settle(self, transactional_id: str) -> None:
        """Return when no more markers are pending."""

        def is_settled() -> bool:
            (found,) = self._side.quietly(describing(self._side.name(transactional_id)), 0).transaction_states
            return not found.transaction_state.startswith("Prepare")

        until(is_settled, f"the markers of {transactional_id}")


# --- stories ------------------------------------------------------------------------------------------------


def starts(side: Side) -> None:
    side.create(t=1)
    producers = _Producers(side)
    for version in _versions(ApiKey.INIT_PRODUCER_ID):
        name = f"start-{version}"

        def ask(title: str, *, id: str = name, at: int = version, **more: Any) -> Any:
            named = side.name(id) if id else ""
            return side.ask(f"{title}, v{at}", starting(named, **more), at)

        for timeout_ms in (0, -1, 900_001):
            ask(f"timeout {timeout_ms}", timeout_ms=timeout_ms)
        ask("an empty id", id="")
        first = ask("first", timeout_ms=1)
        again = ask("again", timeout_ms=900_000)
        assert again.producer_id == first.producer_id
        producer = again.producer_id, again.producer_epoch
        producers.add(name, producer)
        ask("in a transaction")
        producers.settle(name)
        last = ask("after its end")
        if version >= _CONTINUED_FROM:
            ask("an id without an epoch", had=(producer[0], -1))
            ask("an epoch without an id", had=(-1, 0))
            ask("a zombie", had=producer)
            ask("another's id", had=(_NOBODYS, 0))
            ask("an epoch to come", had=(last.producer_id, last.producer_epoch + 3))
            mine = last.producer_id, last.producer_epoch
            ask("with what it has", had=mine)
            ask("the same again", had=mine)
            ask("an unknown id with what it had", id=f"{name}-unknown", had=(_NOBODYS, 7))
            ask("no transactional id", id=f"{name}-idle", had=mine)


def adds(side: Side) -> None:
    side.create(t=2, other=1)
    producers = _Producers(side)
    t, other = side.name("t"), side.name("other")
    for version in range(OF_BROKERS_FROM):
        name = f"add-{version}"
        mine = producers.start(name)

        def ask(
            title: str, producer: Producer, topics: dict[str, list[int]], *, id: str = name, at: int = version
        ) -> None:
            named = side.name(id) if id else ""
            side.ask(f"{title}, v{at}", adding(named, producer, topics), at)

        ask("nowhere", mine, {t: [0, 9], "none": [0], "a/b": [0], other: [-1]})
        ask("internal topics", mine, {"__consumer_offsets": [0], "__transaction_state": [0], t: [1]})
        ask("nowhere, by nobody", (_NOBODYS, 0), {t: [0], "none": [0]})
        ask("an unknown id", mine, {t: [0, 1]}, id="unknown")
        ask("an empty id", mine, {t: [0]}, id="")
        ask("another's", (_NOBODYS, 0), {t: [0, 1], other: [0]})
        ask("an epoch to come", (mine[0], mine[1] + 1), {t: [0]})
        ask("one", mine, {t: [0]})
        ask("the same", mine, {t: [0]})
        ask("more", mine, {t: [0, 1], other: [0]})
        side.ask(f"what is in it, v{version}", describing(side.name(name)), 0, arranged=_sorted)
        producers.end(name, mine, commits=True)
        ask("after the end", mine, {other: [0]})
        side.ask(f"what is in it then, v{version}", describing(side.name(name)), 0)
        producers.end(name, mine, commits=False)
        producers.start(name)
        ask("a zombie", mine, {t: [0]})


def brokers_add(side: Side) -> None:
    side.create(t=2)
    side.coordinate("g")
    producers = _Producers(side)
    t = side.name("t")
    for version in (OF_BROKERS_FROM, OF_BROKERS_FROM + 1):
        name, idle = side.name(f"broker-{version}"), side.name(f"idle-{version}")
        mine, idler = producers.start(f"broker-{version}"), producers.start(f"idle-{version}")

        def ask(title: str, *transactions: Any, at: int = version) -> None:
            side.ask(f"{title}, v{at}", adding_as_broker(*transactions), at)

        for verify_only in (True, False):
            ask(
                f"verify {verify_only}",
                joining(name, mine, {t: [0]}, verify_only=verify_only),
                joining(idle, (idler[0], idler[1] + 1), {t: [0]}, verify_only=verify_only),
                joining("unknown", mine, {t: [0, 1]}, verify_only=verify_only),
            )
            ask(
                f"nowhere, verify {verify_only}",
                joining(name, mine, {t: [0, 9], "none": [0]}, verify_only=verify_only),
                joining(idle, (_NOBODYS, 0), {t: [0]}, verify_only=verify_only),
            )
        ask("there and not there", joining(name, mine, {t: [0, 1]}, verify_only=True))
        ask("an internal topic", joining(name, mine, {"__consumer_offsets": [0]}))
        side.ask(f"what came of it, v{version}", describing(name, idle), 0, arranged=_sorted)


def offsets(side: Side) -> None:
    side.coordinate("g")
    producers = _Producers(side)
    for version in _versions(ApiKey.ADD_OFFSETS_TO_TXN):
        name = f"offsets-{version}"
        mine = producers.start(name)

        def ask(
            title: str, producer: Producer, *, id: str = name, group: str = "g", at: int = version
        ) -> None:
            named = side.name(id) if id else ""
            side.ask(f"{title}, v{at}", adding_offsets(named, producer, group), at)

        ask("an unknown id", mine, id="unknown")
        ask("an empty id", mine, id="")
        ask("another's", (_NOBODYS, 0))
        ask("an epoch to come", (mine[0], mine[1] + 1))
        ask("good", mine)
        ask("again", mine)
        ask("no group", mine, group="")
        side.ask(f"what is in it, v{version}", describing(side.name(name)), 0, arranged=_sorted)


def ends(side: Side) -> None:
    side.create(t=1)
    producers = _Producers(side)
    for version in _versions(ApiKey.END_TXN):
        for commits in (True, False):
            name = f"end-{version}-{commits}"
            mine = producers.start(name)

            def ask(
                title: str,
                producer: Producer,
                *,
                id: str = name,
                wish: bool = commits,
                at: int = version,
                of: str = name,
            ) -> Any:
                answer = side.ask(
                    f"{of}: {title}", ending(side.name(id) if id else "", producer, commits=wish), at
                )
                producers.settle(of)
                return answer

            ask("an unknown id", mine, id="unknown")
            ask("an empty id", mine, id="")
            ask("another's", (_NOBODYS, 0))
            ask("an epoch to come", (mine[0], mine[1] + 1))
            if commits or version < 5:
                ask("without a transaction", mine)
            producers.add(name, mine)
            ask("the epoch before", (mine[0], mine[1] - 1))
            answer = ask("good", mine)
            ask("again", mine)
            ask("the other way", mine, wish=not commits)
            side.ask(f"{name}: what came of it", describing(side.name(name)), 0)
            if version >= 5:
                after = answer.producer_id, answer.producer_epoch
                ask("the next, without a transaction", after)
                ask("the next, the other way", after, wish=not commits)
            producers.start(name)
            ask("a zombie", mine)


def looks(side: Side) -> None:
    side.create(t=2, other=1)
    producers = _Producers(side)
    ids: dict[str, int] = {}
    for name in ("look-idle", "look-open", "look-committed", "look-aborted"):
        mine = producers.start(name)
        ids[name] = mine[0]
        if name != "look-idle":
            producers.add(name, mine)
        if name in ("look-committed", "look-aborted"):
            producers.end(name, mine, commits=name == "look-committed")
    names = [side.name(name) for name in ids]
    side.ask("described", describing(*names, "unknown", "", names[0]), 0)
    side.ask("none described", describing(), 0)

    def only(answer: Any) -> None:
        """Drop ids of other stories, which are listed too."""
        answer.transaction_states = sorted(
            (each for each in answer.transaction_states if each.transactional_id in names),
            key=lambda each: each.transactional_id,
        )

    def ask(
        title: str,
        version: int,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        **more: Any,
    ) -> None:
        side.ask(f"{title}, v{version}", listing(states, producer_ids, **more), version, arranged=only)

    for version in _versions(ApiKey.LIST_TRANSACTIONS):
        ask("all", version)
        ask("a state", version, ["Ongoing"])
        ask("states", version, ["Ongoing", "Empty", "CompleteAbort"])
        ask("every state", version, _STATES)
        ask("a state that is none", version, ["ongoing"])
        ask("states, some of them none", version, ["Ongoing", "ongoing", "", "Ongoing"])
        ask("a producer", version, (), [ids["look-open"]])
        ask("producers", version, (), [ids["look-open"], ids["look-idle"], _NOBODYS])
        ask("nobody", version, (), [_NOBODYS])
        ask("a producer in another state", version, ["Empty"], [ids["look-open"]])
        if version < 1:
            continue
        for duration_ms in (-1, -2, 0, 10**9):
            ask(f"for {duration_ms} ms", version, duration_filter=duration_ms)
        if version < 2:
            continue
        for pattern in _PATTERNS:
            ask(f"like {pattern!r}", version, transactional_id_pattern=pattern)
        ask("like and in a state", version, ["Ongoing"], transactional_id_pattern="look-.*")
        ask("like nothing, and a state that is none", version, ["x"], transactional_id_pattern="(")


_PATTERNS: Final = (
    "",
    "look-.*",
    ".*open.*",
    "look",
    "(",
    "(?=l).*",
    "*",
    "LOOK.*",
    "(?i)LOOK.*",
    "[[:alpha:]]+-.*",
)
_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def coordinators(side: Side) -> None:
    _Producers(side)
    for version in _versions(ApiKey.FIND_COORDINATOR):
        if version >= 4:
            found = FindCoordinatorRequest(key_type=1, coordinator_keys=[side.name("a"), "", side.name("a")])
            side.ask(f"v{version}", found, version, but="host")
        elif version >= 1:
            for key in (side.name("a"), ""):
                finding = FindCoordinatorRequest(key=key, key_type=1)
                side.ask(f"{'one' if key else 'none'}, v{version}", finding, version, but="host")


def _sorted(answer: Any) -> None:
    for each in answer.transaction_states:
        for topic in each.topics:
            topic.partitions.sort()


_STORIES: Final[Collection[Callable[[Side], None]]] = (
    starts,
    adds,
    brokers_add,
    offsets,
    ends,
    looks,
    coordinators,
)


@pytest.mark.parametrize("story", _STORIES)
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
