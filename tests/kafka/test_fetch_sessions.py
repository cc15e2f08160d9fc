"""Fetch sessions (KIP-227) compared with Apache Kafka's: what an answer omits, what ends a session, and which
partitions come first."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import DeleteRecordsRequest, FetchRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.kafka.test_data_plane import batch, producing

pytestmark = pytest.mark.kafka

NAMES = 12
"""A version whose requests identify topics by name."""
IDS = 17
"""A version whose requests identify topics by id."""
Part = tuple[str, int, int]
"""Topic, partition, offset."""


class Session:
    """A session as a client keeps it."""

    def __init__(self, side: Side, ids: dict[str, uuid.UUID] | None = None) -> None:
        self.side = side
        self.ids = ids
        self.id = 0
        self.epoch = 0

    def ask(
        self,
        title: str,
        *parts: Part,
        forgotten: tuple[tuple[str, int], ...] = (),
        version: int | None = None,
        **fields: Any,
    ) -> Any:
        """Send the session's next request, with `fields` overriding its defaults."""
        asked = {"session_id": self.id, "session_epoch": self.epoch, **fields}
        request = FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "topics": [
                    FetchRequest.FetchTopic(
                        **self._named(topic),
                        partitions=[
                            FetchRequest.FetchPartition(
                                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
                            )
                        ],
                    )
                    for topic, partition, offset in parts
                ],
                "forgotten_topics_data": [
                    FetchRequest.ForgottenTopic(**self._named(topic), partitions=[partition])
                    for topic, partition in forgotten
                ],
                **asked,
            }
        )
        answer = self.side.ask(title, request, version or (IDS if self.ids else NAMES))
        told = [
            (self._name_of(each), part.partition_index, bool(part.records))
            for each in answer.responses
            for part in each.partitions
            if part.error_code == 0  # Kafka puts the others at the end, whatever their place
        ]
        self.side.note(f"{title}: partitions in line", told)
        if answer.error_code == 0:
            self.id = answer.session_id
            self.epoch = asked["session_epoch"] + 1
        return answer

    def _name_of(self, topic: Any) -> str:
        if self.ids is None:
            return str(topic.topic).partition("-told")[0]
        return next((name for name, id_ in self.ids.items() if id_ == topic.topic_id), "?")

    def _named(self, topic: str) -> dict[str, Any]:
        return {"topic_id": self.ids[topic]} if self.ids else {"topic": self.side.name(topic)}


def what_is_told(side: Side) -> None:
    side.create(t=2, other=1)
    session = Session(side)
    session.ask("opened", ("t", 0, 0), ("t", 1, 0), ("other", 0, 0))
    session.ask("nothing happened")
    side.quietly(producing(side, ("t", 0, batch(b"a", b"b"))), NAMES)
    session.ask("records")
    session.ask("the same records again")
    session.ask("read on", ("t", 0, 2))
    session.ask("nothing again")
    session.ask("read anew", ("t", 0, 0))
    session.ask("in the middle", ("t", 0, 1), ("other", 0, 0))
    session.ask("to the end", ("t", 0, 2))
    cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=side.name("t"), partitions=[cut])
    side.quietly(DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000), 2)
    session.ask("the log begins later")
    session.ask("nothing once more")
    session.ask("read committed", isolation_level=1)
    session.ask("the same partition twice", ("t", 1, 7), ("t", 1, 0))
    session.ask("two of a topic with another between", ("t", 0, 2), ("other", 0, 0), ("t", 1, 0))


def errors(side: Side) -> None:
    side.create(t=2)
    session = Session(side)
    session.ask("opened with what is not there", ("t", 0, 0), ("t", 9, 0), ("none", 0, 0))
    session.ask("it is not there again")
    session.ask("forgotten", forgotten=(("t", 9), ("none", 0)))
    session.ask("nothing is left to say")
    session.ask("out of range", ("t", 0, 5))
    session.ask("out of range again")
    session.ask("in range", ("t", 0, 0))
    session.ask("in range again")
    session.ask("added and forgotten", ("t", 1, 0), forgotten=(("t", 1),))
    session.ask("it is not there")
    session.ask("forgotten and never known", forgotten=(("t", 1), ("none", 3)))
    session.ask("a bad name", ("a b", 0, 0))


