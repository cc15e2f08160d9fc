"""Stands between the connections of one broker and its router while there are rules with a turn left, and
carries their faults out.

Without any the connections ask the router itself, so faults cost nothing then. With some, requests of the
APIs that they concern are left to the plain way, where a request can be held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.journal.entries import Member
from muster.coordinator.runtime.shard_host import Later
from muster.coordinator.server import request_names
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.fault_answers import carries, refused
from muster.coordinator.server.faults import About, Fault, Faults, Firing, Kind, Rule, api_name
from muster.coordinator.server.router import Router, framed
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.header import RequestHeader
from muster.protocol.message import Message

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

_log: Final = Logger(part="faults")


class FaultGate:
    """Of one broker. `close` before its connections are ended."""

    def __init__(self, faults: Faults, broker: Broker, router: Router) -> None:
        self._faults = faults
        self._broker = broker
        self._router = router
        self._fast = broker.connections.answer_at_once
        self._standing = False
        self._held: dict[asyncio.Future[None], Fault] = {}
        """Requests that are delayed, and by what."""
        self._silent: set[asyncio.Future[None]] = set()
        """Connections whose responses were dropped."""
        faults.attach(self._changed)
        self._changed()

    def close(self) -> None:
        """Stand aside for good: what is delayed goes on, connections that are kept silent are closed."""
        self._faults.detach(self._changed)
        self._stand(False)
        for waiting in (*self._held, *self._silent):
            _set(waiting)

    def _changed(self) -> None:
        self._stand(self._faults.active)
        for waiting, fault in self._held.items():
            if not self._faults.in_force(fault):
                _set(waiting)

    def _stand(self, here: bool) -> None:
        if here == self._standing:
            return
        self._standing = here
        connections = self._broker.connections
        if here:
            self._fast = connections.answer_at_once
            connections.answer = self.answer
            connections.answer_at_once = None if self._fast is None else self.answer_at_once
        else:
            connections.answer = self._router.answer
            connections.answer_at_once = self._fast

    # --- requests -------------------------------------------------------------------------------------------

    def answer_at_once(self, connection: Connection, frame: bytes) -> bytes | Later | None:
        """Leaves what rules may match to `answer`."""
        if self._faults.concern((frame[0] << 8) | frame[1]):
            return None
        return None if self._fast is None else self._fast(connection, frame)

    async def answer(self, connection: Connection, frame: bytes) -> bytes | None:
        """As Router.answer, with the faults that the request meets."""
        read = self._router.read(connection, frame)
        if isinstance(read, bytes):
            return read
        header, request = read
        about = About(
            self._broker.node_id,
            ApiKey(header.api_key),
            header.api_version,
            header.client_id or "",
            request,
            self._topic_name,
        )
        met = self._faults.meet(about, partial(_applies, about))
        if met:
            return await self._with(met, about, connection, header)
        return await self._applied(connection, header, request)

    async def _with(
        self, met: Sequence[Fault], about: About, connection: Connection, header: RequestHeader
    ) -> bytes | None:
        for fault in met:
            match fault.action.kind:
                case Kind.DELAY:
                    self._fired(fault, about, connection)
                    await self._delay(fault)
                case Kind.CLOSE_BEFORE:
                    self._fired(fault, about, connection)
                    connection.end()
                    return None
                case Kind.ERROR:
                    return await self._refused(fault, about, connection, header)
                case _:
                    response = await self._applied(connection, header, about.request)
                    self._fired(fault, about, connection)
                    return await self._spoiled(fault, connection, response)
        return await self._applied(connection, header, about.request)

    async def _applied(self, connection: Connection, header: RequestHeader, request: Message) -> bytes | None:
        answer = await self._router.handle(connection, header, request)
        return None if answer is None else framed(request, header, answer)

    async def _refused(
        self, fault: Fault, about: About, connection: Connection, header: RequestHeader
    ) -> bytes:
        code = ErrorCode(fault.action.amount)  # type: ignore[call-arg]
        handle = partial(self._router.handle, connection, header)
        try:
            answer, version = await refused(about, fault.rule, f"fault {fault.id}: {code.text}", handle)
        finally:
            self._fired(fault, about, connection)
        return framed(about.request, header._replace(api_version=version), answer)

    async def _spoiled(self, fault: Fault, connection: Connection, response: bytes | None) -> bytes | None:
        """What becomes of the response to a request that was applied."""
        match fault.action.kind:
            case Kind.CLOSE_AFTER:
                connection.end()
                return None
            case Kind.TRUNCATE:
                connection.end()
                return None if response is None else response[: fault.action.amount]
        if response is None:
            return None  # none is expected, so none can be missed
        # Kafka answers a connection's requests in order, and a client takes the next response it sees for the
        # one that is missing. So nothing more comes on this connection, as from a network that swallows it.
        connection.abandonable(True)
        await self._silence()
        connection.end()
        return None

    # --- waiting --------------------------------------------------------------------------------------------

    async def _delay(self, fault: Fault) -> None:
        waiting = _until(self._broker.clock, fault.action.amount)
        self._held[waiting] = fault
        try:
            await waiting
        finally:
            del self._held[waiting]

    async def _silence(self) -> None:
        """Until the connection is lost, which cancels, but not for longer than one may be idle."""
        waiting = _until(self._broker.real_clock, self._broker.settings.connections_max_idle_ms)
        self._silent.add(waiting)
        try:
            await waiting
        finally:
            self._silent.discard(waiting)

    # --- what is told ---------------------------------------------------------------------------------------

    def _fired(self, fault: Fault, about: About, connection: Connection) -> None:
        groups = request_names.groups(about.api_key, about.request)
        members = request_names.members(about.api_key, about.request)
        firing = Firing(
            rule=fault.id,
            at_ms=self._broker.clock.now_ms(),
            broker=about.broker,
            api=api_name(about.api_key),
            version=about.version,
            group=groups[0] if groups else None,
            member=members[0] if members else None,
            client_id=about.client_id,
            action=str(fault.action),
        )
        self._faults.carried_out(fault, firing)
        _log.info("fault", **firing.to_json())
        self._broker.note(
            "fault_fired",
            {"rule": fault.id, "api": firing.api, "action": firing.action},
            group_id=firing.group,
            member=Member(firing.member or "", about.client_id, connection.client_host.lstrip("/")),
        )

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._broker.catalogue.by_id(topic_id)
        return None if topic is None else topic.name


def _applies(about: About, rule: Rule) -> bool:
    """Whether the answer to the request has a place for what the rule answers."""
    return rule.action.kind is not Kind.ERROR or carries(about, rule)


def _until(clock: Clock, ms: int) -> asyncio.Future[None]:
    """Done in so many milliseconds."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.at(clock.now_ms() + ms, partial(_set, waiting))
    waiting.add_done_callback(lambda _: timer.cancel())
    return waiting


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
