"""Calls about several names, with an outcome for each. Names with retriable failures are retried until the
deadline; settled ones are not. A request that changes something is not resent if its response was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from muster.client.errors import ClientError, ConnectionLost, RequestTimedOut, Unreachable, may_pass, refusal
from muster.client.network.cluster import ANY, GROUP, Cluster, all_of, left_out
from muster.client.network.connection import deadline
from muster.client.network.metadata import no_partition
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataResponse
from muster.settings import INT32_MAX

_PERHAPS_DONE: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})
"""With these, the request may have been applied anyway."""

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", int, str)
V = TypeVar("V")


class Outcomes(dict[K, V | KafkaError], Generic[K, V]):
    """By name, in the order requested: the result (None if the call has none), or a KafkaError. For a broker
    that does not respond although others do, it is BROKER_NOT_AVAILABLE, NETWORK_EXCEPTION or
    REQUEST_TIMED_OUT."""

    @property
    def succeeded(self) -> dict[K, V]:
        """The results of the names that succeeded."""
        return {name: outcome for name, outcome in self.items() if not isinstance(outcome, KafkaError)}

    @property
    def failed(self) -> dict[K, KafkaError]:
        """The failures of the other names."""
        return {name: outcome for name, outcome in self.items() if isinstance(outcome, KafkaError)}

    def raise_for_failures(self) -> dict[K, V]:
        """All results. Raises the first failure, if any."""
        for failure in self.failed.values():
            raise failure
        return self.succeeded


async def settle(
    cluster: Cluster,
    names: Iterable[K],
    ask: Callable[[list[K]], Awaitable[Mapping[K, V | KafkaError]]],
    until: float,
    *,
    api: str,
    repeatable: bool = True,
) -> Outcomes[K, V]:
    """The outcome of each name. `ask` is called with the names not settled yet; `api` names the request in
    the error for a response that leaves some out. Raises ClientError, or the KafkaError that refused the
    whole request, if no name is settled.
    """
    wanted = list(dict.fromkeys(names))
    outcomes: dict[K, V | KafkaError] = {}

    def unsettled() -> list[K]:
        return [name for name in wanted if name not in outcomes or _passing(outcomes[name], repeatable)]

    async def attempt() -> None:
        asked = unsettled()
        answers = await ask(asked)
        left_out(set(asked) - answers.keys(), api)
        outcomes.update((name, answers[name]) for name in asked)
        for name in asked:
            if (failure := _passing(answers[name], repeatable)) is not None:
                raise _Again(str(failure))

    if wanted:
        try:
            await cluster.retrying(attempt, until, repeatable=repeatable)
        except _Again:
            pass
        except (ClientError, KafkaError) as error:
            rest = unsettled()
            if len(rest) == len(wanted):
                raise
            outcomes |= dict.fromkeys(rest, failure_of(error))
    return Outcomes({name: outcomes[name] for name in wanted})


class _Again(ClientError):
    """Some names had retriable failures; never escapes `settle`."""


def _passing(outcome: object, repeatable: bool) -> KafkaError | None:
    """The failure, if it may be retried."""
    if not isinstance(outcome, KafkaError):
        return None
    passing = may_pass(outcome.code) or outcome.code == ErrorCode.BROKER_NOT_AVAILABLE
    return outcome if passing and (repeatable or outcome.code not in _PERHAPS_DONE) else None


async def together(
    parts: Iterable[tuple[Sequence[K], Coroutine[Any, Any, Mapping[K, V | KafkaError]]]],
    *,
    repeatable: bool = True,
) -> Outcomes[K, V]:
    """The outcomes of several concurrent requests, each with its names. If a request fails as a whole, its
    failure is the outcome of all its names; if all requests do, the worst failure is raised."""

    async def part(
        asking: Coroutine[Any, Any, Mapping[K, V | KafkaError]],
    ) -> Mapping[K, V | KafkaError] | KafkaError | ClientError:
        try:
            return await asking
        except (KafkaError, ClientError) as error:
            return error

    named = list(parts)
    try:
        answers = await all_of(part(asking) for _, asking in named)
    finally:
        for _, asking in named:
            asking.close()  # one may not have started when all of this is cancelled
    failures = [answer for answer in answers if isinstance(answer, (KafkaError, ClientError))]
    if failures and len(failures) == len(answers):
        # If something may have been applied, it must not look as if nothing was sent.
        raise next((each for each in failures if not isinstance(each, Unreachable)), failures[0])
    outcomes: Outcomes[K, V] = Outcomes()
    for (names, _), answer in zip(named, answers, strict=True):
        if isinstance(answer, (KafkaError, ClientError)):
            outcomes |= dict.fromkeys(names, failure_of(answer, repeatable=repeatable))
        else:
            outcomes |= answer
    return outcomes


def failure_of(error: KafkaError | ClientError, *, repeatable: bool = True) -> KafkaError:
    """The failure of one name among several: the error itself or, if its broker did not respond,
    NETWORK_EXCEPTION or REQUEST_TIMED_OUT, as in Kafka's clients, or BROKER_NOT_AVAILABLE if nothing was
    sent. `repeatable` is False for the answer to a single request that was not to be sent again."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, Unreachable):
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error))
    timed_out = isinstance(error, RequestTimedOut)
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT if timed_out else ErrorCode.NETWORK_EXCEPTION,
        str(error) if repeatable else f"{error}; it may have been applied anyway",
    )


# --- which node is asked ------------------------------------------------------------------------------------


