"""A cluster as its clients see it: its brokers, partition leaders and group coordinators. Each broker has one
connection per lane; requests that may wait long (Fetch, JoinGroup) have their own lane, so that they hold up
nothing else. Metadata is kept as a `MetadataImage`; what a failure calls into doubt is marked stale, and
refreshed before use. Concurrent refreshes of named topics share one request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

from muster.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    Unreachable,
    again,
    may_pass,
    refusal,
)
from muster.client.network.connection import Address, Connection, Request, Versioned, deadline, share_of
from muster.client.network.metadata import MetadataImage, Node, TopicImage
from muster.client.network.pool import ANY, TRYING, ConnectionSettings, Pool, Tries, backoff_s
from muster.client.partitions import TopicPartition
from muster.client.security.security import Security
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

__all__ = [
    "ANY",
    "METADATA_MAX_AGE_MS",
    "Cluster",
    "ConnectionSettings",
    "all_of",
    "backoff_s",
    "left_out",
    "parse_bootstrap",
]

T = TypeVar("T")

METADATA_MAX_AGE_MS: Final = 300_000
"""Kafka's metadata.max.age.ms."""

_PORT_MAX: Final = 65_535
_PROTOCOL: Final = re.compile(r"^[0-9A-Za-z\-%._]*://")
_TOPIC_NAME_MAX: Final = 249
_LAST_WORD_S: Final = 0.1
GROUP: Final = 0
"""The key type of group coordinators."""
TRANSACTION: Final = 1
"""The key type of transaction coordinators (KIP-98); their keys are transactional ids."""
_BATCHED_KEYS: Final = 4  # the first FindCoordinator version with several keys (KIP-699)

log = logging.getLogger(__name__)


