"""Finds the member that a client was before it joined anew, while the group still has that one too."""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import counts, same_client, text, whole
from muster.coordinator.journal.explain.findings import LOOK_BACK_MS, Case
from muster.coordinator.journal.explain.vocabulary import Trigger

_SESSION_MS: Final = 45_000
"""Assumed if the journal does not show a member's session timeout."""
_SEEKING_MS: Final = 60_000
"""How soon after the coordinator is back its clients have found it."""
_LOADING_MS: Final = 1_000
_STOOD_STILL: Final = "stood still"
"""In the reason why a broker gave a group up, if it had not served it for a while by then."""
_ALIVE: Final = frozenset(
    {"member_added", "member_rejoined", "partitions_revoked", "partitions_assigned", "heartbeat_late"}
)
"""Recorded when a member is heard of."""
_GONE: Final = frozenset({"member_removed", "member_replaced", "member_id_issued", "pending_member_removed"})
"""After these nobody of that id is in the group."""
_TELLING: Final = _ALIVE | _GONE | {"member_disconnected"}


class Former(NamedTuple):
    """A member that a client left behind."""

    member: Member
    sign: Entry
    """What shows it: its connection closed, or a coordinator loaded it and did not hear of it."""
    expired: Entry | None
    """The expiry of its session, if the rebalance lasted until then."""
    away_ms: int | None = None
    """How long the group had no coordinator; None: it had one, or it is unknown how long."""


def died(case: Case) -> Former | None:
    """A member with the client id and host of the one that joined, whose connection closed without a
    LeaveGroup so recently that its session had not expired."""
    for who, last in _left_behind(case, LOOK_BACK_MS):
        # Unless it is removed when its session expires, it has come back.
        closed_ms = case.start.entry.at_ms - last.at_ms
        if last.type == "member_disconnected" and closed_ms <= _session_ms(case, who):
            return Former(who, last, _expiry(case, who))
    return None


def lost_its_coordinator(case: Case) -> Former | None:
    """A member with the client id and host of the one that joined, which has not been heard of since the
    group was loaded just before."""
    loaded = _loaded(case)
    if loaded is None:
        return None
    for who, last in _left_behind(case, None):
        if last.at_ms >= loaded.at_ms:
            continue
        away_ms = _away_ms(case, loaded)
        expired = _expiry(case, who)
        if expired is not None and not _unheard_since(case, expired):
            continue
        if away_ms is None or away_ms >= _session_ms(case, who):
            return Former(who, loaded, expired, away_ms)
    return None


def _left_behind(case: Case, window_ms: int | None) -> list[tuple[Member, Entry]]:
    """Members in the group with the client id and host of the one that joined, and the last entry about each
    in the `window_ms` before that, or at all; those heard of since are left out."""
    mine = case.member
    if mine is None or mine.instance is not None:
        return []
    newest: dict[str, Entry] = {}
    looked_behind: set[str] = set()
    for each in case.earlier_of_any_type(window_ms):
        who = each.member
        if each.type not in _TELLING or who is None or who.id == mine.id or not same_client(who, mine):
            continue
        last = newest.setdefault(who.id, each)
        # One that left, or was removed, closes its connection after that.
        if last is not each and last.type == "member_disconnected" and who.id not in looked_behind:
            looked_behind.add(who.id)
            if each.type in _GONE:
                newest[who.id] = each
    since = case.rebalance.stream[case.start.index + 1 : case.rebalance.last]
    heard = {each.member.id for each in since if each.type in _ALIVE and each.member is not None}
    if case.rebalance.completed is not None and case.rebalance.assigned is not None:
        # In a large group, the rejoins of these were not recorded.
        heard |= counts(case.rebalance.assigned, "owned").keys()
    return [
        (each.member, each)
        for each in newest.values()
        if each.member is not None and each.member.id not in heard and each.type not in _GONE
    ]


def _expiry(case: Case, who: Member) -> Entry | None:
    """The expiry of the member's session, in the same rebalance."""
    for each in case.rebalance.entries:
        if (
            each.type == "member_removed"
            and each.trigger == Trigger.SESSION_EXPIRED
            and each.member is not None
            and each.member.id == who.id
        ):
            return each
    return None


def _session_ms(case: Case, who: Member) -> int:
    for each in case.earlier_of_any_type(None):
        if each.member is not None and each.member.id == who.id:
            session_ms = whole(each, "session_timeout_ms")
            if session_ms is not None:
                return session_ms
    return _SESSION_MS


def _loaded(case: Case) -> Entry | None:
    """The coordinator's last load of the group, if its clients may still be looking for it."""
    return next(case.earlier("shard_loaded", window_ms=_SEEKING_MS), None)


def _away_ms(case: Case, loaded: Entry) -> int | None:
    silent_ms = whole(loaded, "from_silent_ms")
    if silent_ms is not None:
        return silent_ms
    unloaded = next(case.earlier("shard_unloaded"), None)
    if unloaded is None or unloaded.at_ms > loaded.at_ms or _STOOD_STILL in (text(unloaded, "why") or ""):
        return None
    return loaded.at_ms - unloaded.at_ms


def _unheard_since(case: Case, expired: Entry) -> bool:
    """Whether the member was last heard from when its coordinator loaded the group."""
    loaded, silent_ms = _loaded(case), whole(expired, "silent_ms")
    if loaded is None or silent_ms is None:
        return False
    # Loading a member counts as hearing from it.
    return expired.at_ms - silent_ms <= loaded.at_ms + _LOADING_MS