async def of_nodes(
    cluster: Cluster,
    names: Iterable[K],
    find: Callable[[list[K]], Awaitable[Mapping[K, int | KafkaError]]],
    ask: Callable[[int, list[K]], Coroutine[Any, Any, Mapping[K, V | KafkaError]]],
    until: float,
    *,
    api: str,
    repeatable: bool = True,
) -> Outcomes[K, V]:
    """The outcome of each name, requested from the node that `find` returns; one request per node."""

    async def found_out(outcomes: dict[K, V | KafkaError]) -> dict[K, V | KafkaError]:
        return outcomes

    async def round(wanted: list[K]) -> Outcomes[K, V]:
        outcomes: dict[K, V | KafkaError] = {}
        nodes: dict[int, list[K]] = {}
        try:
            found = await cluster.retrying(lambda: find(wanted), until)
        except (ConnectionLost, RequestTimedOut) as error:
            raise Unreachable(str(error)) from error  # nothing of the request was sent
        for name, node in found.items():
            if isinstance(node, KafkaError):
                outcomes[name] = node
            else:
                nodes.setdefault(node, []).append(name)
        parts = [(there, ask(node, there)) for node, there in nodes.items()]
        if outcomes:
            parts.append((list(outcomes), found_out(outcomes)))
        return await together(parts, repeatable=repeatable)

    return await settle(cluster, names, round, until, api=api, repeatable=repeatable)


async def present(cluster: Cluster, nodes: Iterable[N], until: float) -> dict[N, int | KafkaError]:
    """For requests that only one node can answer: each node's id, or a KafkaError if it is not in the
    cluster."""
    there = {str(each.node_id): each.node_id for each in (await cluster.metadata([], until)).brokers}
    absent = ErrorCode.BROKER_ID_NOT_REGISTERED
    return {
        node: there.get(str(node), KafkaError(absent, f"broker {node} is not in the cluster"))
        for node in nodes
    }


async def of_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Coroutine[Any, Any, Mapping[TopicPartition, V | KafkaError]]],
    until: float,
    *,
    api: str,
    repeatable: bool = True,
) -> Outcomes[TopicPartition, V]:
    """The outcome of each partition, requested from its leader; if `repeatable`, also again after a lost
    response. A partition that does not exist gets KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""

    async def find(wanted: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        return _leaders(await cluster.metadata(sorted({each.topic for each in wanted}), until), wanted)

    return await of_nodes(cluster, partitions, find, ask, until, api=api, repeatable=repeatable)


def _leaders(
    told: MetadataResponse, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, int | KafkaError]:
    topics = {topic.name: topic for topic in told.topics}
    left_out({each.topic for each in wanted} - topics.keys(), "Metadata")
    nodes = {broker.node_id for broker in told.brokers}
    leader_ids = {
        topic.name: {each.partition_index: each.leader_id for each in topic.partitions}
        for topic in told.topics
    }
    leaders: dict[TopicPartition, int | KafkaError] = {}
    for where in wanted:
        topic, found = topics[where.topic], leader_ids[where.topic]
        if topic.error_code:
            leaders[where] = refusal(topic.error_code, about=f"topic {where.topic}")
        elif where.partition not in found:
            leaders[where] = no_partition(where, len(found))
        elif found[where.partition] not in nodes:
            leaders[where] = refusal(ErrorCode.LEADER_NOT_AVAILABLE, about=str(where))
        else:
            leaders[where] = found[where.partition]
    return leaders


async def controller(cluster: Cluster, until: float) -> int:
    """The node to send changes to. (Kafka's brokers forward what their controller decides.)"""
    told = await cluster.metadata([], until)
    return told.controller_id if told.controller_id in {each.node_id for each in told.brokers} else ANY


async def of_controller(
    cluster: Cluster,
    names: Iterable[K],
    ask: Callable[[int, list[K]], Coroutine[Any, Any, Mapping[K, V | KafkaError]]],
    until: float,
    *,
    api: str,
) -> Outcomes[K, V]:
    """The outcome of each change; a change is not resent if its response is lost."""

    async def find(wanted: list[K]) -> dict[K, int | KafkaError]:
        return dict.fromkeys(wanted, await controller(cluster, until))

    return await of_nodes(cluster, names, find, ask, until, api=api, repeatable=False)


async def of_coordinators(
    cluster: Cluster,
    keys: Iterable[str],
    ask: Callable[[int, list[str]], Coroutine[Any, Any, Mapping[str, V | KafkaError]]],
    until: float,
    *,
    api: str,
    key_type: int = GROUP,
    repeatable: bool = True,
) -> Outcomes[str, V]:
    """The outcome of each group (or other key, by `key_type`), requested from its coordinator."""

    async def find(wanted: list[str]) -> dict[str, int | KafkaError]:
        return await cluster.coordinators(wanted, until, key_type=key_type)

    return await of_nodes(cluster, keys, find, ask, until, api=api, repeatable=repeatable)


async def of_coordinator(
    cluster: Cluster,
    group_id: str,
    names: Iterable[K],
    ask: Callable[[int, list[K]], Coroutine[Any, Any, Mapping[K, V | KafkaError]]],
    until: float,
    *,
    api: str,
    repeatable: bool = True,
) -> Outcomes[K, V]:
    """The outcome of each name within one group, requested from its coordinator."""

    async def find(wanted: list[K]) -> dict[K, int | KafkaError]:
        return dict.fromkeys(wanted, await cluster.coordinator(group_id, until))

    return await of_nodes(cluster, names, find, ask, until, api=api, repeatable=repeatable)


def refused(code: int, why: str | None = None, *, about: str = "") -> KafkaError | None:
    """The outcome for an error code; None for no error."""
    return refusal(code, why, about=about) if code else None


def left_ms(until: float) -> int:
    """Milliseconds left until the deadline, which may be infinitely far, as many as a request can carry."""
    return int(min(max(1.0, (until - deadline(0)) * 1000), INT32_MAX))
