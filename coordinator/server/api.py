"""The declaration of an API for the server. Each is in `apis/`, beside the handler of its requests.

`begin(broker, request, context, answered)` begins a request. It returns the answer: a response, None where
the protocol has none, or an exception; or LATER if `answered` was or will be called with it, once; or IN_LINE
if it will be, and the connection's next request may begin meanwhile if it is of the same API. It may modify
the request. A coroutine `handle(broker, request, context)` is turned into a `begin` here.

A KafkaError becomes the API's refusal; any other exception is logged and becomes UNKNOWN_SERVER_ERROR
(KAFKA_STORAGE_ERROR if it came from the store); CloseConnection closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.names import Names
from muster.coordinator.server.needs import Needs
from muster.coordinator.server.refusal import Refusal
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.spent import Timed, counting
from muster.protocol.api import ApiKey, request_class, response_class, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message

Begin = Callable[[Broker, Any, RequestContext, Answered], object]
Handle = Callable[[Broker, Any, RequestContext], Coroutine[Any, Any, Message | None]]

LISTING_BYTES_MAX: Final = 4 * 1024 * 1024
"""For requests with names, partitions, offsets: some hundred thousand partitions, or twenty thousand names of
full length. Kafka takes `socket.request.max.bytes`, 100 MiB, for every API: a thousand times what any client
sends for most, and few bytes can cause much work. What a request lists is bounded by `request.elements.max`,
which the decoder enforces."""


_NOTHING: Final = Names()
_WHOLE: Final = Refusal()


class Parts(NamedTuple):
    """Error codes that Kafka sets on parts of a response that also has a code for the whole."""

    codes: Callable[[ErrorCode], bool]
    refusal: Refusal
    version: int | None = None
    """The version whose shape the refusal has, where newer ones have a code for the whole."""
    since: int = 0


class Repeated(NamedTuple):
    """The bytes at the end of a request that differ when it is repeated; all others, except for the
    correlation id, are the same."""

    size: int = 0
    behind: int = 0
    """Bytes that follow them."""
    update: Callable[[bytes, int], None] | None = None
    """Reads them from a repetition, at an offset, into the decoded request."""


Repeats = Callable[[Any, int, bytes], Repeated | None]
"""Called with a request, its version and the bytes of its message; None if it is not worth remembering."""


Complete = Callable[[Broker, Any, RequestContext], KafkaError | None]
"""Completes a request: why it is refused, or None."""


class Api:
    """One API that is served, or advertised only to be refused."""

    __slots__ = (
        "about_the_cluster",
        "begin",
        "closing",
        "complete",
        "instant",
        "key",
        "name",
        "names",
        "needs",
        "paced",
        "parts",
        "pieces",
        "reads",
        "refuse",
        "repeats",
        "size_max",
    )

    def __init__(
        self,
        key: ApiKey,
        begin: Begin | Handle,
        *,
        needs: Needs,
        names: Names = _NOTHING,
        refuse: Refusal = _WHOLE,
        parts: Parts | None = None,
        size_max: int | None = LISTING_BYTES_MAX,
        reads: bool = False,
        instant: bool = False,
        about_the_cluster: bool = False,
        pieces: bool = False,
        closing: bool = False,
        complete: Complete | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        """`needs`: the rights that its requests need. `names`: what they name. `refuse`: the shape of a
        refusal, `parts` that for codes of parts of it. `size_max`: maximum bytes of a request (None: only
        socket.request.max.bytes applies).

        `reads`: it only reads and may take long, so it is dropped with its connection. `instant`: its
        requests take no time, and need not wait for a turn. `about_the_cluster`: a broker that has lost
        contact with the cluster closes the connection, so that clients ask another one. `pieces`: its
        responses are large, and sent in pieces. `closing`: a client may close right after it, without waiting
        for the answer. `complete`: fills in what a client leaves out because this broker knows it. `repeats`:
        how a connection's next requests may repeat one.
        """
        self.key = key
        self.name = request_class(key).__name__.removesuffix("Request")
        self.needs = needs
        self.names = names
        self.refuse = refuse
        self.parts = parts
        self.size_max = size_max
        self.reads = reads
        self.instant = instant
        self.about_the_cluster = about_the_cluster
        self.pieces = pieces
        self.closing = closing
        self.complete = complete
        self.repeats = repeats
        self.paced = not instant
        """Whether the number begun in a turn of the loop is limited. A task has a turn of its own."""
        if iscoroutinefunction(begin):
            self.paced = False
            begin = awaited(begin, self.name)
        self.begin: Begin = begin  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Api {self.name} {versions(self.key)}>"

    def refusal(self, request: Any, version: int, error: KafkaError) -> Message:
        """The response that refuses a whole request."""
        return self.refuse.of(response_class(self.key), request, version, error)

    def concerns_parts(self, code: ErrorCode, version: int) -> bool:
        """Whether the code is set on parts of the response: few are, if it has a code for the whole."""
        return self.parts is None or (version >= self.parts.since and self.parts.codes(code))

    def partial_refusal(self, request: Any, version: int, error: KafkaError) -> Message:
        """The response that refuses what a request names, and reports success for the whole."""
        parts = self.parts
        if parts is None:
            return self.refusal(request, version, error)
        if parts.version is not None:
            version = min(version, parts.version)
        refusal = parts.refusal._replace(fields={**parts.refusal.fields, "error_code": ErrorCode.NONE})
        return refusal.of(response_class(self.key), request, version, error)


def awaited(handle: Handle, name: str) -> Begin:
    """A `begin` that answers with a coroutine. It returns the task instead of LATER: cancelling it drops the
    request."""

    async def run(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> None:
        outcome: object
        try:
            outcome = await handle(broker, request, context)
        except Exception as error:
            outcome = error
        answered(outcome)

    def begin(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
        loop = asyncio.get_running_loop()
        coroutine: Coroutine[Any, Any, None] = run(broker, request, context, answered)
        if (spent := counting.get()) is not None:
            coroutine = Timed(coroutine, spent)
        return loop.create_task(coroutine, name=name)

    return begin
