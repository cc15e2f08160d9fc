"""`rebalances` without its diagnoses: one row for each rebalance, put together from its entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GATHERED: Final = """
SELECT shard, `group`, number,
    min_by(struct(*), offset) FILTER (WHERE is_start) AS start,
    min_by(struct(*), offset) FILTER (WHERE is_bound) AS first_bound,
    min(offset) FILTER (WHERE NOT is_after) AS first_offset,
    max(offset) FILTER (WHERE NOT is_after) AS end_offset,
    max_by(struct(*), offset) FILTER (WHERE type = 'rebalance_completed' AND NOT is_after) AS done,
    max_by(struct(offset, at_ms, to_state), offset)
        FILTER (WHERE to_state IN ('Stable', 'Empty') AND NOT is_after) AS settled,
    max_by(struct(offset, at_ms), offset)
        FILTER (WHERE NOT is_after AND (type IN ('shard_loaded', 'shard_unloaded') OR to_state = 'Dead'))
        AS broken,
    max_by(struct(offset, at_ms), offset)
        FILTER (WHERE to_state = 'CompletingRebalance' AND NOT is_after) AS joined,
    -- A journal may begin between a change of state and the assignment that belongs to it.
    max_by(struct(offset, at_ms, partitions, kept, moved, lost, moves, truncated,
            number = 0 AND bounds_before = 0 AS is_stray), offset)
        FILTER (WHERE type = 'assigned' AND NOT is_after) AS assigned,
    max(offset) FILTER (WHERE is_start) AS last_start,
    max_by(CASE to_state WHEN 'PreparingRebalance' THEN generation + 1 ELSE generation END, offset)
        FILTER (WHERE is_bound AND NOT is_after AND generation IS NOT NULL) AS generation,
    max_by(to_state, offset) FILTER (WHERE NOT is_after AND to_state IS NOT NULL) AS last_state,
    sort_array(collect_list(struct(offset, at_ms, coalesce(trigger, 'unknown') AS cause, member_id))
        FILTER (WHERE is_start)) AS starts,
    min_by(after_ms, offset) FILTER (WHERE type = 'all_synced' AND is_after) AS sync_ms,
    count_if(type = 'member_added' AND NOT is_after) AS added,
    count_if(type = 'member_removed' AND NOT is_after) AS removed,
    sort_array(collect_list(CASE
        WHEN type = 'member_removed' THEN struct(offset, member_id AS id,
            at_ms - IF(trigger = 'session expired', coalesce(silent_ms, 0), 0) AS stopped_ms)
        WHEN type = 'member_replaced' THEN struct(offset, old_member_id AS id,
            at_ms - coalesce(old_silent_ms, 0) AS stopped_ms)
        END) FILTER (WHERE NOT is_after)) AS gone,
    -- Who is still there works on until it rejoins.
    sort_array(collect_list(struct(offset, member_id AS id, at_ms))
        FILTER (WHERE type = 'member_rejoined' AND NOT is_after)) AS rejoined,
    sort_array(collect_list(committed_generation) FILTER (WHERE type = 'commit_refused')) AS refused
FROM {told}
GROUP BY shard, `group`, number
HAVING count_if(NOT is_after
    AND (to_state IN ('PreparingRebalance', 'CompletingRebalance') OR type = 'rebalance_completed')) > 0
