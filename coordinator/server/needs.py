"""The rights that the requests of an API need: declared beside their handlers, and enforced where ACLs are in
force (`authorize`).

If the rights for the whole request are missing, all of it is refused; if those for an element of one of its
lists are, only that element is, and the API never sees it (unless all of them are needed). Nothing is looked
up before it is allowed, so that what a client may not see and what does not exist look alike. A topic id is
no secret, so an unknown one is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum, auto
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
"""Checks a whole request: its refusal, or None."""
CheckElement = Callable[[Asking, Any, Any], KafkaError | None]
"""Checks one element of a request: its refusal, or None."""


class Twice(Enum):
    """How a refused name that a request lists twice is answered: as in Apache Kafka, each API has its own
    way."""

    AGAIN = auto()
    """It is refused each time."""
    ONCE = auto()
    """It is refused once, with each of its partitions once."""
    TOGETHER = auto()
    """It is refused once, with all its partitions."""
    UNDECIDED = auto()
    """It is left to the handler, which refuses names that are listed twice, whoever asks."""


class Elements(NamedTuple):
    """A list of the request, and what each of its elements needs. A null list names everything: the handler
    leaves out what the client may not see."""

    attribute: str
    check: CheckElement
    name_of: Callable[[Any], object]
    """Equal for elements that name the same thing."""
    twice: Twice = Twice.AGAIN
    partitions: str = ""
    """The field of an element that lists its partitions."""
    all_or_none: bool = False
    """If an element is refused, the whole request is."""


class Needs(NamedTuple):
    """What the requests of an API need."""

    whole: tuple[Check, ...] = ()
    elements: Elements | None = None

    def refusal(self, asking: Asking, request: Any) -> KafkaError | None:
        """Why the whole request is refused, or None."""
        for check in self.whole:
            refused = check(asking, request)
            if refused is not None:
                return refused
        return None

    def listed(self, request: Any) -> list[Any]:
        """The elements that have needs of their own."""
        return [] if self.elements is None else getattr(request, self.elements.attribute) or []

    def dividing(self, asking: Asking, request: Any) -> Dividing:
        """Divides the request; call `add` with each of `listed`."""
        assert self.elements is not None
        return Dividing(self.elements, asking, request, self.listed(request))


class Dividing:
    """Divides a request into what is allowed and what is refused, element by element."""

    def __init__(self, elements: Elements, asking: Asking, request: Any, listed: Sequence[Any]) -> None:
        self._elements = elements
        self._asking = asking
        self._request = request
        self._allowed: list[Any] = []
        self._refused: dict[ErrorCode, tuple[KafkaError, list[Any]]] = {}
        self._places: dict[object, tuple[list[Any], int]] = {}
        """Where a name was refused, if it is refused only once."""
        self._several: set[object] = set()
        """Names that are listed twice, if they are left to the handler."""
        if elements.twice is Twice.UNDECIDED and len(listed) > 1:
            counts = Counter(map(elements.name_of, listed))
            self._several = {name for name, count in counts.items() if count > 1}

    def add(self, element: Any) -> KafkaError | None:
        """Check an element. Returns why the whole request is refused, if it is because of this one."""
        if self._several and self._elements.name_of(element) in self._several:
            self._allowed.append(element)
            return None
        error = self._elements.check(self._asking, self._request, element)
        if error is None:
            self._allowed.append(element)
            return None
        if self._elements.all_or_none:
            return error
        refused = self._refused.setdefault(error.code, (error, []))[1]
        if self._elements.twice in (Twice.ONCE, Twice.TOGETHER):
            name = self._elements.name_of(element)
            if name in self._places:
                self._add_partitions(*self._places[name], element)
                return None
            self._places[name] = refused, len(refused)
        refused.append(element)
        return None

    def _add_partitions(self, refused: list[Any], index: int, element: Any) -> None:
        """Add the partitions of an element whose name was refused before."""
        attribute = self._elements.partitions
        if not attribute:
            return
        first = refused[index]
        before, more = getattr(first, attribute), getattr(element, attribute)
        if self._elements.twice is Twice.ONCE:
            known = {_number(each) for each in before}
            more = [each for each in more if _number(each) not in known]
        together = copy(first)
        setattr(together, attribute, [*before, *more])
        refused[index] = together

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
        setattr(part, self._elements.attribute, elements)
        return part


def _number(partition: Any) -> int:
    return next(
        int(getattr(partition, name))
        for name in ("index", "partition", "partition_index")
        if hasattr(partition, name)
    )


class Division(NamedTuple):
    """A request, divided."""

    rest: Any
    """What is left of it; None if nothing is."""
    refused: list[tuple[KafkaError, Any]]
    """Each error, with the part of the request that it refuses."""


# --- of whole requests --------------------------------------------------------------------------------------


def cluster(operation: Operation) -> Check:
    """Requires the operation on the cluster."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        return None if asking.rights.may_with_cluster(operation) else denied(operation, ResourceType.CLUSTER)

    return check


