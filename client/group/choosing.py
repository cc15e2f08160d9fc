"""Which protocol a member speaks. Pure."""

from __future__ import annotations

from muster.client.group.consumer_membership import ConsumerMembership
from muster.client.group.member import Member
from muster.client.group.membership import Membership
from muster.client.group.membership_types import GroupSettings


def membership_of(settings: GroupSettings) -> Member:
    """One of the protocol that the settings ask for; of the newer one where the broker decides ("auto")."""
    return Membership(settings) if settings.group_protocol == "classic" else ConsumerMembership(settings)


def classic_instead(member: Member) -> Membership | None:
    """A classic member in place of one whose broker does not offer the consumer protocol, if there is need.
    What the consumer still has is lost to it, as after any loss of a membership."""
    if not isinstance(member, ConsumerMembership) or member.not_offered is None:
        return None
    classic = Membership(member.settings, jitter=member.jitter)
    classic.stand_in_for(member)
    return classic
