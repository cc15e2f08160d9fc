"""Plays a sequence against one broker, step by step."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import JoinGroupResponse
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatResponse
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from tests.group import prints, steps
from tests.group.cast import Cast
from tests.group.scenario import Answer, Scenario, Step
from tests.kafka.differential.connections import ANSWER_S_MAX, Connections, Line
from tests.kafka.differential.deliberate import is_forgotten_by_kafka
from tests.kafka.differential.generator import GROUPS, REGEXES, TOPICS
from tests.kafka.differential.own_topics import OwnTopics
from tests.kafka.differential.same_ids import SameIds
from tests.kafka.recording import Fields, remembered

_QUESTIONS_TO_BE_SURE: Final = 3
_QUESTIONS_AFTER_AN_ANSWER: Final = 2
_ANSWERED_AT_ONCE: Final = frozenset(
    {
        ApiKey.HEARTBEAT,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
    }
)
"""Requests that are never parked and that no parked request waits for."""


class SequenceCast(Cast):
    """Every play has its own groups; most topics, and what matches them, are shared."""

    def __init__(self, names: list[str], suffix: str, topics: Collection[str]) -> None:
        super().__init__(names, suffix)
        self._topics = frozenset(topics).union(REGEXES)

    def real(self, name: str) -> str:
        return name if name in self._topics else super().real(name)

    def member_id(self, word: str) -> str:
        """A symbol that stands for no id yet stands for itself: an id that no broker generates."""
        try:
            return super().member_id(word)
        except KeyError:
            return word


class Player:
    """One play of a sequence against one broker, with groups of its own."""

    def __init__(self, scenario: Scenario, connections: Connections, suffix: str) -> None:
        self.cast = SequenceCast(scenario.actors, suffix, scenario.topics)
        self.cast.topic_names.update((connections.topic_id(name), name) for name in scenario.topics)
        self._scenario = scenario
        self._connections = connections
        self._groups = sorted(self.cast.real(name) for name in GROUPS)
        self._lines: dict[str, list[Line]] = {}
        self._sent = 0
        self._arrived: dict[int, Answer] = {}
        self._closed: dict[int, str] = {}
        self._described: list[DescribeGroupsResponse.DescribedGroup] = []
        self._member_ids: set[str] = set()
        """The ids that `made_member_id` has seen."""
        self._own_topics = OwnTopics(connections, self._groups)
        self._looks_up = False
        """Whether anybody has subscribed by regular expression: then any heartbeat may trigger a look-up."""
        self._news = asyncio.Event()

    async def take(self, step: Step) -> None:
        """Take a step of an actor or `disconnect`; returns once it has taken effect, apart from what it waits
        for."""
        if step.actor is None:
            if step.verb == "disconnect":
                for line in self._lines.pop(step.arguments[0], ()):
                    line.close()
            else:
                await self._change_topic(step)
            await self._see_all_done(_QUESTIONS_TO_BE_SURE)
        elif step.verb == "forget":
            self.cast.actors[step.actor].forget()
        else:
            api, version, message = steps.request(self._scenario, step, self.cast, self._connections.topic_id)
            self._looks_up |= bool(getattr(message, "subscribed_topic_regex", None))
            number = await self._send(step.actor, api, version, message)
            if api in _ANSWERED_AT_ONCE:
                async with asyncio.timeout(ANSWER_S_MAX):
                    while number not in self._arrived and number not in self._closed:
                        await self.more()
            else:
                await self._see_all_done(_QUESTIONS_TO_BE_SURE, unless=number)
            if api is ApiKey.CONSUMER_GROUP_HEARTBEAT and self._looks_up:
                group = self.cast.real(step.options.get("group", self._scenario.group))
                await self._own_topics.await_look_ups(group, next(iter(TOPICS)))

    async def _change_topic(self, step: Step) -> None:
        name = self.cast.real(step.arguments[0])
        if step.verb == "delete-topic":
            await self._own_topics.delete(name)
        elif step.verb == "grow-topic":
            await self._own_topics.grow(name, int(step.arguments[1]))
        else:
            self.cast.know_topic(name, await self._own_topics.create(name, int(step.arguments[1])))

    @property
    def ids(self) -> SameIds:
        return self._connections.ids

    def topic_id(self, step: Step) -> uuid.UUID:
        """The id of the topic that a step created."""
        return self._connections.topic_id(self.cast.real(step.arguments[0]))

    def made_member_id(self, step: Step) -> str | None:
        """The member id that the broker generated for the step just taken; None if none is visible."""
        told = [
            answer.response.member_id
            for answer in self._arrived.values()
            if answer.actor == step.actor
            and isinstance(answer.response, JoinGroupResponse | ConsumerGroupHeartbeatResponse)
        ]
        seen = [
            member.member_id
            for group in self._described
            for member in group.members
            if member.client_id == step.actor
        ]
        fresh = [each for each in [*told, *seen] if each and each not in self._member_ids]
        self._member_ids.update(fresh)
        return next((each for each in fresh if not self.cast.knows(each)), None)

    async def more(self) -> None:
        """Wait for an answer."""
        self._news.clear()
        await self._news.wait()

    def who(self) -> list[str]:
        """Whose requests have been answered since the answers were last taken, except those that Kafka never
        answers."""
        answered = [each for each in self._arrived.values() if not is_forgotten_by_kafka(each)]
        return sorted([f"{each.actor} {each.api.name}" for each in answered] + [*self._closed.values()])

    def harvest(self) -> tuple[dict[str, Fields], list[str]]:
        """Take the answers: all fields of each, and the transcript lines."""
        answers = [self._arrived[number] for number in sorted(self._arrived)]
        self._arrived.clear()
        fields = remembered(answers, self.cast)
        for name in self._closed.values():
            fields[name] = {"connection": "closed"}
        self._closed.clear()
        answers.sort(key=lambda answer: self.cast.rank(answer.actor))
        return fields, [line for answer in answers for line in prints.lines(answer, self.cast)]

    async def close(self) -> None:
        await self._own_topics.close()
        for lines in self._lines.values():
            for line in lines:
                self._connections.give_back(line)
        self._lines.clear()

    async def _send(self, actor: str, api: ApiKey, version: int, message: Message) -> int:
        self._sent += 1
        number = self._sent
        line = await self._line(actor)

        def answered(response: Message | None) -> None:
            if response is None:
                self._closed[number] = f"{actor} {api.name}"
            else:
                self._connections.answers.note(api, version, response)
                self._arrived[number] = Answer(actor, api, version, response)
            self._news.set()

        line.send(actor, message, version, answered)
        return number

    async def _line(self, actor: str) -> Line:
        lines = self._lines.setdefault(actor, [])
        for line in lines:
            if line.is_idle:
                return line
        lines.append(await self._connections.lease())
        return lines[-1]

    async def _see_all_done(self, questions: int, *, unless: int | None = None) -> None:
        """Query the groups until every sent request must have taken effect: brokers take requests as they
        arrive, and a group's requests in that order. Once request `unless` is answered, fewer queries show
        that whatever else it released has been sent."""
        line = await self._connections.lease()
        try:
            asked, since_answer = 0, 0
            while asked < questions and since_answer < _QUESTIONS_AFTER_AN_ANSWER:
                answer = await line.call("control", DescribeGroupsRequest(groups=self._groups), 5)
                self._described = answer.groups
                asked += 1
                since_answer += unless in self._arrived or unless in self._closed
        finally:
            self._connections.give_back(line)