def group(operation: Operation, field: str = "group_id") -> Check:
    """Requires the operation on the group that a field names."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        return group_refusal(asking, operation, getattr(request, field))

    return check


def transactional_id(operation: Operation) -> Check:
    """Requires the operation on the request's transactional id."""

    def check(asking: Asking, request: Any) -> KafkaError | None:
        return transactional_id_refusal(asking, operation, request.transactional_id)

    return check


def group_refusal(asking: Asking, operation: Operation, group_id: str) -> KafkaError | None:
    """The refusal, or None if it is allowed."""
    allowed = asking.rights.may(operation, ResourceType.GROUP, group_id)
    return None if allowed else denied(operation, ResourceType.GROUP)


def topic_refusal(asking: Asking, operation: Operation, name: str) -> KafkaError | None:
    """The refusal, or None if it is allowed."""
    allowed = asking.rights.may(operation, ResourceType.TOPIC, name)
    return None if allowed else denied(operation, ResourceType.TOPIC)


def transactional_id_refusal(
    asking: Asking, operation: Operation, transactional_id: str
) -> KafkaError | None:
    """The refusal, or None if it is allowed."""
    allowed = asking.rights.may(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return None if allowed else denied(operation, ResourceType.TRANSACTIONAL_ID)


# --- of elements --------------------------------------------------------------------------------------------

_NEVER: Final = 2**15


def topics(
    operation: Operation,
    attribute: str = "topics",
    named: str = "name",
    *,
    ids_from: int = _NEVER,
    or_cluster: Operation | None = None,
    twice: Twice = Twice.AGAIN,
    partitions: str = "",
) -> Elements:
    """Requires the operation on each topic, named by a field or, from version `ids_from` on, by its id; or
    instead the operation `or_cluster` on the cluster."""

    def name_of(element: Any) -> object:
        return getattr(element, named), getattr(element, "topic_id", None)

    def check(asking: Asking, request: Any, element: Any) -> KafkaError | None:
        name = getattr(element, named)
        if asking.context.api_version >= ids_from:
            topic = asking.broker.catalogue.by_id(element.topic_id)
            if topic is None:
                # A topic that becomes known by this id a moment later would not have been checked.
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic.name
        if or_cluster is not None and asking.rights.may_with_cluster(or_cluster, logged=False):
            return None
        return topic_refusal(asking, operation, name)

    return Elements(attribute, check, name_of, twice, partitions)


def groups(
    operation: Operation,
    attribute: str,
    name_of: Callable[[Any], str] = lambda element: str(element),
    *,
    twice: Twice = Twice.AGAIN,
) -> Elements:
    """Requires the operation on each group."""

    def check(asking: Asking, request: Any, element: Any) -> KafkaError | None:
        return group_refusal(asking, operation, name_of(element))

    return Elements(attribute, check, name_of, twice)


def every_topic(operation: Operation, attribute: str) -> Elements:
    """Requires the operation on every topic in a list of names, or refuses the whole request."""

    def check(asking: Asking, request: Any, name: str) -> KafkaError | None:
        return topic_refusal(asking, operation, name)

    return Elements(attribute, check, str, all_or_none=True)


# --- where more is to be said -------------------------------------------------------------------------------


def nothing(why: str) -> Needs:
    """Allowed for everyone; `why` is for the reader."""
    return Needs()


def decided_by_handler(why: str, *whole: Check, elements: Elements | None = None) -> Needs:
    """The handler checks the rest itself, with `Broker.rights`; `why` is for the reader."""
    return Needs(whole, elements)
