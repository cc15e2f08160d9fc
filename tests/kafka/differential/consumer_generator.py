"""Writes sequences about groups of the consumer protocol (KIP-848): members that join, leave and change their
subscriptions, by name and by regular expression, static members, topics that change under them, and clients
of both protocols in one group, which migrates between them while it runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.kafka.differential.generator import (
    CLIENTS,
    GROUPS,
    PAUSES_MS,
    REGEXES,
    TOPICS,
    Writer,
)

_OWN_TOPICS: Final = ("late", "soon")
"""Topics of the play's own, created, grown and deleted during it."""
_OWN_REGEX: Final = "(late|soon).*"
"""The name of such a topic ends with the play's suffix."""
_ASSIGNORS: Final = ("uniform", "range")


def consumer_sequence(seed: int, *, timed: bool = False) -> list[str]:
    """The lines of a scenario. `timed`: with one or two pauses in which short timeouts expire."""
    return _ConsumerWriter(random.Random(f"consumer/{seed}/{timed}"), timed).lines()


class _ConsumerWriter(Writer):
    def __init__(self, rng: random.Random, timed: bool) -> None:
        super().__init__(rng, timed)
        self._clients = CLIENTS[: rng.choice([1, 2, 2, 3, 3, 4, 4])]
        self._static = {client for client in self._clients if rng.random() < 0.3}
        self._type = "consumer"
        self._names = list(TOPICS)
        classic = rng.choice([0.0, 0.0, 0.2, 0.5, 0.8])
        self._is_mixed = classic > 0
        self._classic = {client for client in self._clients if rng.random() < classic}
        """Clients that currently speak the classic protocol."""
        self._topics_change = rng.random() < 0.25
        self._with_regexes = rng.random() < 0.35
        self._there: dict[str, int] = {}
        """The play's own topics that currently exist, with their partition counts."""

    def lines(self) -> list[str]:
        rng = self._random
        moves: list[tuple[int, Callable[[], None]]] = [
            (24, self._come),
            (26, self._beat),
            (16, self._converge),
            (7, self._change),
            (8, self._go),
            (10, self._commit),
            (5, self._fetch),
            (3, self._delete_offsets),
            (3, self._describe),
            (6, self._describe_consumer),
            (1, self._list),
            (2, self._delete_group),
            (2, self._disconnect),
            (2, self._forget),
        ]
        if self._is_mixed:
            moves += [
                (14, self._of_classic(self._settle)),
                (6, self._of_classic(self._join)),
                (8, self._of_classic(self._sync)),
                (10, self._of_classic(self._heartbeat)),
                (4, self._of_classic(self._leave)),
                (8, self._go_over),
            ]
        if self._topics_change:
            moves.append((10, self._change_topic))
        if rng.random() < 0.9:
            self._begin()
        pauses = list(PAUSES_MS[: rng.choice([1, 1, 2])]) if self._timed else []
        for pause in [*pauses, None]:
            for _ in range(rng.randint(2, 8) if self._timed else rng.randint(5, 22)):
                [move] = rng.choices([move for _, move in moves], [weight for weight, _ in moves])
                move()
            if pause is not None:
                self._steps.append(f"advance {pause}ms")
        # The state left behind is compared, too.
        last = self._clients[0]
        groups = " ".join(self._groups)
        self._steps += [
            f"{last} describe-consumer {groups}",
            f"{last} describe {groups}",
            f"{last} fetch all as-simple",
        ]
        return [
            *(f"topic {name} {count}" for name, count in TOPICS.items()),
            f"group {GROUPS[0]}",
            "",
            *self._steps,
        ]

    # --- words ----------------------------------------------------------------------------------------------

    def _consumers(self) -> list[str]:
        return [client for client in self._clients if client not in self._classic]

    def _topics(self) -> str:
        rng = self._random
        names = [*TOPICS, *(_OWN_TOPICS if self._topics_change else ())]
        if rng.random() < 0.5:
            names = names[:2]  # more alike
        found = rng.sample(names, rng.choice([1, 1, 2, len(names)]))
        if self._is_crooked():
            found += rng.choice([["nowhere"], found[:1], []])
        return ",".join(found) if rng.random() < 0.97 else "none"

    def _regex(self) -> str:
        rng = self._random
        if self._topics_change and rng.random() < 0.5:
            return _OWN_REGEX
        if self._is_crooked():
            return rng.choice(["orders(", "[", "*"])
        return rng.choice(REGEXES[:2]) if rng.random() < 0.7 else rng.choice(REGEXES)

    def _subscription(self) -> list[str]:
        rng = self._random
        if not self._with_regexes or rng.random() < 0.4:
            return [f"topics={self._topics()}"]
        words = [f"regex={self._regex()}"]
        return [f"topics={self._topics()}", *words] if rng.random() < 0.3 else words

    def _partitions(self, *, many: int = 3) -> list[str]:
        rng = self._random
        there = [f"{topic}-{index}" for topic, count in TOPICS.items() for index in range(count)]
        there += [f"{topic}-{index}" for topic, count in self._there.items() for index in range(count)]
        found = rng.sample(there, rng.randint(1, many))
        if self._is_crooked():
            found.append(rng.choice(["orders-9", "nowhere-0", "clicks-2"]))
        return found

    def _owned(self) -> str:
        """The partitions that a client reports as owned: usually its assignment."""
        if self._is_crooked():
            return f"owned={self._random.choice(['none', ','.join(self._partitions()), 'assigned'])}"
        return "owned=assigned"

    def _wrong(self) -> str:
        rng = self._random
        return rng.choice(
            [
                f"member={self._symbol()}",
                "member=none",
                "member=ghost",
                *(f"epoch={epoch}" for epoch in (-3, -2, -1, 99)),
                *(f"epoch={rng.randint(1, 9)}" for _ in range(4)),
                f"instance={self._client()}-instance",
                "instance=nobody",
                "instance=none",
                "assignor=nonsense",
                "rebalance=unsaid",
                "owned=unsaid",
                "owned=orders-0",
                "topics=unsaid",
                "rack=",
            ]
        )

    def _begin(self) -> None:
        """Most clients join; often the classic ones first, after which the group migrates."""
        rng = self._random
        moves = [self._of_classic(self._settle), self._converge]
        if rng.random() < 0.4:
            moves.reverse()
        for move in moves:
            move()

    # --- members of the consumer protocol -------------------------------------------------------------------

    def _come(self, client: str | None = None) -> None:
        """Join, or start over."""
        rng = self._random
        client = client or rng.choice(self._consumers() or self._clients)
        words = [*self._subscription(), f"rebalance={self._timeout()}", self._group()]
        if rng.random() < 0.15:
            words.append(f"assignor={rng.choice(_ASSIGNORS)}")
        if rng.random() < 0.1:
            words.append(f"rack={rng.choice('ab')}")
        if client in self._static:
            words.append(f"instance={client}-instance")
        if self._is_crooked():
            words = _instead(words, self._wrong())
        self._say_beat(client, *_instead(["epoch=0"], *words))
        self._known.add(client)

    def _say_beat(self, client: str, *words: str) -> None:
        # Ids generated by a broker (v0) are left to the few that bring none.
        old = self._random.random() < 0.05 and not any(word.startswith("regex=") for word in words)
        self._say(client, "beat", *words, since=0 if old else 1)

    def _beat(self) -> None:
        rng = self._random
        client = rng.choice(self._consumers() or self._clients)
        words = [self._group(), rng.choice(["", self._owned(), self._owned()])]
        if self._is_crooked():
            words = _instead(words, self._wrong())
        self._say_beat(client, *words)

    def _converge(self) -> None:
        """All members heartbeat and report what they own, usually until nobody has anything to revoke."""
        rng = self._random
        clients = self._consumers()
        for client in clients:
            if client not in self._known and rng.random() < 0.8:
                self._come(client)
        for _ in range(rng.choice([1, 2, 3])):
            rng.shuffle(clients)
            for client in clients:
                self._say_beat(client, "owned=assigned")

    def _change(self) -> None:
        """A member changes what it reports of itself."""
        rng = self._random
        client = rng.choice(self._consumers() or self._clients)
        words = rng.choice(
            [
                self._subscription(),
                self._subscription(),
                ["topics=none"],
                ["regex="] if self._with_regexes else self._subscription(),
                [f"assignor={rng.choice(_ASSIGNORS)}"],
                [f"rebalance={self._timeout()}"],
                [f"rack={rng.choice('ab')}"],
                [*self._subscription(), f"rebalance={self._timeout()}", "owned=assigned"],
            ]
        )
        self._say_beat(
            client, *_instead([self._owned() if rng.random() < 0.5 else ""], *words), self._group()
        )

    def _go(self) -> None:
        rng = self._random
        client = rng.choice(self._consumers() or self._clients)
        epoch = rng.choice([-2, -2, -1]) if client in self._static else -1
        self._say_beat(client, f"epoch={epoch}", self._group())
        self._known.discard(client)
        if rng.random() < 0.7:
            self._steps.append(f"{client} forget")
            if epoch == -2 and rng.random() < 0.6:
                self._come(client)

    # --- both protocols -------------------------------------------------------------------------------------

    def _of_classic(self, move: Callable[[], None]) -> Callable[[], None]:
        """The move, made by the clients that speak the classic protocol."""

        def moved() -> None:
            everybody, known = self._clients, self._known
            self._clients = tuple(client for client in everybody if client in self._classic)
            self._known = known & self._classic
            if self._clients:
                move()
            self._known |= known - self._classic
            self._clients = everybody

        return moved

    def _go_over(self) -> None:
        """A client returns with the other protocol, with or without having left."""
        rng = self._random
        client = self._client()
        if rng.random() < 0.7:
            if client in self._classic:
                self._say(client, "leave", self._group())
            else:
                self._say_beat(client, f"epoch={-2 if client in self._static else -1}", self._group())
        self._steps.append(f"{client} forget")
        self._known.discard(client)
        self._joined.discard(client)
        if client in self._classic:
            self._classic.discard(client)
            self._come(client)
        else:
            self._classic.add(client)
            self._join(client)

    def _sync(self, client: str | None = None) -> None:
        """No partition is assigned to two members: what Apache Kafka does then follows no rule."""
        rng = self._random
        members = [each for each in self._clients if each in self._classic]
        there = [f"{topic}-{index}" for topic, count in TOPICS.items() for index in range(count)]
        rng.shuffle(there)
        assigned = []
        for each in members:
            if rng.random() < 0.95:
                share = [there.pop() for _ in range(min(len(there), rng.randint(0, 3)))]
                assigned.append(f"${each}={','.join(share) or 'none'}")
        words = [*assigned, self._group()]
        if self._is_crooked():
            words.append(rng.choice([self._somebody(), "type=none", "protocol=none", "protocol=sticky"]))
        self._say(client or self._known_client(), "sync", *words)

    # --- observations, and concurrent changes ---------------------------------------------------------------

    def _fetch(self) -> None:
        rng = self._random
        words = ["all"] if rng.random() < 0.4 else self._partitions()
        if rng.random() < 0.5:
            words.append("as-member")
            if self._is_crooked():
                words.append(self._somebody())
            self._say(self._client(), "fetch", *words, self._group(), since=9)
        else:
            self._say(self._client(), "fetch", *words, self._group(), since=2 if words[0] == "all" else 0)

    def _commit(self) -> None:
        rng = self._random
        words = [f"{partition}={rng.randint(0, 99)}" for partition in self._partitions()]
        if rng.random() < 0.2:
            words.append(f"generation={rng.randint(0, 9)}")
        if self._is_crooked():
            words = _instead(words, rng.choice(["as-simple", self._somebody()]))
        self._say(self._client(), "commit", *words, self._group(), since=9 if rng.random() < 0.8 else 0)

    def _describe_consumer(self) -> None:
        groups = list(self._groups) + (["nobody"] if self._is_crooked() else [])
        self._say(self._client(), "describe-consumer", *groups)

    def _change_topic(self) -> None:
        rng = self._random
        name = rng.choice(_OWN_TOPICS)
        if name not in self._there:
            self._there[name] = rng.randint(1, 4)
            self._steps.append(f"create-topic {name} {self._there[name]}")
        elif rng.random() < 0.5:
            self._there[name] += rng.randint(1, 2)
            self._steps.append(f"grow-topic {name} {self._there[name]}")
        else:
            del self._there[name]
            self._steps.append(f"delete-topic {name}")


def _instead(words: list[str], *others: str) -> list[str]:
    """The words, with those of the same name replaced by the others."""
    names = {other.partition("=")[0] for other in others if "=" in other}
    return [word for word in words if word.partition("=")[0] not in names] + list(others)