def epochs(side: Side) -> None:
    side.create(t=2)
    session = Session(side)
    session.ask("opened", ("t", 0, 0))
    session.ask("an epoch too far", session_epoch=2)
    session.ask("an epoch that was", session_epoch=-7)
    session.ask("the next epoch")
    session.ask("the same epoch again", session_epoch=1)
    session.ask("by id", version=IDS)
    session.ask("by name again")
    first = session.id
    session.ask("opened in its place", ("t", 1, 0), session_epoch=0)
    session.ask("the first one", session_id=first, session_epoch=3)
    session.ask("on in the second", ("t", 0, 0))
    session.ask("closed", ("t", 0, 0), session_epoch=-1)
    session.ask("after the end", session_id=first, session_epoch=1)
    session.ask("opened with nothing", session_id=0, session_epoch=0)
    session.ask("on with nothing")
    session.ask("opened with what no session has", ("t", 0, 0), session_id=4_711, session_epoch=0)
    session.ask("everything forgotten", forgotten=(("t", 0),))
    session.ask("after everything was forgotten", session_id=first, session_epoch=2)


def overtaken(side: Side) -> None:
    """A request still waits when the next one comes."""
    side.create(t=1)
    side.quietly(producing(side, ("t", 0, batch(b"a"))), NAMES)
    session = Session(side)
    session.ask("opened", ("t", 0, 1))
    for title, fields in {"the next one": {}, "a refused one": {"session_epoch": 99}}.items():
        waiting = FetchRequest(
            max_wait_ms=60_000, min_bytes=1, session_id=session.id, session_epoch=session.epoch, topics=[]
        )
        session.epoch += 1

        def another(title: str = title, fields: dict[str, Any] = fields) -> None:
            for _ in range(3):  # by the third answer, the other connection's request is waiting
                side.quietly(ApiVersionsRequest(), 0)
            session.ask(title, ("t", 0, 0), **fields)
            side.quietly(producing(side, ("t", 0, batch(b"b"))), NAMES)

        side.ask_side_by_side({f"waits when there comes {title}": waiting}, NAMES, another)
        session.ask(f"after {title}", ("t", 0, 0))
        end = 2 if title == "the next one" else 3
        session.ask(f"at the end after {title}", ("t", 0, end))


def by_id(side: Side) -> None:
    ids = side.create(t=2, other=1)
    ids["none"] = uuid.UUID(int=7)
    session = Session(side, ids)
    session.ask("opened", ("t", 0, 0), ("other", 0, 0), ("none", 0, 0))
    session.ask("no such id again")
    side.quietly(producing(side, ("other", 0, batch(b"a"))), NAMES)
    session.ask("records", ("t", 1, 0))
    session.ask("no such id forgotten", ("other", 0, 1), forgotten=(("none", 0),))
    session.ask("nothing")
    session.ask("by name", version=NAMES)


def who_comes_first(side: Side) -> None:
    """Each answer has room for one partition's records."""
    side.create(t=3, u=2)
    for topic, partition in (("t", 0), ("t", 2), ("u", 0), ("u", 1)):
        side.quietly(producing(side, (topic, partition, batch(b"x" * 1_000))), NAMES)
    session = Session(side)
    parts = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0), ("u", 0, 0), ("u", 1, 0)]
    session.ask("opened", *parts, max_bytes=1_500)
    for turn in range(6):
        session.ask(f"turn {turn}", max_bytes=1_500)
    session.ask("all that there is")
    session.ask("all once more")
    session.ask("without two of them", forgotten=(("t", 2), ("u", 0)), max_bytes=1_500)
    session.ask("the others", max_bytes=1_500)


@pytest.mark.parametrize("story", [what_is_told, errors, epochs, overtaken, by_id, who_comes_first])
def test_apache_kafka_keeps_sessions_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
