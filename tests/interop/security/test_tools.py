"""Kafka's command line tools over SASL_SSL: they create users and ACLs, which are in force at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.interop.security import targets
from tests.interop.security.errands import SOON_S, Clients, Failed, Tools
from tests.interop.security.logins import Settings, java
from tests.interop.security.targets import SCRAM, Target

pytestmark = pytest.mark.interop

_ACLS: Final = "org.apache.kafka.tools.AclCommand"
_CONFIGS: Final = "kafka.admin.ConfigCommand"
_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_NEW: Final = "carla"
_PASSWORD: Final = "open-sesame"


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with Clients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


@pytest.fixture(params=["kafka", "muster"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if request.param == "kafka":
        yield targets.kafka(request.getfixturevalue("secured"))
        return
    with targets.muster(tmp_path_factory.mktemp("muster")) as ours:
        yield ours


def test_a_user_and_what_he_may_do(target: Target, clients: Clients) -> None:
    tools, owner = clients.tools, java(target.login(SCRAM))
    topic, group = "tooled", "tool-group"
    target.make_topic(topic)
    of_user = ("--entity-type", "users", "--entity-name", _NEW)
    credential = f"SCRAM-SHA-512=[iterations=4096,password={_PASSWORD}]"
    assert f"Completed updating config for user {_NEW}." in tools.call(
        owner, _CONFIGS, "--alter", *of_user, "--add-config", credential
    )
    described = tools.call(owner, _CONFIGS, "--describe", *of_user)
    assert "SCRAM-SHA-512=iterations=4096" in described
    new = java(replace(target.login("SCRAM-SHA-512"), user=_NEW, password=_PASSWORD))

    # The user can log in but may do nothing.
    _until_refused(tools, new, topic, "TopicAuthorizationException")
    allowed = ("--add", "--allow-principal", f"User:{_NEW}", "--topic", topic)
    assert "operation=WRITE" in tools.call(owner, _ACLS, *allowed, "--producer")
    _soon(lambda: tools.produce(new, topic, "first"))
    with pytest.raises(Failed, match="GroupAuthorizationException"):
        tools.consume(new, topic, group)
    tools.call(owner, _ACLS, *allowed, "--consumer", "--group", group)
    assert _soon(lambda: tools.consume(new, topic, group)) == "first"
    listed = tools.call(owner, _ACLS, "--list", "--principal", f"User:{_NEW}")
    assert f"ResourcePattern(resourceType=GROUP, name={group}, patternType=LITERAL)" in listed

    # The user sees only groups of their own.
    assert tools.call(new, _GROUPS, "--list").split() == [group]
    assert group in tools.call(owner, _GROUPS, "--list")
    (line,) = (
        each.split()
        for each in tools.call(new, _GROUPS, "--describe", "--group", group).splitlines()
        if each.split()[:2] == [group, topic]
    )
    assert line[2:6] == ["0", "1", "1", "0"], "partition, committed, end, lag"

    # Revoked rights no longer apply.
    removed = ("--remove", "--force", "--allow-principal", f"User:{_NEW}", "--topic", topic)
    tools.call(owner, _ACLS, *removed, "--producer")
    tools.call(owner, _ACLS, *removed, "--consumer", "--group", group)
    _until_refused(tools, new, topic, "TopicAuthorizationException")
    tools.call(owner, _CONFIGS, "--alter", *of_user, "--delete-config", "SCRAM-SHA-512")
    _until_refused(tools, new, topic, "SaslAuthenticationException")


def _soon(errand: Callable[[], str | None]) -> str | None:
    """Retry: one broker may learn only later what another has acknowledged, as with Apache Kafka."""
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            return errand()
        except Failed:
            if time.monotonic() > deadline:
                raise


def _until_refused(tools: Tools, settings: Settings, topic: str, error: str) -> None:
    deadline = time.monotonic() + SOON_S
    said = ""
    while said != error and time.monotonic() < deadline:
        try:
            tools.produce(settings, topic, "refused")
        except Failed as failed:
            said = failed.error
    assert said == error
