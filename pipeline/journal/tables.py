"""The tables made from the journal: columns, Spark types, and what each column says.

Silver tells what happened, gold answers questions. Everything here is plain data: it needs no Spark.

Times of a moment (`at_ms`, `started_ms`, ...) are milliseconds since 1970, other `_ms` are durations. NULL is
"not known" or "not yet", never zero. `rebalance_id` and `group` join silver and gold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RATE_MIN_MS: Final = 55 * 60_000
"""How often something happens in an hour is told of about an hour and more: less time says nothing of it."""


class Column(NamedTuple):
    """A column; `type` as Spark's DDL writes it."""

    name: str
    type: str
    about: str


class Table(NamedTuple):
    """A table; `layer` is bronze, silver or gold."""

    layer: str
    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """Its schema as Spark takes it."""
        return ", ".join(f"`{each.name}` {each.type}" for each in self.columns)

    @property
    def names(self) -> list[str]:
        """Its columns, in order."""
        return [each.name for each in self.columns]


MEMBER: Final = "struct<id:string,client_id:string,host:string,instance:string>"
MOVES: Final = "array<struct<topic:string,partition:int,from_member:string,to_member:string>>"
MOVES_SINCE: Final = MOVES.replace("to_member:string", "to_member:string,since_ms:bigint")
STARTS: Final = "array<struct<at_ms:bigint,cause:string,member_id:string>>"
LAGS: Final = "array<struct<topic:string,partition:int,committed_offset:bigint,lag:bigint>>"


def _columns(text: str) -> tuple[Column, ...]:
    """A line each: name, type (without spaces), what it says."""
    lines = (line.split(None, 2) for line in text.strip().splitlines())
    return tuple(Column(name, type, about.strip()) for name, type, about in lines)


BRONZE: Final = Table(
    "bronze",
    "events",
    "The records of __group_events as they are: the columns of the source that the tables need.",
    _columns(
        """
        key        binary     the group id; NULL for what concerns a whole shard
        value      binary     one JSON object
        partition  int        of the topic: one for each shard of groups
        offset     bigint     the order in which things happened to a group
        """
    ),
)

_WHO: Final = """
        member_id     string  the member's id
        client_id     string  its client id
        host          string  where it runs
        instance      string  its group.instance.id; NULL for a dynamic member
"""

TRANSITIONS: Final = Table(
    "silver",
    "transitions",
    "Every entry of the journal, typed: columns that an entry's type does not have are NULL.",
    _columns(
        f"""
        shard                  int     which shard of the groups: the journal's partition
        offset                 bigint  where in the partition
        at_ms                  bigint  when
        type                   string  what happened, as docs/journal.md lists it
        broker                 int     node id of the broker that wrote it
        group                  string  the group; NULL for what concerns a whole shard
        generation             int     right after it
        trigger                string  what made it happen
        reason                 string  what the client gave as a reason
        {_WHO.strip()}
        from_state             string  state_changed
        to_state               string  state_changed
        phase_ms               bigint  state_changed: how long the group was in from_state
        after_ms               bigint  member_rejoined, all_synced
        late_ms                bigint  heartbeat_late: how long it had been silent
        silent_ms              bigint  member_removed, member_disconnected: how long ago it was last heard of
        connected              boolean member_removed: whether its connection was still open
        disconnected_ms        bigint  member_removed: how long ago its connection closed
        late                   int     member_removed: its late heartbeats in the ten minutes before
        after_removal_ms       bigint  member_disconnected: how long ago it was removed
        heartbeat_interval_ms  bigint  as observed
        session_timeout_ms     bigint  the member's
        requested_by           {MEMBER} member_removed: who asked for it over another connection
        former_member_id       string  member_added, member_id_issued: who used the connection before
        old_member_id          string  member_replaced, member_fenced, leader_changed
        old_host               string  member_replaced, member_fenced: where the old one was
        old_silent_ms          bigint  member_replaced
        old_connected          boolean member_replaced
        topics_added           array<string> metadata_changed
        topics_removed         array<string> metadata_changed
        protocols_before       array<string> metadata_changed
        protocols_after        array<string> metadata_changed
        owned_changed          boolean metadata_changed
        protocol               string  protocol_chosen
        partitions             int     assigned: how many have an owner now; commit_refused: how many it named
        kept                   int     assigned
        moved                  int     assigned
        lost                   int     assigned
        moves                  {MOVES} assigned: what changed hands; 1,000 at most
        truncated              boolean assigned: whether moves leaves something out
        started_ms             bigint  rebalance_completed
        join_ms                bigint  rebalance_completed
        assignment_ms          bigint  rebalance_completed
        restarts               int     rebalance_completed
        members                int     rebalance_completed: how many there are now
        dropped                array<{MEMBER}> rebalance_completed: who did not rejoin in time; 100 at most
        slowest                {MEMBER} rebalance_completed: who took longest to join
        slowest_ms             bigint  rebalance_completed: and how long
        lag_before             bigint  rebalance_completed
        lag                    bigint  rebalance_completed, lag_at_commit: records behind
        lags                   {LAGS}  lag_at_commit: by partition, the furthest behind; 100 at most
        recovered              boolean lag_at_commit: the lag is back at what it was
        error                  string  commit_refused, join_refused
        committed_generation   int     commit_refused: the generation it came under
        epoch                  bigint  shard_loaded, shard_unloaded
        from_broker            int     shard_loaded: who had it before
        from_silent_ms         bigint  shard_loaded: how long ago that one was heard of last
        took_ms                bigint  shard_loaded
        groups                 int     shard_loaded: how many there are
        """
    ),
)

