"""One step of a coordinator's state machine: its input and its output.

A machine is synchronous and pure. Its host creates a `Step` with the time and, for a request, its context;
the machine fills in what is to happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

Ticket = int
"""A request in flight. The host knows whose request a ticket is; the machine answers each exactly once."""
Row = tuple[bytes, bytes | None]
"""An encoded change of durable state: an upsert of a key, or its deletion if the value is None."""

NO_TICKET: Final[Ticket] = 0

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of unauthenticated clients."""


class BrokenInvariant(Exception):
    """A machine reached an impossible state: a bug. The shard stops and is loaded again (promise 6)."""


class Reply(NamedTuple):
    """The answer to a ticket: the API's response (or its part for one group), or a KafkaError, which the
    server turns into an error response."""

    ticket: Ticket
    response: Any


class RequestContext(NamedTuple):
    """Who sent a request."""

    api_version: int
    client_id: str
    client_host: str
    """As Java prints an address: "/127.0.0.1". It is stored and described in this form."""
    connection_id: int
    listener: str = ""
    """Name of the listener that the client connected to; empty if there is only one."""
    principal: str = ANONYMOUS
    """Who the client has authenticated as, such as `User:alice`."""


NOBODY: Final = RequestContext(0, "", "", 0)
"""The context of a step that no request caused."""


class Step:
    """The input and output of one step. The host makes `rows` durable, then releases the rest, in step
    order."""

    __slots__ = (
        "context",
        "events",
        "full",
        "jobs",
        "now_ms",
        "reads_hard_state",
        "replies",
        "rows",
        "ticket",
    )

    def __init__(self, now_ms: int, context: RequestContext = NOBODY, ticket: Ticket = NO_TICKET) -> None:
        """`now_ms` (epoch milliseconds) never goes back from one step to the next."""
        self.now_ms = now_ms
        self.context = context
        self.ticket = ticket
        self.rows: list[Row] = []
        self.replies: list[Reply] = []
        self.events: list[Any] = []
        """What happened, in the machine's own terms: its host only passes them on."""
        self.jobs: list[Callable[[], Any]] = []
        """Work that takes too long for a step. The host does it beside its loop; the result is a step of its
        own (`Machine.job_done`)."""
        self.full: Exception | None = None
        """The refusal while the store is full, for operations that allow for it (`Traits.allows_for_full`):
        they raise it instead of writing anything."""
        self.reads_hard_state = False
        """The replies report durable state: release them only when every earlier row of the shard is
        durable."""

    def __repr__(self) -> str:
        return (
            f"<Step at {self.now_ms} ticket={self.ticket} rows={len(self.rows)} replies={len(self.replies)} "
            f"events={len(self.events)}>"
        )

    def reply(self, response: object) -> None:
        """Answer the request that this step is for."""
        self.replies.append(Reply(self.ticket, response))

    def answer(self, ticket: Ticket, response: object) -> None:
        """Answer a request parked by an earlier step."""
        self.replies.append(Reply(ticket, response))
