"""Listening sockets: host names, ports, and refusals a person can read."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from muster.coordinator.base.system import raise_open_files_limit
from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.listener import BindError, Listener
from tests.server.conftest import StartBrokers
from tests.server.test_api_versions import SOFTWARE
from tests.support.forks import a_fork, needs_fork
from tests.support.ports import free_ports, has_ipv6
from tests.support.wire import Wire


def descriptors() -> int:
    """Number of open descriptors; always 0 where the system does not report it."""
    open_files = Path("/proc/self/fd")
    return len(list(open_files.iterdir())) if open_files.exists() else 0


async def test_localhost_is_both_families_on_one_port(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(host="localhost")
    port = brokers.brokers[0].port
    for host in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
        async with await Wire.connect(port, host) as wire:
            assert (await wire.call(SOFTWARE, 3)).error_code == 0


async def test_several_brokers_take_consecutive_ports(start_brokers: StartBrokers) -> None:
    port = free_ports(3)
    brokers = await start_brokers(brokers=3, port=port)
    assert [broker.port for broker in brokers.brokers] == [port, port + 1, port + 2]


async def test_port_0_is_a_free_one_for_each(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3, port=0)
    assert len({broker.port for broker in brokers.brokers} - {0}) == 3


async def test_a_port_in_use_is_said_so_and_nothing_is_left_behind(start_brokers: StartBrokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{port} is in use; choose another --port"):
            await start_brokers(port=port)
    assert (await start_brokers(port=port)).brokers[0].port == port


async def test_a_port_taken_at_one_of_two_addresses_is_in_use() -> None:
    if not has_ipv6():
        return
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        listener = Listener("localhost", taken.getsockname()[1], asyncio.Protocol)
        with pytest.raises(BindError, match="is in use"):
            await listener.bind()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_this_machine(host: str) -> None:
    with pytest.raises(BindError, match=f"{host} is not an address of this machine"):
        await Listener(host, 0, asyncio.Protocol).bind()


async def test_a_host_in_brackets() -> None:
    with pytest.raises(BindError, match="give it without brackets"):
        await Listener("[::1]", 0, asyncio.Protocol).bind()


async def test_the_port_is_free_again_after_a_stop(start_brokers: StartBrokers) -> None:
    first = await start_brokers()
    port = first.brokers[0].port
    async with await Wire.connect(port) as wire:
        await wire.call(SOFTWARE, 3)
        await first.stop()
        assert await wire.closed()
    assert (await start_brokers(port=port)).brokers[0].port == port


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_at_the_end_is_closed(turns: int) -> None:
    """However far it has got when the port is given up."""
    made: list[asyncio.BaseTransport] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    listener = Listener("127.0.0.1", 0, Accepted)
    port = await listener.bind()
    await listener.accept()
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        for _ in range(5):
            await asyncio.sleep(0)
        for transport in made:
            transport.close()
        client.settimeout(30)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_a_broker_goes_is_closed(
    start_brokers: StartBrokers, turns: int, clean: bool
) -> None:
    brokers = await start_brokers(brokers=2, shutdown_grace_ms=100)
    node = brokers.brokers[0]
    with socket.create_connection(("127.0.0.1", node.port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await (brokers.stop_one(0) if clean else brokers.kill_one(0))
        client.settimeout(30)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
    assert not node.connections.alive
    assert not node.connections.open


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_come_at_once_are_accepted_in_a_few_turns(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """And every descriptor is given back."""
    made: list[asyncio.BaseTransport] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async def turns(port: int) -> int:
        with ExitStack() as clients:
            for _ in range(160):
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            taken = 0
            while len(made) < 160 and taken < 320:
                await asyncio.sleep(0)
                taken += 1
            for transport in made:
                transport.close()
        return taken

    async def listen() -> int:
        listener = Listener("127.0.0.1", 0, Accepted)
        port = await listener.bind()
        await listener.accept()
        try:
            return await turns(port)
        finally:
            await listener.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(listen())  # what the loop itself opens for the first connection stays
        open_before = descriptors()
        made.clear()
        assert runner.run(listen()) <= 30
        assert descriptors() == open_before


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """Like that of Windows."""

    def add_reader(self, fd: object, callback: object, *arguments: object) -> None:
        raise NotImplementedError

    def remove_reader(self, fd: object) -> bool:
        raise NotImplementedError


def test_a_broker_stops_on_a_loop_without_readers() -> None:
    async def serve() -> None:
        brokers = Brokers(Settings(port=0, ephemeral=True, shutdown_grace_ms=2_000))
        await brokers.start()
        port = brokers.brokers[0].port
        try:
            async with await Wire.connect(port) as wire:
                await wire.call(SOFTWARE, 3)
                await brokers.stop_one(0)
                assert await wire.closed()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
        finally:
            await brokers.stop()

    with asyncio.Runner(loop_factory=LoopWithoutReaders) as runner:
        runner.run(serve())


@needs_fork
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_ends_though_a_fork_has_its_sockets(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], clean: bool
) -> None:
    """What it answered before is still read."""

    async def serve() -> None:
        brokers = Brokers(Settings(port=0, ephemeral=True, shutdown_grace_ms=2_000))
        await brokers.start()
        port = brokers.brokers[0].port
        try:
            async with await Wire.connect(port) as wire:
                await wire.call(SOFTWARE, 3)
                with a_fork():
                    await (brokers.stop_one(0) if clean else brokers.kill_one(0))
                    assert await wire.closed()
                    if sys.platform == "linux":  # elsewhere a fork may keep a port open
                        with pytest.raises(ConnectionRefusedError):
                            socket.create_connection(("127.0.0.1", port)).close()
                        await brokers.start_one(0)
        finally:
            await brokers.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve())


def test_the_open_files_limit_is_raised() -> None:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        raise_open_files_limit()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == hard or raised >= 10_240
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("port", "why"),
    [
        (80, r"not allowed to listen on 127\.0\.0\.1:80 \(ports below 1024 need privileges\)"),
        (
            9092,
            r"127\.0\.0\.1:9092 is in use or reserved by the system; "
            r"choose another --port, or 0 for any free one",
        ),
    ],
)
async def test_a_port_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch, port: int, why: str) -> None:
    """Windows keeps ranges of high ports for itself, and SELinux allows some programs only some."""

    class Refused(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(BindError, match=f"^{why}$"):
        await Listener("127.0.0.1", port, asyncio.Protocol).bind()


async def test_two_that_have_bound_one_port_find_out_when_they_accept() -> None:
    first = Listener("127.0.0.1", 0, asyncio.Protocol)
    second = Listener("127.0.0.1", await first.bind(), asyncio.Protocol, "port for --http")
    try:
        with pytest.raises(BindError, match="is in use; choose another port for --http"):  # noqa: PT012
            await second.bind()  # some systems refuse here already
            await first.accept()
            await second.accept()
    finally:
        await second.close()
        await first.close()
