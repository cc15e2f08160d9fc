"""What keeps a client out of a group with INCONSISTENT_GROUP_PROTOCOL, in the form events tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupRequest


class Mismatch(NamedTuple):
    """As in JoinRefused."""

    protocol_types: tuple[str, str] | None = None
    offered: tuple[str, ...] | None = None
    shared: tuple[str, ...] | None = None


NONE: Final = Mismatch()


class Unsuited(KafkaError):
    """INCONSISTENT_GROUP_PROTOCOL because of what the client offers."""

    def __init__(self, why: str, found: Mismatch) -> None:
        super().__init__(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why)
        self.mismatch = found


def mismatch(request: JoinGroupRequest, protocol_type: str, shared: Iterable[str]) -> Mismatch:
    """Between a JoinGroup and a group of this type whose members all offer `shared`."""
    if not request.protocol_type or request.protocol_type != protocol_type:
        return Mismatch(protocol_types=(request.protocol_type, protocol_type))
    return Mismatch(offered=tuple(each.name for each in request.protocols), shared=tuple(sorted(shared)))
