"""What the requests of an API need to be allowed: declared beside what answers them, and held to where ACLs
are in force (`authorize`).

What a whole request needs refuses all of it. What the elements of one of its lists need refuses those alone;
the API never sees them. Nothing is looked up before it is allowed, so that what a client may not see and what
is not there look alike. A topic id is no secret, so an unknown one says so.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final, NamedTuple

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.rights import Rights, denied
from muster.coordinator.server.serving import Broker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType


class Asking(NamedTuple):
    """Who asks whom."""

    rights: Rights
    broker: Broker
    context: RequestContext


Check = Callable[[Asking, Any], KafkaError | None]
"""Of a whole request: its refusal, or None."""
CheckElement = Callable[[Asking, Any, Any], KafkaError | None]
"""Of a request and one of its elements."""


class Elements(NamedTuple):
    """A list of the request, and what each of its elements needs. A null list names all that there is: those
    who answer it leave out what may not be seen."""

    attribute: str
    check: CheckElement


class Needs(NamedTuple):
    """What the requests of an API need."""

    whole: tuple[Check, ...] = ()
    elements: Elements | None = None

    def refusal(self, asking: Asking, request: Any) -> KafkaError | None:
        """Why the whole request is refused."""
        for check in self.whole:
            refused = check(asking, request)
            if refused is not None:
                return refused
        return None

    def listed(self, request: Any) -> list[Any]:
        """The elements that have needs of their own."""
        return [] if self.elements is None else getattr(request, self.elements.attribute) or []

    def dividing(self, asking: Asking, request: Any) -> Dividing:
        """To be told of each of `listed`."""
        assert self.elements is not None
        return Dividing(self.elements, asking, request)


class Dividing:
    """Takes a request apart, element by element."""

    def __init__(self, elements: Elements, asking: Asking, request: Any) -> None:
        self._attribute, self._check = elements
        self._asking = asking
        self._request = request
        self._allowed: list[Any] = []
        self._refused: dict[ErrorCode, tuple[KafkaError, list[Any]]] = {}

    def add(self, element: Any) -> None:
        """Decide about an element."""
        error = self._check(self._asking, self._request, element)
        if error is None:
            self._allowed.append(element)
        else:
            self._refused.setdefault(error.code, (error, []))[1].append(element)

    def division(self) -> Division | None:
        """The request without the elements that are refused; None if none is."""
        if not self._refused:
            return None
        return Division(
            self._with(self._allowed) if self._allowed else None,
            [(error, self._with(these)) for error, these in self._refused.values()],
        )

    def _with(self, elements: list[Any]) -> Any:
        part = copy(self._request)
        setattr(part, self._attribute, elements)
        return part


class Division(NamedTuple):
    """A request, divided."""

    rest: Any
    """What is left of it; None: nothing."""
    refused: list[tuple[KafkaError, Any]]
    """With what it names that each error refuses."""


# --- of whole requests --------------------------------------------------------------------------------------


def cluster(operation: Operation) -> Check:
    """The operation on the cluster."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        return None if asking.rights.may_with_cluster(operation) else denied(operation, ResourceType.CLUSTER)

    return check


def group(operation: Operation, field: str = "group_id") -> Check:
    """The operation on the group that a field names."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        return group_refusal(asking, operation, getattr(request, field))

    return check


def every_topic(operation: Operation, attribute: str) -> Check:
    """The operation on every topic of a list of names."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        for name in dict.fromkeys(getattr(request, attribute) or ()):
            refused = topic_refusal(asking, operation, name)
            if refused is not None:
                return refused
        return None

    return check


def group_refusal(asking: Asking, operation: Operation, group_id: str) -> KafkaError | None:
    """None where it is allowed."""
    allowed = asking.rights.may(operation, ResourceType.GROUP, group_id)
    return None if allowed else denied(operation, ResourceType.GROUP)


def topic_refusal(asking: Asking, operation: Operation, name: str) -> KafkaError | None:
    """None where it is allowed."""
    allowed = asking.rights.may(operation, ResourceType.TOPIC, name)
    return None if allowed else denied(operation, ResourceType.TOPIC)


# --- of elements --------------------------------------------------------------------------------------------

_NEVER: Final = 2**15


def topics(
    operation: Operation,
    attribute: str = "topics",
    named: str = "name",
    *,
    ids_from: int = _NEVER,
    or_cluster: Operation | None = None,
) -> Elements:
    """The operation on each topic, named by a field or, in versions `ids_from` on, by its id; or an operation
    on the cluster in place of it."""

    def check(asking: Asking, request: Any, element: Any) -> KafkaError | None:
        name = getattr(element, named)
        if asking.context.api_version >= ids_from:
            topic = asking.broker.catalogue.by_id(element.topic_id)
            if topic is None:
                # Whatever becomes known by this id a moment later has not been allowed.
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic.name
        if or_cluster is not None and asking.rights.may_with_cluster(or_cluster, logged=False):
            return None
        return topic_refusal(asking, operation, name)

    return Elements(attribute, check)


def groups(
    operation: Operation, attribute: str, name_of: Callable[[Any], str] = lambda element: str(element)
) -> Elements:
    """The operation on each group."""

    def check(asking: Asking, request: Any, element: Any) -> KafkaError | None:
        return group_refusal(asking, operation, name_of(element))

    return Elements(attribute, check)


# --- where more is to be said -------------------------------------------------------------------------------


def nothing(why: str) -> Needs:
    """Everyone may; `why` is for the reader."""
    return Needs()


def decided_by_handler(why: str, *whole: Check, elements: Elements | None = None) -> Needs:
    """What answers the request asks `Broker.rights` about the rest itself; `why` is for the reader."""
    return Needs(whole, elements)
