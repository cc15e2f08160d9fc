"""A cluster as its clients see it: which brokers there are, who leads a partition, who coordinates a group.

A broker is asked over one connection per lane; what may wait long (a Fetch, a JoinGroup) takes a lane of its
own, so that it holds up nothing else. What failed in a way that may pass is tried again with backoff until
the caller's deadline, and after every failure nothing that was learned about the cluster is trusted any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Self, TypeVar

from muster.client.connection import Address, Connection, deadline, share_of
from muster.client.errors import (
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    Unreachable,
    may_pass,
    refusal,
)
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
)

T = TypeVar("T")

RETRY_BACKOFF_S: Final = 0.1
RETRY_BACKOFF_MAX_S: Final = 1.0
"""Kafka's retry.backoff.ms and retry.backoff.max.ms."""

ANY: Final = -1
"""Whichever broker answers."""

_PORT_MAX: Final = 65_535


def parse_bootstrap(text: str) -> list[Address]:
    """`host:port[,host:port]`, IPv6 addresses in brackets. Raises ValueError, naming the part at fault."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise ValueError(f"{part.strip()!r} is no address; it takes host:port[,host:port]")
        addresses.append(Address(host, int(port)))
    return addresses


class Cluster:
    """Connections to a cluster, opened as they are needed.

        async with Cluster(parse_bootstrap("127.0.0.1:9092")) as cluster:
            metadata = await cluster.metadata(["orders"], deadline(30))

    Every method raises ClientError, or KafkaError for what a broker refuses.
    """

    def __init__(self, bootstrap: Sequence[Address], *, client_id: str = "muster") -> None:
        self.client_id = client_id
        self._bootstrap = list(bootstrap)
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Lock] = {}
        self._brokers: dict[int, Address] = {}
        self._controller = ANY
        self._topics: dict[str, MetadataResponse.Topic] = {}
        self._coordinators: dict[str, int] = {}
        self._reached = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        connections, self._connections = list(self._connections.values()), {}
        await all_of(connection.close() for connection in connections)

    # --- asking ---------------------------------------------------------------------------------------------

    async def call(self, request: Message, until: float, *, node: int = ANY, lane: str = "") -> Any:
        """The response of one broker, asked once. Where any will do it gets half of the time, so that another
        can be asked if it hangs."""
        connection = await self.connection(node, until, lane)
        return await connection.call(request, share_of(until, 2) if node == ANY else until)

    async def call_controller(self, request: Message, until: float) -> Any:
        """The response of the controller, asked once. (Kafka's brokers pass on to theirs what it decides.)"""
        if self._controller not in self._brokers:
            await self.metadata([], until)
        return await self.call(request, until, node=self._controller)

    async def call_all(self, request: Message, until: float) -> dict[int, Any]:
        """The response of every broker, by node id."""
        await self.metadata([], until)
        nodes = sorted(self._brokers)
        answers = await all_of(self.call(request, until, node=node) for node in nodes)
        return dict(zip(nodes, answers, strict=True))

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], until: float, *, repeatable: bool = True
    ) -> T:
        """What `attempt` returns, tried again while it fails in a way that may pass and there is time.

        Not `repeatable`: a request that was sent and not answered is not sent again, since it may have been
        carried out.
        """
        tries = 0
        while True:
            try:
                return await attempt()
            except (ClientError, KafkaError) as error:
                if self.is_final(error):
                    raise
                if not repeatable and isinstance(error, (ConnectionLost, RequestTimedOut)):
                    raise ConnectionLost(f"{error}; it may have been carried out all the same") from error
                failed = error
            self.forget()
            wait_s = backoff_s(tries)
            tries += 1
            if deadline(wait_s) >= until:
                raise failed
            await asyncio.sleep(wait_s)

    def is_final(self, error: Exception) -> bool:
        """Whether trying again cannot help: what a broker refuses for good, what is no broker, and a cluster
        of which nobody has answered so far."""
        if isinstance(error, KafkaError):
            return not may_pass(error.code)
        return isinstance(error, NotKafka) or (isinstance(error, Unreachable) and not self._reached)

    # --- who and where --------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Trust nothing learned so far: the next question asks again."""
        self._topics.clear()
        self._coordinators.clear()
        self._controller = ANY

    def address_of(self, node: int) -> Address | None:
        """Where the node listens, as far as is known."""
        return self._brokers.get(node)

    async def metadata(
        self, topics: Iterable[str] | None, until: float, *, create: bool = False
    ) -> MetadataResponse:
        """The brokers and these topics (None: all, empty: none), as one broker tells them. `create`: the
        broker may create what is missing, if its own settings let it."""
        asked = None if topics is None else [MetadataRequest.Topic(name=name) for name in topics]
        response: MetadataResponse = await self.call(
            MetadataRequest(topics=asked, allow_auto_topic_creation=create), until
        )
        if response.error_code:
            raise refusal(response.error_code)
        self._brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        self._controller = response.controller_id
        for topic in response.topics:
            if topic.name is not None and not topic.error_code:
                self._topics[topic.name] = topic
        return response

    async def topic(self, name: str, until: float) -> MetadataResponse.Topic:
        """One topic, from what is known or asked for. Raises KafkaError when there is none of that name."""
        if name not in self._topics:
            response = await self.metadata([name], until)
            for topic in response.topics:
                if topic.error_code:
                    raise refusal(topic.error_code, about=f"topic {name}")
            left_out({name} - self._topics.keys(), "Metadata")
        return self._topics[name]

    async def leader(self, where: TopicPartition, until: float) -> int:
        """The node that leads the partition. Raises KafkaError when there is no such partition, or no leader
        at the moment."""
        topic = await self.topic(where.topic, until)
        for partition in topic.partitions:
            if partition.partition_index == where.partition:
                if partition.leader_id not in self._brokers:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no leader at the moment")
                leader: int = partition.leader_id
                return leader
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {where.topic} has no partition {where.partition}; it has {len(topic.partitions)}",
        )

    async def by_leader(
        self, wanted: Iterable[TopicPartition], until: float
    ) -> dict[int, list[TopicPartition]]:
        """The partitions, under the nodes that lead them."""
        led: dict[int, list[TopicPartition]] = {}
        for where in wanted:
            led.setdefault(await self.leader(where, until), []).append(where)
        return led

    async def coordinator(self, group_id: str, until: float) -> int:
        """The node that coordinates the group."""
        if group_id not in self._coordinators:
            found = await self.call(FindCoordinatorRequest(key=group_id), until)
            if found.error_code:
                raise refusal(found.error_code, found.error_message, about=f"coordinator of {group_id}")
            self._brokers[found.node_id] = Address(found.host, found.port)
            self._coordinators[group_id] = found.node_id
        return self._coordinators[group_id]

    # --- connections ----------------------------------------------------------------------------------------

    async def connection(self, node: int, until: float, lane: str = "") -> Connection:
        """An open connection to the node, or to whichever broker answers."""
        if node == ANY:
            for (_, of_lane), connection in self._connections.items():
                if connection.is_open and of_lane == lane:
                    return connection
        key = (node, lane)
        opening = self._opening.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):  # whoever is opening it may have more time
                await opening.acquire()
        except TimeoutError:
            raise Unreachable(f"{self._named(node)} does not let us connect: no answer in time") from None
        try:
            connection_there = self._connections.get(key)
            if connection_there is not None and connection_there.is_open:
                return connection_there
            if connection_there is not None:
                await connection_there.close()
            connection = await self._open(node, until)
            self._connections[key] = connection
            return connection
        finally:
            opening.release()

    def _named(self, node: int) -> str:
        return "the cluster" if node == ANY else str(self._brokers.get(node, f"broker {node}"))

    async def _open(self, node: int, until: float) -> Connection:
        if node == ANY:
            return await self._open_any(until)
        address = self._brokers.get(node)
        if address is None:
            raise Unreachable(f"broker {node} is not in the cluster at the moment")
        return await Connection.open(address, self.client_id, until)

    async def _open_any(self, until: float) -> Connection:
        """A connection to the first that answers: of the brokers known, then of those given. Each gets its
        share of the time that is left, so that one that hangs does not use it up."""
        addresses = list(dict.fromkeys([*self._brokers.values(), *self._bootstrap]))
        failures: list[ClientError] = []
        for index, address in enumerate(addresses):
            share = share_of(until, len(addresses) - index)
            try:
                connection = await Connection.open(address, self.client_id, share)
            except ClientError as error:
                failures.append(error)
            else:
                self._reached = True
                return connection
        kind = NotKafka if all(isinstance(each, NotKafka) for each in failures) else Unreachable
        raise kind("; ".join(str(each) for each in failures)) from failures[0]


def left_out(names: Iterable[object], answer: str) -> None:
    """Raise NotKafka when an answer does not speak of all that was asked: no broker's answer does that, and
    what is not there cannot be acted upon."""
    if missing := sorted(str(name) for name in names):
        raise NotKafka(f"the broker's answer to {answer} leaves out {', '.join(missing)}")


def backoff_s(tries: int) -> float:
    """How long to wait before the next try, as Kafka's clients do: doubling, with a fifth more or less."""
    return min(RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S * 2.0 ** min(tries, 10)) * random.uniform(0.8, 1.2)


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, run side by side; the first failure ends the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