REBALANCES: Final = Table(
    "silver",
    "rebalances",
    "One row for each rebalance: from entering PreparingRebalance to Stable or Empty, anew or not.",
    _columns(
        f"""
        rebalance_id          string  shard and offset of its first start; stays the same
        group                 string  the group
        shard                 int     the journal's partition
        start_offset          bigint  of the entry that began it, or of the first one in sight
        end_offset            bigint  of the last entry that belongs to it
        generation            int     the one it led to, or will lead to
        outcome               string  completed, under way, or interrupted (its coordinator moved, or it went)
        state                 string  the group's at the end, or now: Stable, Empty, PreparingRebalance, ...
        began_in_sight        boolean whether the journal has its beginning
        from_state            string  the group's before it
        started_ms            bigint  when it began
        ended_ms              bigint  when it was over; NULL: it is not
        duration_ms           bigint  from the one to the other
        cause                 string  what the coordinator recorded as what began it; or unknown
        diagnosis             string  inferred, a word of docs/why.md: crashed, stalled, new-member, ...
        certainty             string  certain, likely or possible
        {_WHO.strip()}
        reason                string  what that member gave as a reason
        starts                {STARTS} what began it, and what began it anew, in order
        restarts              int     how often it began anew
        join_ms               bigint  waiting for JoinGroups
        assignment_ms         bigint  then for the leader's assignment; NULL where the group became Empty
        sync_ms               bigint  then until every member had asked for its assignment
        slowest_member_id     string  who took longest to join
        slowest_ms            bigint  and how long
        members_before        int     members at the end of the rebalance before
        members               int     members at the end
        added                 int     members that came while it went on
        removed               int     members that went, those dropped included
        dropped               int     members that did not rejoin in time
        partitions            int     with an owner at the end
        kept                  int     with the owner of before
        moved                 int     that another member owned
        lost                  int     that had an owner and have none now
        bounced               int     moved although the old owner is still there
        moves                 {MOVES_SINCE} what changed hands, and from when nobody had it
        truncated             boolean whether moves leaves something out: bounced and unowned too then
        unowned_partitions    int     that had no owner for some time and have one now
        unowned_partition_ms  bigint  for how long, over all of them: partition-milliseconds
        unowned_max_ms        bigint  the longest of them
        lag_before            bigint  records behind as it began
        lag                   bigint  records behind at its end
        lag_peak              bigint  the most until it recovered, within ten minutes of its end
        recovered_ms          bigint  when lag was back at what it was, within ten minutes of its end
        recovery_ms           bigint  how long after its end that was
        commits_refused       int     commits under the generations that it ended
        near_misses           int     late heartbeats of its member in the ten minutes before
        """
    ),
)

