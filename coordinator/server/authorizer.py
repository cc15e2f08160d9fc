"""Decides who may do what on one broker: super users everything, others what the ACLs allow."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.config import Settings
from muster.coordinator.security.acls import EVERYONE
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.kept_acls import KeptAcls
from muster.coordinator.server.rights import UNRESTRICTED
from muster.protocol.messages.acls import CLUSTER_NAME, USER, WILDCARD, Operation, ResourceType

_log: Final = Logger(part="authorizer")

_EVERY_MS: Final = 60_000
_HOSTS_MAX: Final = 1_000
"""Addresses tracked per minute; denials of further ones are not logged."""
_OF_A_HOST_MAX: Final = 20
"""Different denials of an address that are logged per minute."""
_NAME_MAX: Final = 100  # characters of a name in the log


def super_users(text: str) -> frozenset[str]:
    """The principals in the setting `super.users`: `User:a;User:b`. A name without a type is a user's."""
    named = (each.strip() for each in text.split(";"))
    return frozenset(each if ":" in each else USER + each for each in named if each)


class Authorizer:
    """Decides by the ACLs as last read; until the first read, everything is denied to all but super users."""

    def __init__(self, rows: ConfigRows, settings: Settings, clock: Clock) -> None:
        """`clock` counts the minutes between log lines."""
        self.acls = KeptAcls(rows, default=settings.allow_everyone_if_no_acl_found)
        self.super_users = super_users(settings.super_users or "")
        self._denials = _Denials(clock)

    def __repr__(self) -> str:
        return f"<Authorizer {self.acls.in_force!r}>"

    def rights(self, context: RequestContext) -> ClientRights:
        """What the client of a request may do."""
        return ClientRights(self, context)

    def sees(self, context: RequestContext) -> Callable[[str], bool]:
        """Returns a function that says whether the client may see a topic, by name; for any thread."""
        rights = self.rights(context)
        return lambda name: rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name, logged=False)

    def log_denied(
        self, context: RequestContext, operation: Operation, type: ResourceType, name: str
    ) -> None:
        """Log a denial, once per address, cause and minute."""
        self._denials.tell(context, operation, type, name)


class ClientRights:
    """What one client may do: `rights.Rights`."""

    __slots__ = ("_authorizer", "_context", "_host", "_is_super")

    def __init__(self, authorizer: Authorizer, context: RequestContext) -> None:
        self._authorizer = authorizer
        self._context = context
        self._host = context.client_host.removeprefix("/")
        self._is_super = context.principal in authorizer.super_users

    def may(self, operation: Operation, type: ResourceType, name: str, *, logged: bool = True) -> bool:
        """See rights.Rights."""
        if self._is_super:
            return True
        context, acls = self._context, self._authorizer.acls.in_force
        allowed = acls is not None and acls.allow(context.principal, self._host, operation, type, name)
        if not allowed and logged:
            self._authorizer.log_denied(context, operation, type, name)
        return allowed

    def may_with_cluster(self, operation: Operation, *, logged: bool = True) -> bool:
        """See rights.Rights."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, logged=logged)

    def may_with_any(self, operation: Operation, type: ResourceType) -> bool:
        """See rights.Rights."""
        acls = self._authorizer.acls.in_force
        return self._is_super or (
            acls is not None and acls.allow_with_any(self._context.principal, self._host, operation, type)
        )

    def operations(self, type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """See rights.Rights."""
        if self._is_super:
            return UNRESTRICTED.operations(type, name)
        acls = self._authorizer.acls.in_force
        return 0 if acls is None else acls.bits(self._context.principal, self._host, type, name)


class _Told:
    """What was logged about an address since `since_ms`, and how much was withheld."""

    __slots__ = ("causes", "since_ms", "withheld")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.causes: set[int] = set()
        self.withheld = 0


class _Denials:
    """Logs denials: one line per address, cause and minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def tell(self, context: RequestContext, operation: Operation, type: ResourceType, name: str) -> None:
        """Log that a client was denied an operation."""
        now_ms = self._clock.now_ms()
        told = self._told.get(context.client_host)
        withheld = 0
        if told is None or now_ms - told.since_ms >= _EVERY_MS:
            if told is None and len(self._told) >= _HOSTS_MAX:
                self._forget(now_ms)
                if len(self._told) >= _HOSTS_MAX:
                    return
            withheld = 0 if told is None else told.withheld
            told = self._told[context.client_host] = _Told(now_ms)
        cause = hash((context.principal, operation, type, name))
        if cause in told.causes or len(told.causes) >= _OF_A_HOST_MAX:
            told.withheld += 1
            return
        told.causes.add(cause)
        fields: dict[str, object] = {
            "principal": context.principal[:_NAME_MAX],
            "operation": operation.name,
            "resource": _resource(type, name),
            "host": context.client_host,
            "remedy": _remedy(context.principal, operation, type, name),
        }
        if context.client_id:
            fields["client"] = context.client_id[:_NAME_MAX]
        if withheld:
            fields["more"] = f"and {withheld} more from this address since the last line"
        _log.info("denied", **fields)

    def _forget(self, now_ms: int) -> None:
        self._told = {host: told for host, told in self._told.items() if now_ms - told.since_ms < _EVERY_MS}


def _resource(type: ResourceType, name: str) -> str:
    kind = type.name.lower().replace("_", " ")
    return kind if type is ResourceType.CLUSTER else f"{kind} {name[:_NAME_MAX]}"


_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}


def _remedy(principal: str, operation: Operation, type: ResourceType, name: str) -> str:
    for_all = principal == EVERYONE or name == WILDCARD  # as ACLs, they would allow more than was asked for
    if for_all or max(len(principal), len(name)) > _NAME_MAX or type not in _OPTIONS:
        return "if it should be allowed, allow it with muster acls"
    user = principal.removeprefix(USER)
    if ":" in user or user.startswith("-"):
        user = principal
    words = ["muster", "acls", "allow", user]
    if operation is Operation.IDEMPOTENT_WRITE:  # WRITE on any topic includes it, and is needed anyway
        words += ["--produce", "TOPIC"]
    else:
        words += ["--operation", operation.name.lower(), _OPTIONS[type]]
        words += [] if type is ResourceType.CLUSTER else [name]
    return f"if it should be allowed: {shlex.join(words)}"
