"""The tables made from the journal: columns, Spark types, and what each column says.

Silver says what happened, gold answers questions. Everything here is plain data: it needs no Spark.

Points in time (`at_ms`, `started_ms`, ...) are milliseconds since 1970, other `_ms` are durations. NULL means
"not known" or "not yet", never zero. `rebalance_id` and `group` join silver and gold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RATE_MIN_MS: Final = 55 * 60_000
"""Hourly rates are given only for about an hour and more: less time says nothing about them."""


class Column(NamedTuple):
    """A column; `type` is in Spark's DDL."""

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
        """Its schema as Spark DDL."""
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
    """Parse a line for each column: name, type (without spaces), what it says."""
    lines = (line.split(None, 2) for line in text.strip().splitlines())
    return tuple(Column(name, type, about.strip()) for name, type, about in lines)


BRONZE: Final = Table(
    "bronze",
    "events",
    "The records of __group_events, unchanged: the source's columns that the tables need.",
    _columns(
        """
        key        binary     the group id; NULL for entries about a whole shard
        value      binary     one JSON object
        partition  int        the topic's partition: one per shard of groups
        offset     bigint     orders what happened to a group
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
    "Every entry of the journal, typed. Columns that an entry's type does not have are NULL.",
    _columns(
        f"""
        shard                  int     the shard of the group: the journal's partition
        offset                 bigint  the entry's offset in that partition
        at_ms                  bigint  when
        type                   string  what happened, as docs/journal.md lists it
        broker                 int     node id of the broker that wrote it
        group                  string  the group; NULL for entries about a whole shard
        generation             int     the group's generation right after it
        trigger                string  what caused it
        reason                 string  the reason that the client gave
        {_WHO.strip()}
        from_state             string  state_changed
        to_state               string  state_changed
        phase_ms               bigint  state_changed: how long the group was in from_state
        after_ms               bigint  member_rejoined, all_synced
        late_ms                bigint  heartbeat_late: how long it had been silent
        silent_ms              bigint  member_removed, member_disconnected: time since it was last heard from
        connected              boolean member_removed: whether its connection was still open
        disconnected_ms        bigint  member_removed: time since its connection closed
        late                   int     member_removed: its late heartbeats in the ten minutes before
        after_removal_ms       bigint  member_disconnected: time since it was removed
        heartbeat_interval_ms  bigint  the interval between its heartbeats, as observed
        session_timeout_ms     bigint  the member's session timeout
        requested_by           {MEMBER} member_removed: who requested it on another connection
        former_member_id       string  member_added, member_id_issued: who used the connection before
        old_member_id          string  member_replaced, member_fenced, leader_changed
        old_host               string  member_replaced, member_fenced: the old one's host
        old_silent_ms          bigint  member_replaced
        old_connected          boolean member_replaced
        topics_added           array<string> metadata_changed
        topics_removed         array<string> metadata_changed
        protocols_before       array<string> metadata_changed
        protocols_after        array<string> metadata_changed
        owned_changed          boolean metadata_changed
        protocol               string  protocol_chosen, assigned
        partitions             int     assigned: partitions with an owner; commit_refused: partitions it named
        kept                   int     assigned
        moved                  int     assigned
        lost                   int     assigned
        moves                  {MOVES} assigned: partitions that changed owners; at most 1,000
        truncated              boolean assigned: whether moves is incomplete
        started_ms             bigint  rebalance_completed
        join_ms                bigint  rebalance_completed
        assignment_ms          bigint  rebalance_completed
        restarts               int     rebalance_completed
        members                int     rebalance_completed: members now
        dropped                array<{MEMBER}> rebalance_completed: who did not rejoin in time; at most 100
        slowest                {MEMBER} rebalance_completed: the member that took longest to join
        slowest_ms             bigint  rebalance_completed: how long that took
        lag_before             bigint  rebalance_completed
        lag                    bigint  rebalance_completed, lag_at_commit: records behind
        lags                   {LAGS}  lag_at_commit: by partition, the largest lag first; at most 100
        recovered              boolean lag_at_commit: whether the lag is back to what it was
        error                  string  commit_refused, join_refused
        committed_generation   int     commit_refused: the generation it was sent with
        epoch                  bigint  shard_loaded, shard_unloaded
        from_broker            int     shard_loaded: its previous broker
        from_silent_ms         bigint  shard_loaded: time since that one was last heard from
        took_ms                bigint  shard_loaded
        groups                 int     shard_loaded: groups in the shard
        """
    ),
)

REBALANCES: Final = Table(
    "silver",
    "rebalances",
    "One row per rebalance, from PreparingRebalance or a new epoch to Stable or Empty, with its restarts.",
    _columns(
        f"""
        rebalance_id          string  shard and offset of its first start; never changes
        group                 string  the group
        type                  string  the group's type at the end, or now: classic or consumer
        shard                 int     the journal's partition
        start_offset          bigint  of the entry that began it, or of the first one that is known
        end_offset            bigint  of the last entry that belongs to it
        generation            int     the generation that it led to, or will lead to
        outcome               string  completed, under way, or interrupted (coordinator moved, or group gone)
        state                 string  the group's state at the end, or now: Stable, Empty, ...
        began_in_sight        boolean whether the journal has its start
        from_state            string  the group's state before it
        started_ms            bigint  when it began
        ended_ms              bigint  when it ended; NULL: it has not
        duration_ms           bigint  from start to end
        cause                 string  the cause that the coordinator recorded, or unknown
        diagnosis             string  inferred, as in docs/why.md: crashed, stalled, new-member, ...
        certainty             string  certain, likely or possible
        {_WHO.strip()}
        reason                string  the reason that this member gave
        starts                {STARTS} what started and restarted it, in order
        restarts              int     how often it restarted
        join_ms               bigint  time waiting for JoinGroups
        assignment_ms         bigint  then for the leader's assignment; NULL if the group became Empty
        sync_ms               bigint  then until every member had asked for its assignment
        target_ms             bigint  consumer groups: time waiting for a target assignment, in all epochs
        reconcile_ms          bigint  then for members to have what it assigns, in all epochs
        slowest_member_id     string  the member that took longest to join
        slowest_ms            bigint  how long that took
        members_before        int     members at the end of the previous rebalance
        members               int     members at the end
        added                 int     members that joined during it
        removed               int     members that left during it, including those dropped
        dropped               int     members that did not rejoin in time
        partitions            int     partitions with an owner at the end
        kept                  int     partitions that kept their owner
        moved                 int     partitions that another member owned before
        lost                  int     partitions that had an owner and have none now
        bounced               int     partitions that moved although the old owner is still a member
        moves                 {MOVES_SINCE} partitions that changed owners, and since when they had none
        truncated             boolean whether moves, and so bounced and unowned, is incomplete
        unowned_partitions    int     partitions that had no owner for a time and have one now
        unowned_partition_ms  bigint  how long, summed over these: partition-milliseconds
        unowned_max_ms        bigint  the longest of these times
        lag_before            bigint  lag in records at its start
        lag                   bigint  lag in records at its end
        lag_peak              bigint  the largest lag until it recovered, within ten minutes of its end
        recovered_ms          bigint  when the lag was back to what it was, within ten minutes of its end
        recovery_ms           bigint  how long after its end that was
        commits_refused       int     commits refused because they named generations that it ended
        near_misses           int     the member's late heartbeats in the ten minutes before
        """
    ),
)

MEMBER_SESSIONS: Final = Table(
    "silver",
    "member_sessions",
    "One row per membership. A member that comes back, under a new member id or its own, starts a new row.",
    _columns(
        f"""
        group             string  the group
        shard             int     the journal's partition
        {_WHO.strip()}
        joined_ms         bigint  when it joined; NULL: before the journal begins
        last_heard_ms     bigint  when it was last heard from, as of its end; NULL: it is still a member
        ended_ms          bigint  when it was removed or replaced; NULL: it is still a member
        duration_ms       bigint  from joined_ms to ended_ms
        end_cause         string  trigger of its removal, or "static member returned" if it was replaced
        end_diagnosis     string  as in docs/why.md, if its end began a rebalance
        evicted           boolean whether it was evicted; false: it left, or was replaced
        former_member_id  string  the member id that it had before, if known
        late              int     number of late heartbeats
        end_rebalance_id  string  the rebalance in which it ended
        """
    ),
)

OWNERSHIP: Final = Table(
    "silver",
    "ownership",
    "Who owned which partition from when to when. Between two rows of a partition it had no owner.",
    _columns(
        f"""
        group         string  the group
        topic         string  the topic
        partition     int     its number
        {_WHO.strip()}
        from_ms       bigint  end of the rebalance that assigned it
        until_ms      bigint  when the owner stopped, or rejoined and lost it; NULL: still the owner
        rebalance_id  string  the rebalance that assigned it
        """
    ),
)

LAG_SAMPLES: Final = Table(
    "silver",
    "lag_samples",
    "The lag of groups over time.",
    _columns(
        f"""
        group      string  the group
        at_ms      bigint  when
        offset     bigint  offset of the journal's entry
        source     string  commit, rebalance-began or rebalance-ended
        lag        bigint  total lag in records
        recovered  boolean commit: the first after a rebalance with the lag back to what it was
        lags       {LAGS}  commit: by partition, the largest lag first; at most 100
        """
    ),
)

_COST: Final = """
        p50_ms                double  median duration of finished rebalances
        p95_ms                double  95th percentile
        max_ms                bigint  the longest
        moved                 bigint  partitions that another member owned before
        bounced               bigint  of those, partitions whose old owner is still a member
        unowned_partition_ms  bigint  partition-milliseconds without an owner
"""

CAUSES_PER_HOUR: Final = Table(
    "gold",
    "causes_per_hour",
    "How often groups rebalanced in each hour, why, and how long it took.",
    _columns(
        f"""
        hour                  timestamp the hour in which they began
        cause                 string  what the coordinator recorded
        diagnosis             string  the inferred reason
        rebalances            bigint  number of rebalances
        groups                bigint  number of groups concerned
        {_COST.strip()}
        """
    ),
)

GROUP_HEALTH: Final = Table(
    "gold",
    "group_health",
    "Each group, over everything that the journal has about it.",
    _columns(
        f"""
        group                 string  the group
        first_ms              bigint  its first entry
        last_ms               bigint  the journal's last entry, of any group
        state                 string  its state at the end
        members               int     members after its last rebalance
        rebalances            bigint  number of rebalances, including one under way
        under_way             boolean whether one is under way
        under_way_ms          bigint  for how long; NULL: none is
        hanging               boolean whether it has been under way for more than five minutes
        generations_per_hour  double  finished rebalances per hour; NULL: less than about an hour of data
        stable_share          double  share of the time with members in which it was Stable, 0 to 1
        evictions             bigint  members evicted
        near_misses           bigint  late heartbeats
        commits_refused       bigint  refused commits; their records are delivered again
        top_diagnosis         string  the most frequent diagnosis of its rebalances
        top_diagnosis_share   double  that diagnosis's share of its rebalances, 0 to 1
        {_COST.strip()}
        """
    ),
)

UNAVAILABILITY: Final = Table(
    "gold",
    "unavailability",
    "Every time span in which a partition that a group reads had no owner, including current ones.",
    _columns(
        """
        group         string  the group
        topic         string  the topic
        partition     int     its number
        from_ms       bigint  when its owner stopped
        until_ms      bigint  when it had an owner again; NULL: it has none
        gap_ms        bigint  how long that was
        from_member   string  member id of the old owner
        to_member     string  member id of the new owner
        rebalance_id  string  the rebalance that assigned it again
        diagnosis     string  that rebalance's diagnosis
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
        diagnosis             string  the inferred reason
        rebalances            bigint  number of rebalances
        groups                bigint  number of groups concerned
        {_COST.strip()}
        duration_ms           bigint  total duration
        lag_growth            bigint  records by which lag grew during them, where known
        lag_known             bigint  rebalances with known lag before and after
        recovered             bigint  of those, how many whose lag was seen back to what it was
        recovery_p50_ms       double  median time that took, from the end of the rebalance
        recovery_p95_ms       double  95th percentile
        recovery_max_ms       bigint  the longest
        commits_refused       bigint  refused commits; their records are delivered again
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
        groups            bigint  number of groups
        sessions          bigint  number of memberships
        ends              bigint  how many of these ended
        evictions         bigint  of those, how many by eviction
        late              bigint  late heartbeats
        ends_in_hour_max  bigint  the most ends within one hour
        flapping          boolean whether there were three or more
        first_ms          bigint  the first end
        last_ms           bigint  the last end
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
        started_ms            bigint  when the first member left
        ended_ms              bigint  when the last one was back
        duration_ms           bigint  from start to end
        restarted             int     members that came back as new processes
        members               int     members when it began
        is_static             boolean whether they are static members
        names                 array<string> their instance ids, or client ids
        rebalances            bigint  rebalances that began during it
        moved                 bigint  partitions that moved in these
        bounced               bigint  of those, partitions whose old owner is still a member
        unowned_partition_ms  bigint  partition-milliseconds without an owner in these
        """
    ),
)

FAILOVER_IMPACT: Final = Table(
    "gold",
    "failover_impact",
    "Each time a shard's groups went to another broker (or to the same one again), and what followed.",
    _columns(
        """
        shard                    int     the shard's number
        at_ms                    bigint  when it was loaded
        broker                   int     the broker that loaded it
        from_broker              int     the broker that had it before
        epoch                    bigint  epoch of its lease
        planned                  boolean whether the old broker gave it up; false: it died, or lost its lease
        unavailable_ms           bigint  from when it was given up, or its broker last heard from (at most)
        took_ms                  bigint  how long loading took
        groups                   int     groups in the shard
        rebalances_interrupted   bigint  rebalances that were under way in these groups
        rebalances_after         bigint  rebalances that began in these groups within 5 minutes
        members_lost             bigint  members that were not heard from again, and were evicted
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