MEMBER_SESSIONS: Final = Table(
    "silver",
    "member_sessions",
    "From a member's joining to its end. A static member that comes back under a new id begins a new one.",
    _columns(
        f"""
        group             string  the group
        shard             int     the journal's partition
        {_WHO.strip()}
        joined_ms         bigint  when it came; NULL: before the journal begins
        last_heard_ms     bigint  when it was last heard of, at its end; NULL: it is there
        ended_ms          bigint  when it was removed or replaced; NULL: it is there
        duration_ms       bigint  from joined_ms to ended_ms
        end_cause         string  trigger of its removal, or "static member returned" where it was replaced
        end_diagnosis     string  a word of docs/why.md, where its end began a rebalance
        evicted           boolean whether it was put out, rather than left or replaced
        former_member_id  string  the member it was before, where known
        late              int     its late heartbeats
        end_rebalance_id  string  the rebalance in which it ended
        """
    ),
)

OWNERSHIP: Final = Table(
    "silver",
    "ownership",
    "Who had which partition from when to when. Between two rows of a partition nobody had it.",
    _columns(
        f"""
        group         string  the group
        topic         string  the topic
        partition     int     its number
        {_WHO.strip()}
        from_ms       bigint  when the rebalance that gave it was over
        until_ms      bigint  when the owner stopped, or rejoined to lose it; NULL: it has it
        rebalance_id  string  the rebalance that gave it
        """
    ),
)

LAG_SAMPLES: Final = Table(
    "silver",
    "lag_samples",
    "How far behind a group was.",
    _columns(
        f"""
        group      string  the group
        at_ms      bigint  when
        offset     bigint  of the journal's entry
        source     string  commit, rebalance-began or rebalance-ended
        lag        bigint  records behind, in all
        recovered  boolean commit: the first after a rebalance that was back at the lag before
        lags       {LAGS}  commit: by partition, the furthest behind; 100 at most
        """
    ),
)

_COST: Final = """
        p50_ms                double  median duration, of those that are over
        p95_ms                double  and the 95th percentile
        max_ms                bigint  and the longest
        moved                 bigint  partitions that another member owned
        bounced               bigint  of those: the old owner is still there
        unowned_partition_ms  bigint  partition-milliseconds without an owner
"""

CAUSES_PER_HOUR: Final = Table(
    "gold",
    "causes_per_hour",
    "How often groups rebalanced in each hour, why, and how long it took.",
    _columns(
        f"""
        hour                  timestamp in which they began
        cause                 string  what the coordinator recorded
        diagnosis             string  what was behind it
        rebalances            bigint  how many
        groups                bigint  of how many groups
        {_COST.strip()}
        """
    ),
)

GROUP_HEALTH: Final = Table(
    "gold",
    "group_health",
    "Each group over all that the journal has of it.",
    _columns(
        f"""
        group                 string  the group
        first_ms              bigint  its first entry
        last_ms               bigint  the journal's last entry, of any group
        state                 string  its state at the end
        members               int     members after its last rebalance
        rebalances            bigint  how many, under way included
        under_way             boolean whether one is
        under_way_ms          bigint  for how long; NULL: none is
        hanging               boolean whether it has been for more than five minutes
        generations_per_hour  double  rebalances that are over, an hour; NULL: there is less than an hour
        stable_share          double  how much of the time it was Stable, 0 to 1, while it had members
        evictions             bigint  members put out
        near_misses           bigint  late heartbeats
        commits_refused       bigint  what they were for is delivered again
        top_diagnosis         string  behind most of its rebalances
        top_diagnosis_share   double  of its rebalances, 0 to 1
        {_COST.strip()}
        """
    ),
)

