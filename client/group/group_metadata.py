"""The identity that commits offsets for a group."""

from __future__ import annotations

from typing import NamedTuple


class GroupMetadata(NamedTuple):
    """Identifies a member to its group. `generation_id` is -1 outside a generation, and the member epoch in
    the consumer protocol (KIP-848)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
