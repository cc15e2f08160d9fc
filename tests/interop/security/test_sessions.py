"""Sessions that expire (KIP-368), with real clients: each reauthenticates on its existing connections while
records flow, and its group does not notice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from muster.coordinator.security.exchange import Authenticated
from muster.coordinator.server import unserved
from muster.coordinator.server.authentication import Authentication
from tests.interop.security import targets
from tests.interop.security.logins import Login, java, librdkafka
from tests.interop.security.targets import SCRAM, Target
from tests.interop.story.clients.base import StockClient
from tests.interop.story.clients.built import FRANZ_GO
from tests.interop.story.clients.java import JAVA
from tests.interop.story.clients.python import CONFLUENT, MUSTER
from tests.interop.story.lines import Assigned, Record, Revoked
from tests.interop.story.processes import Members

pytestmark = pytest.mark.interop

_SESSION_MS: Final = 20_000
_TOLD_MS: Final = 3_000
"""How long their sessions are, to the clients: no machine is so busy that one is late for the broker's."""
_TIMES: Final = 3
_SESSION_TIMEOUT_MS: Final = 30_000
"""The members' session timeout: no machine is so busy that a live member expires."""
_DEADLINE_S: Final = 60.0
_PAUSE_S: Final = 0.02
_PARTITIONS: Final = 1
_PRODUCER: Final = "producer"
# Java's client and librdkafka's reauthenticate with their next request in the last tenth of the session.
_OFTEN: Final = "heartbeat.interval.ms=100"
_MEMBERS: Final[dict[StockClient, tuple[str, ...]]] = {
    JAVA: (_OFTEN,),
    CONFLUENT: (_OFTEN,),
    FRANZ_GO: (),
    MUSTER: (),
}


class Sessions:
    """Counts for every connection how often its client has reauthenticated on it."""

    def __init__(self) -> None:
        self._again: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.turned_away: list[dict[str, Any]] = []

    def enter(self, authentication: Authentication) -> None:
        connection = authentication._connection
        if authentication.is_in and connection is not None:
            self._again[connection.client_id][id(authentication)] += 1

    def again(self, client_id: str) -> int:
        """The count for the client's connection with the most."""
        return max(self._again[client_id].values(), default=0)

    def warning(self, event: str, **fields: Any) -> None:
        """Called like a `Logger`'s, for clients that cannot be served."""
        self.turned_away.append(fields)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    sessions = Sessions()
    enter = Authentication._enter

    def entered(self: Authentication, who: Authenticated) -> int:
        sessions.enter(self)
        return min(enter(self, who), _TOLD_MS)

    monkeypatch.setattr(Authentication, "_enter", entered)
    monkeypatch.setattr(unserved, "_log", sessions)
    return sessions


@contextmanager
def _records(login: Login, *topics: str) -> Iterator[list[str]]:
    """The values of records sent to these topics all the while; at the end, all are acknowledged."""
    producer = Producer(librdkafka(login) | {"client.id": _PRODUCER, "linger.ms": 0})
    sent: list[str] = []
    enough = Event()

    def send() -> None:
        while not enough.wait(_PAUSE_S):
            value = f"none-{len(sent)}"
            for topic in topics:
                producer.produce(topic, value)
            sent.append(value)
            producer.poll(0)

    thread = Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        enough.set()
        thread.join()
        assert producer.flush(_DEADLINE_S) == 0


def _configs(client: StockClient, login: Login) -> list[str]:
    settings = java(login) if client in (JAVA, MUSTER) else librdkafka(login)
    del settings["bootstrap.servers"]
    named = [f"{name}={value}" for name, value in settings.items()]
    return [*named, f"client.id={client.name}", *_MEMBERS[client]]


def _start(members: Members, target: Target) -> None:
    login = target.login(SCRAM)
    for client in _MEMBERS:
        client.prepare()
        target.make_topic(client.name)
        command = client.member(
            login.bootstrap, client.name, client.name, _SESSION_TIMEOUT_MS, *_configs(client, login)
        )
        members.start(client.name, command)
    for client in _MEMBERS:
        members.wait_until_shared(client.name, partitions=_PARTITIONS)


def test_members_authenticate_again_and_their_groups_go_on(sessions: Sessions, tmp_path: Path) -> None:
    names = [client.name for client in _MEMBERS]
    members = Members(tmp_path)
    try:
        with targets.muster(tmp_path, connections_max_reauth_ms=_SESSION_MS) as target:
            _start(members, target)
            began = len(members.heard)
            with _records(target.login(SCRAM), *names) as sent:

                def reached() -> bool:
                    return all(sessions.again(name) >= _TIMES for name in [*names, _PRODUCER])

                members.wait_until(reached, f"{_TIMES} times each", _DEADLINE_S)
            members.wait_until(
                lambda: all(members.delivered_to[name] >= set(sent) for name in names), "all the records"
            )
            later = [each for each in members.heard[began:] if isinstance(each.event, Assigned | Revoked)]
            told = [f"{name}\n{target.timeline(name)}" for name in names]
            assert not later, [*told, *(program.last_complaints() for program in members.programs.values())]
            for name in names:
                read = [
                    each for each in members.heard if each.member == name and isinstance(each.event, Record)
                ]
                assert len(read) == len(sent), f"{name} was given a record twice"
                members.ask_to_leave(name)
            members.wait_until(lambda: all(map(members.has_left, names)), "all to leave")
    finally:
        members.close()
    assert not sessions.turned_away