UNAVAILABILITY: Final = Table(
    "gold",
    "unavailability",
    "Each time in which a partition that a group reads had no owner, the one under way included.",
    _columns(
        """
        group         string  the group
        topic         string  the topic
        partition     int     its number
        from_ms       bigint  when its owner stopped
        until_ms      bigint  when it had an owner again; NULL: it has none
        gap_ms        bigint  how long
        from_member   string  member id of who had it
        to_member     string  member id of who got it
        rebalance_id  string  the rebalance that gave it an owner again
        diagnosis     string  of that one
        """
    ),
)

COST_PER_CAUSE: Final = Table(
    "gold",
    "cost_per_cause",
    "What rebalances of each cause cost, over all groups.",
    _columns(
        f"""
        cause                 string  what the coordinator recorded
        diagnosis             string  what was behind it
        rebalances            bigint  how many
        groups                bigint  of how many groups
        {_COST.strip()}
        duration_ms           bigint  over all of them
        lag_growth            bigint  records that came to wait while they went on, where lag is known
        lag_known             bigint  rebalances of which lag before and after is known
        recovered             bigint  of those: lag was seen to be back at what it was
        recovery_p50_ms       double  how long that took from the end of the rebalance
        recovery_p95_ms       double  and the 95th percentile
        recovery_max_ms       bigint  and the longest
        commits_refused       bigint  what they were for is delivered again
        """
    ),
)

FLAPPING: Final = Table(
    "gold",
    "flapping",
    "Members, and hosts, that come and go. A dynamic member is known by its client id and host.",
    _columns(
        """
        kind              string  member or host
        name              string  instance id, or client id and host as id@host; or the host
        group             string  the group of a member; NULL for a host
        groups            bigint  in how many groups
        sessions          bigint  how often it was a member
        ends              bigint  how often that ended
        evictions         bigint  of those: it was put out
        late              bigint  late heartbeats
        ends_in_hour_max  bigint  the most ends within an hour
        flapping          boolean whether there were three or more of those
        first_ms          bigint  the first of the ends
        last_ms           bigint  the last
        """
    ),
)

DEPLOYS: Final = Table(
    "gold",
    "deploys",
    "Rolling restarts: two members or more, half of the group or more, went and came back.",
    _columns(
        """
        group                 string  the group
        started_ms            bigint  when the first one went
        ended_ms              bigint  when the last one was back
        duration_ms           bigint  from the one to the other
        restarted             int     how many members came back as new processes
        members               int     how many there were as it began
        is_static             boolean whether they have a group.instance.id
        names                 array<string> their instance ids, or client ids
        rebalances            bigint  that began in that time
        moved                 bigint  partitions that moved in those
        bounced               bigint  of those: the old owner is still there
        unowned_partition_ms  bigint  partition-milliseconds without an owner in those
        """
    ),
)

FAILOVER_IMPACT: Final = Table(
    "gold",
    "failover_impact",
    "Each time a shard's groups went to another broker (or to the same one again), and what followed.",
    _columns(
        """
        shard                    int     which one
        at_ms                    bigint  when it was loaded
        broker                   int     by whom
        from_broker              int     who had it before
        epoch                    bigint  of its lease
        planned                  boolean whether the former one gave it up: else it died or lost its lease
        unavailable_ms           bigint  from when it was given up, or its broker was heard of last (at most)
        took_ms                  bigint  how long loading took
        groups                   int     how many groups it has
        rebalances_interrupted   bigint  that were under way in them
        rebalances_after         bigint  that began in them within 5 minutes
        members_lost             bigint  members that were not heard of since, and were put out
        """
    ),
)

SILVER: Final = (TRANSITIONS, REBALANCES, MEMBER_SESSIONS, OWNERSHIP, LAG_SAMPLES)
GOLD: Final = (
    CAUSES_PER_HOUR,
    GROUP_HEALTH,
    UNAVAILABILITY,
    COST_PER_CAUSE,
    FLAPPING,
    DEPLOYS,
    FAILOVER_IMPACT,
)
