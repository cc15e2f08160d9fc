"""Client quotas: who may use how much, as Kafka counts it (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599). Pure.

A quota is set for an entity: a user, a client id, a user with a client id, or the default of any of these.
Of the entities that a client matches, only the most specific one that has a quota counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

Part = tuple[str, str | None]
"""An entity type and a name; None for the type's default."""
Entity = frozenset[Part]

PRODUCED: Final = "producer_byte_rate"
"""Bytes of Produce requests per second."""
CONSUMED: Final = "consumer_byte_rate"
"""Bytes of Fetch responses per second."""
PERCENTAGE: Final = "request_percentage"
"""Share of one thread's time; 100 is all of it."""
MUTATIONS: Final = "controller_mutation_rate"
"""Partitions created and deleted per second."""
CONNECTIONS: Final = "connection_creation_rate"
"""Connections accepted per second."""

_OF_CLIENTS: Final[Mapping[str, bool]] = {PRODUCED: True, CONSUMED: True, PERCENTAGE: False, MUTATIONS: False}
_OF_ADDRESSES: Final[Mapping[str, bool]] = {CONNECTIONS: True}
"""The quotas of an entity, and whether they are whole numbers."""
_WHOLE_MAX: Final = {CONNECTIONS: 2**31 - 1}
_LONG_MAX: Final = 2**63 - 1
_FRACTION: Final = 1e-6
"""Anything above this is a fraction, as in Kafka."""


def keys_of(entity: Entity) -> Mapping[str, bool]:
    """The quotas that an entity can have, and whether each is a whole number."""
    return _OF_ADDRESSES if any(type == IP for type, _ in entity) else _OF_CLIENTS


def check_types(types: Iterable[str]) -> None:
    """Raises INVALID_REQUEST for entity types that cannot be combined."""
    named = list(types)
    if len(set(named)) < len(named):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an entity type is named twice")
    if IP in named and len(named) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an ip cannot be combined with a user or a client id")


def entity_of(parts: Iterable[Part]) -> Entity:
    """The entity with these parts. Raises INVALID_REQUEST if it is not valid."""
    named = list(parts)
    if not named:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity has no type")
    for type, name in named:
        if type not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown entity type {type}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the {type} entity's name is empty")
    check_types(type for type, _ in named)
    for type, name in named:
        if type == IP and name is not None and address_of(name) is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name} is not a valid IP: give an address, not a host's name",
            )
    return frozenset(named)


def address_of(text: str) -> str | None:
    """An IP address in the form in which all its spellings are equal; None if it is not an address."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raises INVALID_REQUEST for a quota that the entity cannot have."""
    keys = keys_of(entity)
    if key not in keys:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there is no quota {key} of this entity; there are {', '.join(keys)}"
        )
    if not math.isfinite(value) or value <= 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} must be greater than 0, not {value:g}")
    if keys[key] and (math.fmod(value, 1) > _FRACTION or value > _WHOLE_MAX.get(key, _LONG_MAX)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{key} must be a whole number up to {_WHOLE_MAX.get(key, _LONG_MAX)}, not {value:g}",
        )


class Limit(NamedTuple):
    """How much a client may use, and with whom it shares that."""

    value: float
    shared_by: tuple[str | None, str | None]
    """The user and the client id whose usage is counted together; None for any. Long ones by a digest."""


Values = Mapping[str, float]
"""The quotas of an entity, by key."""


class Quotas:
    """The quotas in force."""

    def __init__(self, quotas: Mapping[Entity, Values]) -> None:
        self._quotas = quotas
        self._found: dict[tuple[str, str, str], Limit | None] = {}
        self._of_addresses = {
            None if name is None else address_of(name): values.get(CONNECTIONS)
            for entity, values in quotas.items()
            for type, name in entity
            if type == IP
        }

    def __repr__(self) -> str:
        return f"<Quotas of {len(self._quotas)} entities>"

    def __iter__(self) -> Iterator[tuple[Entity, Values]]:
        return iter(self._quotas.items())

    def __len__(self) -> int:
        return len(self._quotas)

    def of(self, entity: Entity) -> Values:
        """The quotas set for exactly this entity."""
        return self._quotas.get(entity, {})

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """The quota `key` of a client; None if it has none. Cached, since every request asks."""
        shared_by = _short(user), _short(client_id)
        asked = key, *shared_by
        if asked not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[asked] = self._look_up(key, user, client_id, shared_by)
        return self._found[asked]

    def of_address(self, address: str) -> float | None:
        """How many connections per second an IP address may open; None for any number."""
        if not self._of_addresses:
            return None
        own = self._of_addresses.get(address_of(address) or address)
        return self._of_addresses.get(None) if own is None else own

    def _look_up(self, key: str, user: str, client_id: str, shared_by: tuple[str, str]) -> Limit | None:
        for parts in _precedence(user, client_id):
            value = self.of(frozenset(parts.items())).get(key)
            if value is not None:
                of_user, of_client = shared_by
                return Limit(
                    value, (of_user if USER in parts else None, of_client if CLIENT_ID in parts else None)
                )
        return None


_FOUND_MAX: Final = 10_000
_SHORT_MAX: Final = 64
"""Characters of a name that is kept as it is. Clients choose their ids, of up to 128 KiB in memory."""


def _short(name: str) -> str:
    """The name, or, if it is long, what stands for it: longer than any name that is kept as it is."""
    if len(name) <= _SHORT_MAX:
        return name
    return f"sha256:{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def _precedence(user: str, client_id: str) -> Iterator[dict[str, str | None]]:
    """The entities that a client matches, most specific first."""
    for name in (user, None):
        yield {USER: name, CLIENT_ID: client_id}
        yield {USER: name, CLIENT_ID: None}
        yield {USER: name}
    yield {CLIENT_ID: client_id}
    yield {CLIENT_ID: None}


class Component(NamedTuple):
    """A condition on entities: they have this type, and this name if `named`."""

    type: str
    named: bool
    name: str | None = None


def selected(quotas: Quotas, components: Iterable[Component], *, strict: bool) -> list[tuple[Entity, Values]]:
    """The entities that meet every condition and, if `strict`, have no other types."""
    wanted = list(components)
    return [
        (entity, values)
        for entity, values in quotas
        if all(
            ((each.type, each.name) in entity) if each.named else any(type == each.type for type, _ in entity)
            for each in wanted
        )
        and (not strict or len(entity) == len(wanted))
    ]