class NamesNode(Protocol):
    """An endpoint in Produce and Fetch responses (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


def parse_bootstrap(servers: str | Iterable[str]) -> list[Address]:
    """`host:port[,host:port]`, or several of these; IPv6 addresses in brackets. As in Java, each may begin
    with a protocol (`PLAINTEXT://`), which has no effect. Raises ValueError, naming the invalid part."""
    text = servers if isinstance(servers, str) else ",".join(servers)
    addresses = []
    for part in text.split(","):
        host, colon, port = _PROTOCOL.sub("", part.strip()).rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise ValueError(f"{part.strip()!r} is no address; it takes host:port[,host:port]")
        addresses.append(Address(host, int(port)))
    return addresses


class _Refresh:
    """A Metadata request to be sent, for all its waiters."""

    __slots__ = ("answer", "topics", "tries", "until")

    def __init__(self, until: float, *, of_all: bool) -> None:
        self.topics: set[str] | None = None if of_all else set()
        self.tries: set[Tries] = set()
        self.until = until
        self.answer: asyncio.Future[MetadataResponse] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(_look_at)

    def join(self, topics: Iterable[str] | None, until: float) -> None:
        self.tries.update(TRYING.get())
        self.until = max(self.until, until)
        if self.topics is not None and topics is not None:
            self.topics |= set(topics)


class Cluster:
    """Connections to a cluster, opened as needed.

        async with Cluster(parse_bootstrap("127.0.0.1:9092")) as cluster:
            node, leader_epoch = await cluster.leadership(TopicPartition("orders", 0), deadline(30))

    Every method raises ClientError, or KafkaError if a broker refuses. `auto_create_topics`: brokers may
    create missing topics, if their settings allow it. `patient`: keep trying if no broker has ever answered;
    otherwise that is final (`is_final`). `request_timeout_ms` bounds a single request, whatever the deadline
    of its call. Metadata older than `metadata_max_age_ms` is refreshed in the background on use.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "muster",
        settings: ConnectionSettings | None = None,
        security: Security | None = None,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        auto_create_topics: bool = False,
        patient: bool = False,
        request_timeout_ms: int | None = None,
    ) -> None:
        self.client_id = client_id
        self.image = MetadataImage()
        """The current metadata; replaced as a whole, never changed."""
        self.answers = 0
        """How many of `call`'s requests brokers have answered."""
        self._pool = Pool(
            bootstrap,
            client_id,
            settings or ConnectionSettings(),
            request_timeout_s=(request_timeout_ms or 0) / 1000,
            security=security,
            patient=patient,
            on_wrong_broker=self._wrong_broker,
            find_nodes=self._find_nodes,
        )
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self.auto_create_topics = auto_create_topics
        self._patient = patient
        self._request_timeout_s = math.inf if request_timeout_ms is None else request_timeout_ms / 1000
        self._stale: set[str] = set()
        self._told_at: dict[str, float] = {}
        self._controller_known = False
        self._coordinators: dict[tuple[int, str], int] = {}
        self._pending: dict[bool, _Refresh] = {}
        """What is asked for next: named topics, and (True) all of them, whose answer names no missing one."""
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls in progress fail. Takes at most a second. Safe to call again."""
        self._closed = True
        refreshing = self._refreshing
        if refreshing is not None:
            refreshing.cancel()
        self._refuse_pending()  # The task does not, if it has not begun.
        await self._pool.close()
        if refreshing is not None:
            await asyncio.wait([refreshing])

    # --- requests -------------------------------------------------------------------------------------------

    async def call(
        self,
        request: Request,
        until: float,
        *,
        node: int = ANY,
        lane: str = "",
        last_version: int | None = None,
    ) -> Any:
        """The response of one broker, asked once. If any broker will do, it gets half the time, so that
        another can be tried if it hangs.

        Uses the newest version both sides support, up to `last_version` (default:
        `connection.LAST_VERSIONS`). If layouts differ between versions, `request` is a `Versioned`.
        """
        until = min(until, deadline(self._request_timeout_s))
        connection = await self._pool.connection(node, lane, until)
        try:
            response = await connection.call(
                request, share_of(until, 2) if node == ANY else until, last_version=last_version
            )
        except RequestTimedOut:
            self._pool.failed(connection.node_id, connection.address)
            raise
        self._pool.reached = True
        self.answers += 1
        return response

    async def call_controller(self, request: Request, until: float) -> Any:
        """The response of the controller, asked once. (Kafka's brokers forward to the controller what it
        decides.)"""
        if not self._controller_known or self.image.controller not in self.image.nodes:
            await self.refresh([], until)
        return await self.call(request, until, node=self.image.controller)

    async def call_all(self, request: Request, until: float) -> dict[int, Any]:
        """The response of every broker, by node id."""
        await self.refresh([], until)
        nodes = sorted(self.image.nodes)
        answers = await all_of(self.call(request, until, node=node) for node in nodes)
        return dict(zip(nodes, answers, strict=True))

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], until: float, *, repeatable: bool = True
    ) -> T:
        """The result of `attempt`, retried after retriable failures while there is time. Unless `repeatable`,
        a request that was sent but not answered is not resent, since it may have been applied. What any
        broker can answer is asked of another one each time.
        """
        tries = self.tries()
        while True:
            try:
                with tries:
                    return await attempt()
            except (ClientError, KafkaError) as error:
                if self.is_final(error):
                    raise
                if not repeatable and isinstance(error, (ConnectionLost, RequestTimedOut)):
                    raise ConnectionLost(f"{error}; it may have been applied anyway") from error
                failed = error
            self.forget()
            wait_s = tries.again()
            if deadline(wait_s) >= until:
                raise failed
            await asyncio.sleep(wait_s)

    def is_final(self, error: Exception) -> bool:
        """Whether retrying cannot help: a broker refused for good, the other side is not a broker, or, unless
        the client is patient, no bootstrap server has ever answered a request."""
        if isinstance(error, KafkaError):
            return not may_pass(error.code)
        if isinstance(error, Unreachable):
            return not (self._patient or self._pool.reached)
        if isinstance(error, ConnectionLost):
            return not self._patient and self._pool.is_hopeless
        return isinstance(error, (NotKafka, AuthenticationFailed, Closed))

    def tries(self) -> Tries:
        """For a caller that tries again what another broker may answer better."""
        return Tries(self._pool, self.backoff_s)

    def backoff_s(self, tries: int) -> float:
        """How long to wait before the next retry, from retry.backoff.ms and retry.backoff.max.ms."""
        return backoff_s(tries, self._retry_backoff_ms, self._retry_backoff_max_ms)

    # --- metadata and coordinators --------------------------------------------------------------------------

    def stale(self, *topics: str) -> None:
        """Mark these topics, or all if none are named, as stale: they are refreshed before use."""
        self._stale.update(topics or self.image.topics)

    def forget(self) -> None:
        """Mark everything as stale: the next use refreshes it."""
        self.stale()
        self._coordinators.clear()
        self._controller_known = False

    async def refresh(self, topics: Iterable[str] | None, until: float) -> MetadataResponse:
        """Refresh these topics (None: all, empty: only brokers) in the image. Callers that ask while a
        request is in flight share the next one, so the response may contain more topics than requested; only
        those that ask for all share one of their own, since it tells of no missing topic. A topic's error is
        only in the response; it is not raised."""
        wanted = None if topics is None else list(topics)
        for name in wanted or ():
            _check_name(name)
        pending = self._enqueue(wanted, until)
        # The refresh itself also gives up at `until`, and knows best why.
        await asyncio.wait([pending.answer], timeout=until - deadline(0) + _LAST_WORD_S)
        if not pending.answer.done():
            what = "the cluster" if not wanted else f"topic {', '.join(wanted[:5])}"
            raise RequestTimedOut(f"{self.named()} told nothing about {what} in time")
        error = pending.answer.exception()
        if isinstance(error, (ClientError, KafkaError)):
            raise again(error) from error.__cause__
        return pending.answer.result()

    async def metadata(
        self, topics: Iterable[str] | None, until: float, *, create: bool = False
    ) -> MetadataResponse:
        """The brokers and these topics (None: all, empty: none), from one broker and in a separate request.
        `create`: the broker may create missing topics, if its settings allow it."""
        names = None if topics is None else list(topics)
        asked = None if names is None else [MetadataRequest.Topic(name=name) for name in names]
        response: MetadataResponse = await self.call(
            MetadataRequest(topics=asked, allow_auto_topic_creation=create), until
        )
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            log.warning("a broker asks its clients to begin anew at the bootstrap servers")
            self._pool.drop_nodes()
            self.image = self.image.without_nodes()
            raise Unreachable("the cluster asked its clients to begin anew at the bootstrap servers")
        if response.error_code:
            raise refusal(response.error_code)
        self._update(self.image.updated(response, of_all_topics=names is None))
        self._controller_known = True
        now = deadline(0)
        for topic in response.topics:
            if topic.name is not None and not topic.error_code:
                self._told_at[topic.name] = now
        for gone in self._told_at.keys() - self.image.topics.keys():
            del self._told_at[gone]
        return response

    def new_leader(
        self,
        where: TopicPartition,
        leader: int,
        leader_epoch: int,
        endpoints: Iterable[NamesNode] = (),
    ) -> bool:
        """Take the new leader and endpoints from a Produce or Fetch response (KIP-951). Returns whether the
        leader was new."""
        image = self.image
        for each in endpoints:
            image = image.with_node(Node(each.node_id, each.host, each.port, each.rack or None))
        led = image.with_leader(where, leader, leader_epoch)
        if led is image:
            return False
        self._update(led)
        return True

    async def topic(self, name: str, until: float) -> TopicImage:
        """One topic, from the metadata or a refresh. Raises KafkaError if it does not exist."""
        if name in self._stale or name not in self.image.topics:
            response = await self.refresh([name], until)
            for told in response.topics:
                if told.error_code and told.name == name:
                    raise refusal(told.error_code, about=f"topic {name}")
            left_out({name} - self.image.topics.keys(), "Metadata")
        elif self._is_old(name):
            # As in Kafka's clients, old metadata is used until it is refreshed.
            self._told_at[name] = deadline(0)  # one request, even if it fails
            # Asking for topics that nobody uses might create deleted ones again.
            self._enqueue([name], deadline(self._metadata_max_age_s))
        return self.image.topics[name]

    async def leadership(self, where: TopicPartition, until: float) -> tuple[int, int]:
        """The partition's leader, and its epoch (-1: unknown). Raises KafkaError if the partition does not
        exist, or has no leader at the moment."""
        topic = self.image.topics.get(where.topic)
        if topic is None or where.topic in self._stale or self._is_old(where.topic):
            topic = await self.topic(where.topic, until)
        partition = topic.partitions.get(where.partition)
        if partition is None or partition.leader not in self.image.nodes:
            self.stale(where.topic)
            raise self.image.no_leader(where)
        return partition.leader, partition.leader_epoch

    async def coordinator(self, key: str, until: float, *, key_type: int = GROUP) -> int:
        """The coordinator of this group, or of another kind of key if `key_type` says so."""
        known = self._coordinators.get((key_type, key))
        if known is not None and known in self.image.nodes:
            return known
        found = (await self.coordinators([key], until, key_type=key_type))[key]
        if isinstance(found, KafkaError):
            raise found
        return found

    async def coordinators(
        self, keys: Iterable[str], until: float, *, key_type: int = GROUP
    ) -> dict[str, int | KafkaError]:
        """The coordinators of these groups, looked up again; in one request if the broker supports it
        (KIP-699)."""
        keys = list(dict.fromkeys(keys))
        told = await self._find_coordinators(keys, key_type, until)
        nodes: dict[str, int | KafkaError] = {}
        image = self.image
        for each in told:
            if each.error_code:
                nodes[each.key] = refusal(
                    each.error_code, each.error_message, about=f"coordinator of {each.key}"
                )
                continue
            known = image.nodes.get(each.node_id)
            image = image.with_node(Node(each.node_id, each.host, each.port, known.rack if known else None))
            nodes[each.key] = self._coordinators[key_type, each.key] = each.node_id
        left_out(set(keys) - nodes.keys(), "FindCoordinator")
        self._update(image)
        return nodes

    def forget_coordinator(self, key: str, *, key_type: int = GROUP) -> None:
        """Forget the coordinator: it does not respond, or says it is not the coordinator."""
        self._coordinators.pop((key_type, key), None)

    # --- connections ----------------------------------------------------------------------------------------

    def named(self, node: int = ANY) -> str:
        """The node's name in messages; for ANY, the bootstrap addresses."""
        return self._pool.named(node)

    def least_loaded(self, lane: str = "") -> int:
        """The node with the fewest requests in flight, preferring those that have not just failed; ANY while
        no node is known."""
        return self._pool.least_loaded(lane)

    async def connection(self, node: int, until: float, lane: str = "") -> Connection:
        """An open connection to the node, or to any broker."""
        return await self._pool.connection(node, lane, until)

    # --- refreshing -----------------------------------------------------------------------------------------

    def _is_old(self, topic: str) -> bool:
        return deadline(0) - self._told_at.get(topic, 0.0) > self._metadata_max_age_s

    def _enqueue(self, topics: Iterable[str] | None, until: float) -> _Refresh:
        """Join the next Metadata request of this kind."""
        if self._closed:
            raise Closed("the client is closed")
        of_all = topics is None
        pending = self._pending.get(of_all)
        if pending is None:
            pending = self._pending[of_all] = _Refresh(until, of_all=of_all)
        pending.join(topics, until)
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh_all(), name="metadata")
        return pending

    def _find_nodes(self, until: float) -> None:
        """Begin to ask for the nodes, unless Metadata is being asked for: it tells them as well."""
        if self._refreshing is None:
            self._enqueue([], until)

    async def _refresh_all(self) -> None:
        """Send refreshes until nobody waits for one."""
        try:
            while self._pending:
                await self._refresh_once(self._pending.pop(next(iter(self._pending))))
        finally:
            self._refreshing = None
            self._refuse_pending()

    def _refuse_pending(self) -> None:
        while self._pending:
            _, pending = self._pending.popitem()
            pending.answer.set_exception(Closed("the client is closed"))

    async def _refresh_once(self, pending: _Refresh) -> None:
        # Topics marked stale from here on may not be covered by this response.
        doubtful = set(self._stale if pending.topics is None else self._stale & pending.topics)
        self._stale -= doubtful
        topics = None if pending.topics is None else sorted(pending.topics)
        TRYING.set(tuple(pending.tries))
        try:
            response = await self.metadata(topics, pending.until, create=self.auto_create_topics)
        except Exception as error:
            self._stale |= doubtful
            pending.answer.set_exception(error)
        except BaseException:
            pending.answer.set_exception(Closed("the client was closed while it asked for metadata"))
            raise
        else:
            self._stale |= {
                topic.name for topic in response.topics if topic.error_code and topic.name in doubtful
            }
            pending.answer.set_result(response)

    async def _find_coordinators(
        self, keys: list[str], key_type: int, until: float
    ) -> list[FindCoordinatorResponse.Coordinator]:
        found: list[FindCoordinatorResponse.Coordinator] = []

        def build(version: int) -> FindCoordinatorRequest:
            if version >= _BATCHED_KEYS:
                return FindCoordinatorRequest(coordinator_keys=keys[len(found) :], key_type=key_type)
            return FindCoordinatorRequest(key=keys[len(found)], key_type=key_type)

        while len(found) < len(keys):
            told: FindCoordinatorResponse = await self.call(Versioned(ApiKey.FIND_COORDINATOR, build), until)
            if told.coordinators:
                return [*found, *told.coordinators]
            found.append(
                FindCoordinatorResponse.Coordinator(
                    key=keys[len(found)],
                    node_id=told.node_id,
                    host=told.host,
                    port=told.port,
                    error_code=told.error_code,
                    error_message=told.error_message,
                )
            )
        return found

    def _update(self, image: MetadataImage) -> None:
        self.image = image
        self._pool.learn(image.nodes, image.cluster_id)

    def _wrong_broker(self, node_id: int) -> None:
        self._update(self.image.without_nodes([node_id]))
        self.forget()


def _look_at(answer: asyncio.Future[Any]) -> None:
    """Keep asyncio from warning of a failure that nobody awaited."""
    if not answer.cancelled():
        answer.exception()


def _check_name(topic: object) -> None:
    """Refuse invalid topic names, which a request may be unable to carry: other callers that share the
    request would fail too."""
    if not isinstance(topic, str):
        raise TypeError(f"topic {topic!r}: a topic's name is a text, not {type(topic).__name__}")
    if not topic.isascii() or len(topic) > _TOPIC_NAME_MAX:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic[:50]!r}: a name takes up to {_TOPIC_NAME_MAX} letters, digits, dots, dashes and"
            " underscores",
        )


def left_out(names: Iterable[object], answer: str) -> None:
    """Raise NotKafka if a response leaves out something requested: no broker does that."""
    if missing := sorted(str(name) for name in names):
        raise NotKafka(f"the broker's answer to {answer} leaves out {', '.join(missing)}")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, run concurrently; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
