"""What every member is to have: the target assignment, made for one epoch of the group."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from hashlib import blake2b

from muster.coordinator.group.consumer.assignors import ASSIGNORS
from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec, Subscriber
from muster.coordinator.group.consumer.assignors.order import member_order
from muster.coordinator.group.consumer.state import ConsumerState
from muster.coordinator.group.topics import Topics


def metadata_hash(names: Collection[str], topics: Topics) -> int:
    """A hash of the topics' metadata, which changes if any of it changes (KIP-1101); 0 for no topics. A
    signed 64-bit integer. Only equality counts, so it need not be Kafka's number."""
    digest = blake2b(digest_size=8)
    some = False
    for name in sorted(names):
        topic_id = topics.ids.get(name)
        if topic_id is not None:
            some = True
            digest.update(topic_id.bytes + topics.count(topic_id).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if some else 0


def sizes(names: Collection[str], topics: Topics) -> dict[str, int]:
    """Partition counts of those topics that exist."""
    return {name: topics.count(topics.ids[name]) for name in names if name in topics.ids}


def preferred_assignor(state: ConsumerState, default: str) -> str:
    """The assignor that most members prefer; in a tie, the first by name: `range` before `uniform`, their
    order in the hash table that Kafka counts with. Members without a preference do not vote."""
    votes = state.assignor_votes
    return max(sorted(votes), key=votes.__getitem__) if votes else default


def make(
    state: ConsumerState,
    assignor: str,
    topics: Topics,
    newcomer: str | None = None,
    *,
    replaces: bool = False,
) -> dict[str, Assignment]:
    """A new target for every member. It starts from the present target, not from what members have.
    `newcomer` joins in this step, and `replaces` another member or not (`member_order`)."""
    members: dict[str, Subscriber] = {}
    counts: dict[uuid.UUID, int] = {}
    resolved: dict[tuple[tuple[str, ...], str | None], frozenset[uuid.UUID]] = {}
    for member_id in member_order(state.subscriptions, newcomer, state.most, replaces=replaces):
        said = state.subscriptions[member_id]
        key = said.topics, said.regex
        subscribed = resolved.get(key)
        if subscribed is None:
            # Members of one application subscribe alike.
            ids = [topics.ids[name] for name in sorted(state.topics_of(said)) if name in topics.ids]
            subscribed = resolved[key] = frozenset(ids)
            counts.update((topic_id, topics.count(topic_id)) for topic_id in ids)
        members[member_id] = Subscriber(said.instance_id, said.rack_id, subscribed, state.target(member_id))
    made = ASSIGNORS[assignor](Spec(members, counts, state.is_homogeneous()))
    return {member_id: made.get(member_id, {}) for member_id in members}
