"""Chooses the protocol that a member speaks. Pure."""

from __future__ import annotations

from muster.client.group.consumer_membership import ConsumerMembership
from muster.client.group.member import Member
from muster.client.group.membership import Membership
from muster.client.group.membership_types import GroupSettings


def membership_of(settings: GroupSettings) -> Member:
    """A member of the protocol in the settings; of the newer one if the broker decides ("auto")."""
    return Membership(settings) if settings.group_protocol == "classic" else ConsumerMembership(settings)


def classic_instead(member: Member) -> Membership | None:
    """A classic member to replace one whose broker does not offer the consumer protocol; None if not needed.
    Partitions that the consumer still holds are lost, as after any loss of membership."""
    if not isinstance(member, ConsumerMembership) or member.not_offered is None:
        return None
    classic = Membership(member.settings, jitter=member.jitter)
    classic.stand_in_for(member)
    return classic
