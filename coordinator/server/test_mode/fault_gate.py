"""The fault gate: carries out the rules of test mode before a request is begun.

Sessions have the gate only while a rule has a turn left, so faults cost nothing otherwise.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.journal.entries import Member
from muster.coordinator.server.api import Begin, awaited
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.session import Asked, Sessions
from muster.coordinator.server.test_mode.fault_answers import carries, refused
from muster.coordinator.server.test_mode.faults import About, Fault, Faults, Firing, Kind, Rule
from muster.coordinator.server.wire import Response
from muster.protocol.errors import ErrorCode

_log: Final = Logger(part="faults")


class Host(Broker, Protocol):
    """The broker whose requests meet faults."""

    connections: Connections

    @property
    def clock(self) -> Clock:
        """Measures delays."""

    @property
    def real_clock(self) -> Clock:
        """Measures how long connections are idle."""


class FaultGate:
    """The fault gate of one broker. Call `close` before its connections are ended."""

    def __init__(self, faults: Faults, broker: Host, sessions: Sessions) -> None:
        self._faults = faults
        self._broker = broker
        self._sessions = sessions
        self._held: dict[asyncio.Future[None], Fault] = {}
        """Delayed requests, and the fault that delays each."""
        self._silent: set[asyncio.Future[None]] = set()
        """Connections whose responses were dropped."""
        faults.attach(self._changed)
        self._changed()

    def close(self) -> None:
        """Stand aside for good: delayed requests go on, connections that are kept silent are closed."""
        self._faults.detach(self._changed)
        self._sessions.faults = None
        for waiting in (*self._held, *self._silent):
            _set(waiting)

    def _changed(self) -> None:
        self._sessions.faults = self if self._faults.active else None
        if self._faults.active:
            self._broker.connections.forget()
        for waiting, fault in self._held.items():
            if not self._faults.in_force(fault):
                _set(waiting)

    # --- requests -------------------------------------------------------------------------------------------

    def begins(self, asked: Asked) -> Begin | None:
        """See session.Gate: a request that rules may match is given to a task, which can hold it back."""
        if not self._faults.concern(asked.api.key):
            return None

        async def meet(broker: Broker, request: Any, context: RequestContext) -> Any:
            return await self._meet(asked)

        return awaited(meet, "faults")

    async def _meet(self, asked: Asked) -> Response | None:
        """The response to a request, with the faults that it meets."""
        about = About(
            self._broker.node_id,
            asked.api,
            asked.header.api_version,
            asked.header.client_id or "",
            asked.request,
            self._topic_name,
        )
        met = self._faults.meet(about, partial(_applies, about))
        for fault in met:
            if not self._faults.in_force(fault):
                continue  # it was removed while another delayed the request
            match fault.action.kind:
                case Kind.DELAY:
                    self._fired(fault, about, asked)
                    await self._delay(fault)
                case Kind.CLOSE_BEFORE:
                    self._fired(fault, about, asked)
                    _end(asked)
                    return None
                case Kind.ERROR:
                    return await self._refused(fault, about, asked)
                case _:
                    response = await self._applied(asked)
                    if not self._faults.in_force(fault):
                        return response  # it was removed while the request waited
                    self._fired(fault, about, asked)
                    return await self._spoiled(fault, asked, response)
        return await self._applied(asked)

    async def _applied(self, asked: Asked) -> Response | None:
        answer = await asked.session.handle(asked, asked.request)
        return None if answer is None else asked.framed(answer)

    async def _refused(self, fault: Fault, about: About, asked: Asked) -> Response:
        code = ErrorCode(fault.action.amount)
        handle = partial(asked.session.handle, asked)
        try:
            answer, version = await refused(about, fault.rule, f"fault {fault.id}: {code.text}", handle)
        finally:
            self._fired(fault, about, asked)
        return asked.framed(answer, version)

    async def _spoiled(self, fault: Fault, asked: Asked, response: Response | None) -> Response | None:
        """The response to a request that was applied, after the fault; None if there is none."""
        match fault.action.kind:
            case Kind.CLOSE_AFTER:
                _end(asked)
                return None
            case Kind.TRUNCATE:
                _end(asked)
                return None if response is None else _joined(response)[: fault.action.amount]
        if response is None:
            return None  # none is expected, so none can be missed
        # Kafka answers a connection's requests in order, and a client takes the next response it sees for the
        # missing one. So nothing more is sent on this connection, as if the network swallowed it.
        if asked.session.connection is not None:
            asked.session.connection.abandonable()
        await self._silence()
        _end(asked)
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
        """Wait until the connection is lost, which cancels this, but not for longer than one may be idle."""
        waiting = _until(self._broker.real_clock, self._broker.settings.connections_max_idle_ms)
        self._silent.add(waiting)
        try:
            await waiting
        finally:
            self._silent.discard(waiting)

    # --- what is told ---------------------------------------------------------------------------------------

    def _fired(self, fault: Fault, about: About, asked: Asked) -> None:
        groups = about.api.names.groups_of(about.request)
        members = about.api.names.members_of(about.request)
        transactional_ids = about.api.names.transactional_ids_of(about.request)
        firing = Firing(
            rule=fault.id,
            at_ms=self._broker.clock.now_ms(),
            broker=about.broker,
            api=about.api.name,
            version=about.version,
            group=groups[0] if groups else None,
            member=members[0] if members else None,
            transactional_id=transactional_ids[0] if transactional_ids else None,
            client_id=about.client_id,
            action=str(fault.action),
        )
        self._faults.carried_out(fault, firing)
        _log.info("fault", **firing.to_json())
        self._broker.runtime.note(
            "fault_fired",
            {"rule": fault.id, "api": firing.api, "action": firing.action},
            group_id=firing.group,
            member=Member(firing.member or "", about.client_id, asked.context.client_host.lstrip("/")),
        )

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._broker.catalogue.by_id(topic_id)
        return None if topic is None else topic.name


def _applies(about: About, rule: Rule) -> bool:
    """Whether the answer to the request has a place for the rule's error, if it has one."""
    return rule.action.kind is not Kind.ERROR or carries(about, rule)


def _end(asked: Asked) -> None:
    """Close the connection after what is being answered now."""
    if asked.session.connection is not None:
        asked.session.connection.end()


def _joined(response: Response) -> bytes:
    return response if isinstance(response, bytes) else b"".join(response)


def _until(clock: Clock, ms: int) -> asyncio.Future[None]:
    """A future that is done in so many milliseconds."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.at(clock.now_ms() + ms, partial(_set, waiting))
    waiting.add_done_callback(lambda _: timer.cancel())
    return waiting


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
