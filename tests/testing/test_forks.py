"""Brokers in a process that is forked while they run."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from muster.coordinator.testing import Broker
from tests.support.forks import DEADLINE_S, a_fork, needs_fork, told_in_a_fork

pytestmark = needs_fork


def connected(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=DEADLINE_S)


def ended(client: socket.socket) -> bool:
    """Whether the broker has ended the connection; fails if it does not."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_that_ends_is_gone_for_its_clients_though_a_fork_lives(clean: bool) -> None:
    with Broker() as broker, connected(broker) as client:
        broker.create_topic("orders")  # by then the connection is accepted
        with a_fork():
            (broker.stop if clean else broker.kill)(0)
            assert ended(client)
            if sys.platform == "linux":  # elsewhere a fork may keep a port open
                with pytest.raises(ConnectionRefusedError):
                    connected(broker)
                broker.restart(0)
                assert broker.produce("orders", [b"tea"]) == 0


def test_a_broker_that_is_closed_is_gone_for_its_clients_though_a_fork_lives() -> None:
    with Broker() as broker, connected(broker) as client:
        broker.create_topic("orders")
        with a_fork():
            broker.close()
            assert ended(client)


@pytest.mark.parametrize("greeted", [True, False])
def test_a_tls_connection_ends_though_a_fork_lives(greeted: bool) -> None:
    pytest.importorskip("cryptography")
    with Broker(security="SASL_SSL") as broker, connected(broker) as plain:
        broker.create_topic("orders")
        context = ssl.create_default_context(cafile=broker.client_settings("muster")["ssl_cafile"])
        context.check_hostname = False
        client = context.wrap_socket(plain, suppress_ragged_eofs=True) if greeted else plain
        with client, a_fork():
            broker.kill(0)
            assert ended(client)


def test_a_fork_is_told_that_the_broker_is_not_its_own() -> None:
    with Broker() as broker:
        for call in (
            partial(broker.create_topic, "orders"),
            broker.groups,
            broker.start,
            lambda: asyncio.run(broker.aio.create_topic("orders")),
        ):
            told = told_in_a_fork(call)
            assert told.startswith("RuntimeError: this broker belongs to process "), told
            assert told.endswith(", which forked this one: give it broker.bootstrap instead")
        assert told_in_a_fork(lambda: broker.bootstrap) == broker.bootstrap


def test_a_fork_that_closes_a_broker_ends_at_once_and_harms_nobody() -> None:
    def leave_the_block() -> None:
        broker.__exit__(None, None, None)

    with Broker() as broker, connected(broker):
        for call in (broker.close, leave_the_block, lambda: asyncio.run(broker.aio.close())):
            assert told_in_a_fork(call) == "None"
        broker.create_topic("orders")
        with connected(broker):
            pass


FORKING = """
import os
import sys
from pathlib import Path

from muster.coordinator.testing import Broker

with Broker(security="SSL") as broker:
    folder = Path(broker.client_settings("muster")["ssl_cafile"]).parent
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.exists()
print(folder)
"""


def test_certificates_outlive_a_fork_and_go_with_the_process_that_made_them() -> None:
    pytest.importorskip("trustme")
    ended = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path(ended.stdout.strip()).exists()


def test_a_fork_may_have_a_broker_of_its_own() -> None:
    def own() -> int:
        with Broker() as another:
            another.create_topic("orders", 2)
            return another.topic("orders").exists()

    unstarted = Broker()
    with Broker():
        assert told_in_a_fork(own) == "2"
        assert told_in_a_fork(lambda: unstarted.start().create_topic("t")) == "None"