"""

_MADE: Final = """
WITH seen AS (
    SELECT *,
        coalesce(start.offset, first_offset) AS start_offset,
        start IS NOT NULL AND (number > 0 OR start.from_state IN ('Stable', 'Empty', 'Dead'))
            AS began_in_sight,
        CASE
            WHEN start IS NOT NULL AND number > 0 THEN start.at_ms
            ELSE least(start.at_ms, done.started_ms,
                first_bound.at_ms - greatest(coalesce(first_bound.phase_ms, 0), 0))
        END AS began_ms,
        CASE
            WHEN done IS NOT NULL OR settled IS NOT NULL THEN 'completed'
            WHEN broken IS NOT NULL THEN 'interrupted'
            ELSE 'under way'
        END AS outcome,
        -- A rebalance that begins anew has neither any more.
        IF(joined.offset < last_start, NULL, joined) AS all_joined,
        IF(assigned.is_stray OR assigned.offset < last_start, NULL, assigned) AS last_assigned,
        coalesce(size(starts), 0) AS begun,
        coalesce(map_from_entries(transform(
            array_distinct(transform(gone, g -> g.id)),
            i -> struct(i, element_at(filter(gone, g -> g.id = i), -1).stopped_ms))), map()) AS stopped,
        last(IF(assigned IS NULL, NULL, struct(assigned.at_ms, assigned.moves)), true)
            OVER (PARTITION BY shard, `group` ORDER BY number
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS assigned_before,
        last(done.members, true)
            OVER (PARTITION BY shard, `group` ORDER BY number
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS members_then
    FROM {gathered}
), timed AS (
    SELECT *,
        -- `greatest` passes over NULL.
        CASE outcome
            WHEN 'completed' THEN greatest(coalesce(done.at_ms, settled.at_ms), began_ms)
            WHEN 'interrupted' THEN greatest(broken.at_ms, began_ms) END AS over_ms,
        coalesce(settled.to_state, CASE
            WHEN done.members = 0 THEN 'Empty' WHEN done IS NOT NULL THEN 'Stable' END, last_state)
            AS state_now
    FROM seen
), moved AS (
    SELECT *,
        -- From when nobody had it: its owner stopped, or the assignment before gave it to nobody (KIP-429).
        transform(last_assigned.moves, m -> named_struct('topic', m.topic, 'partition', m.partition,
            'from_member', m.from_member, 'to_member', m.to_member, 'since_ms', CASE
            WHEN m.from_member IS NOT NULL THEN coalesce(stopped[m.from_member],
                IF(m.to_member IS NULL, over_ms,
                    coalesce(get(filter(rejoined, r -> r.id = m.from_member), 0).at_ms, began_ms)))
            WHEN exists(assigned_before.moves, b -> b.topic = m.topic AND b.partition = m.partition
                AND b.from_member IS NOT NULL AND b.to_member IS NULL) THEN assigned_before.at_ms
            END)) AS all_moves
    FROM timed
), unowned AS (
    SELECT *,
        CASE WHEN over_ms IS NOT NULL AND state_now != 'Empty' THEN
            transform(filter(all_moves, m -> m.to_member IS NOT NULL AND m.since_ms IS NOT NULL),
                m -> greatest(over_ms - m.since_ms, 0))
        END AS unowned
    FROM moved
)
SELECT
    concat(shard, '-', start_offset) AS rebalance_id, `group`, shard, start_offset, end_offset, generation,
    outcome, state_now AS state, began_in_sight,
    start.from_state AS from_state, began_ms AS started_ms, over_ms AS ended_ms,
    over_ms - began_ms AS duration_ms,
    coalesce(IF(start IS NULL, done.trigger, start.trigger), 'unknown') AS cause,
    IF(start IS NULL, done.member_id, start.member_id) AS member_id,
    IF(start IS NULL, done.client_id, start.client_id) AS client_id,
    IF(start IS NULL, done.host, start.host) AS host,
    IF(start IS NULL, done.instance, start.instance) AS instance,
    IF(start IS NULL, done.reason, start.reason) AS reason,
    transform(starts, s -> named_struct('at_ms', s.at_ms, 'cause', s.cause, 'member_id', s.member_id))
        AS starts,
    int(greatest(begun - 1, coalesce(done.restarts, 0), 0)) AS restarts,
    coalesce(done.join_ms, IF(all_joined IS NOT NULL, greatest(all_joined.at_ms - began_ms, 0), NULL))
        AS join_ms,
    CASE WHEN all_joined IS NULL AND coalesce(done.assignment_ms, 0) = 0 THEN NULL
        WHEN done.assignment_ms IS NOT NULL THEN done.assignment_ms
        WHEN over_ms IS NOT NULL THEN greatest(over_ms - all_joined.at_ms, 0) END AS assignment_ms,
    sync_ms, done.slowest.id AS slowest_member_id, done.slowest_ms,
    int(IF(start.from_state = 'Empty', 0, members_then)) AS members_before, done.members AS members,
    int(added) AS added, int(removed) AS removed, int(size(done.dropped)) AS dropped,
    last_assigned.partitions, last_assigned.kept, last_assigned.moved, last_assigned.lost,
    int(size(filter(last_assigned.moves, m -> m.from_member IS NOT NULL AND m.to_member IS NOT NULL
        AND NOT array_contains(map_keys(stopped), m.from_member)))) AS bounced,
    all_moves AS moves, last_assigned.truncated,
    int(size(unowned)) AS unowned_partitions,
    aggregate(unowned, bigint(0), (sum, ms) -> sum + ms) AS unowned_partition_ms,
    array_max(unowned) AS unowned_max_ms,
    done.lag_before, done.lag, array_min(array_append(map_values(stopped), began_ms)) AS troubled_ms,
    int(size(filter(refused, g -> generation IS NULL OR coalesce(g, 0) < generation))) AS commits_refused,
    number
FROM unowned
"""

_LAG: Final = """
WITH begun AS (
    -- What is noted is the lag as it began: by then that of a member that fell silent has grown.
    SELECT * EXCEPT (lag_before), lag_before AS noted, troubled_ms < started_ms - 1000 AS silent
    FROM {made}
), earlier AS (
    -- Told within the hour before, and before the trouble began.
    SELECT r.rebalance_id, max_by(t.lag, t.offset) AS lag
    FROM (SELECT rebalance_id, `group`, shard, start_offset, started_ms, troubled_ms,
            explode(sequence((started_ms - 3600000) DIV 3600000, started_ms DIV 3600000)) AS hour
        FROM begun WHERE silent OR noted IS NULL) AS r
    JOIN (SELECT *, at_ms DIV 3600000 AS hour FROM {told}
        WHERE lag IS NOT NULL AND type IN ('lag_at_commit', 'rebalance_completed')) AS t
    ON t.`group` = r.`group` AND t.shard = r.shard AND t.hour = r.hour AND t.offset < r.start_offset
        AND t.at_ms BETWEEN r.started_ms - 3600000 AND r.troubled_ms
    GROUP BY r.rebalance_id
), known AS (
    -- The lesser of the two; what was not told before is taken from the note unless somebody was silent.
    SELECT b.*, IF(silent OR noted IS NULL, IF(e.lag IS NULL, NULL, least(e.lag, noted)), noted) AS lag_before
    FROM begun AS b LEFT JOIN earlier AS e ON b.rebalance_id = e.rebalance_id
), later AS (
    -- Told within ten minutes after its end, of the rebalances that follow as well.
    SELECT r.rebalance_id, sort_array(collect_list(struct(t.offset, t.at_ms, t.lag, t.type = 'lag_at_commit'
        AND t.number = r.number AS is_own, coalesce(t.recovered, false) AS is_recovered))) AS lags
    FROM (SELECT rebalance_id, `group`, shard, number, end_offset, ended_ms,
            explode(sequence((ended_ms - 600000) DIV 3600000, (ended_ms + 600000) DIV 3600000)) AS hour
        FROM begun WHERE ended_ms IS NOT NULL) AS r
    JOIN (SELECT *, at_ms DIV 3600000 AS hour FROM {told}
        WHERE lag IS NOT NULL AND type IN ('lag_at_commit', 'rebalance_completed')) AS t
    ON t.`group` = r.`group` AND t.shard = r.shard AND t.hour = r.hour AND t.offset > r.end_offset
        AND t.at_ms <= r.ended_ms + 600000
    GROUP BY r.rebalance_id
), watched AS (
    -- The first after ten seconds stands for the lag at its end where that is not known.
    SELECT k.* EXCEPT (lag), l.lags,
        coalesce(k.lag, get(filter(l.lags, s -> s.is_own AND s.at_ms <= k.ended_ms + 15000), 0).lag) AS lag
    FROM known AS k LEFT JOIN later AS l ON k.rebalance_id = l.rebalance_id
), followed AS (
    -- All but a tenth of its growth made up for is all: lag goes up and down with the commits. That it has
    -- recovered is said of the last rebalance.
    SELECT *, aggregate(coalesce(lags, array()), named_struct('peak', lag, 'back_ms', bigint(NULL)),
        (seen, l) -> IF(seen.back_ms IS NOT NULL, seen, named_struct(
            'peak', greatest(seen.peak, l.lag),
            'back_ms', IF(l.is_recovered AND l.is_own AND NOT silent
                OR coalesce(l.lag - lag_before
                    <= greatest(greatest(seen.peak, l.lag) - lag_before, 0) DIV 10, false),
                l.at_ms, NULL)))) AS seen
    FROM watched
)
SELECT * EXCEPT (lags, seen, noted, silent, troubled_ms),
    seen.peak AS lag_peak, seen.back_ms AS recovered_ms, seen.back_ms - ended_ms AS recovery_ms
FROM followed
"""


def assembled(told: DataFrame) -> DataFrame:
    """The rebalances that `cutting.cut` has numbered, with `number`, and without diagnoses."""
    session: Any = told.sparkSession
    gathered = session.sql(_GATHERED, told=told)
    made = session.sql(_MADE, gathered=gathered)
    found: DataFrame = session.sql(_LAG, made=made, told=told)
    return found
