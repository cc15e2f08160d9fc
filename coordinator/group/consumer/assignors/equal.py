"""The assignor `uniform` for members that subscribe to the same topics: shares differ by one at most, and
what fits stays where it is."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec
from muster.coordinator.group.consumer.assignors.kept import kept
from muster.protocol.java import buckets_when_copied, buckets_when_grown, spread, uuid_hash

Run = tuple[uuid.UUID, Sequence[int]]
"""Partitions of one topic."""


def share_equally(spec: Spec) -> dict[str, Assignment]:
    """Needs at least one member; the topics are those of the first."""
    subscribed = next(iter(spec.members.values())).topics
    hashes = {topic: spread(uuid_hash(topic)) for topic in spec.partitions}
    has = kept(spec)
    free: list[Run] = []
    in_order = [topic for topic in spec.partitions if topic in subscribed]
    for topic in _by_bucket(in_order, hashes, buckets_when_copied(len(subscribed))):
        free.append((topic, has.free(topic, spec.partitions[topic])))

    size, extras = divmod(sum(spec.partitions[topic] for topic in subscribed), len(spec.members))
    shares: dict[str, Assignment] = {}
    lacking: list[tuple[str, int]] = []
    to_come = len(spec.members)
    for (member_id, subscriber), keeps in zip(spec.members.items(), has.by_member, strict=True):
        # This member gets one of the longer shares if it can fill it with what it has, or if as many of them
        # as members are left.
        had = sum(map(len, keeps.values()))
        longer = extras > 0 and (had > size or to_come == extras)
        extras -= longer
        to_come -= 1
        room = size + longer - had
        if room > 0:
            lacking.append((member_id, room))
        elif room < 0:
            buckets = buckets_when_grown(len(subscriber.assigned))
            topics = _by_bucket(keeps, hashes, buckets)
            keeps, given_up = _cut(keeps, topics, size + longer)
            free += given_up
        shares[member_id] = keeps
    _deal(free, lacking, shares)
    return shares


def _cut(keeps: Assignment, topics: Iterable[uuid.UUID], size: int) -> tuple[Assignment, list[Run]]:
    """The first `size` partitions, and the others."""
    shorter = dict(keeps)
    given_up: list[Run] = []
    for topic in topics:
        numbers = keeps[topic]
        if len(numbers) > size:
            listed = _numbers_by_bucket(numbers)
            given_up.append((topic, listed[size:]))
            if size:
                shorter[topic] = frozenset(listed[:size])
            else:
                del shorter[topic]
        size = max(0, size - len(numbers))
    return shorter, given_up


def _deal(free: Iterable[Run], lacking: Iterable[tuple[str, int]], shares: dict[str, Assignment]) -> None:
    """Fill up the members that lack partitions, one after the other."""
    runs = iter(free)
    topic, numbers = next(runs, (uuid.UUID(int=0), ()))
    at = 0
    for member_id, room in lacking:
        share = dict(shares[member_id])
        while room:
            piece = numbers[at : at + room]
            if not piece:
                topic, numbers = next(runs)
                at = 0
                continue
            at += len(piece)
            room -= len(piece)
            share[topic] = share[topic].union(piece) if topic in share else frozenset(piece)
        shares[member_id] = share


def _by_bucket(topics: Iterable[uuid.UUID], hashes: Mapping[uuid.UUID, int], buckets: int) -> list[uuid.UUID]:
    return sorted(topics, key=lambda topic: hashes[topic] & buckets - 1)


def _numbers_by_bucket(numbers: Iterable[int]) -> list[int]:
    listed = sorted(numbers)
    mask = buckets_when_copied(len(listed)) - 1
    if listed[-1] > mask:
        listed.sort(key=lambda number: spread(number) & mask)
    return listed
