"""Silver tables over time: member sessions, partition ownership, and lag samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.journal.tables import LAG_SAMPLES, MEMBER_SESSIONS, OWNERSHIP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SESSIONS: Final = """
WITH marks AS (
    SELECT `group`, shard, member_id, client_id, host, instance, offset, at_ms, 'began' AS mark,
        coalesce(former_member_id, old_member_id) AS former, type = 'member_replaced' AS took_over,
        NULL AS cause, false AS evicted, at_ms AS heard_ms
    FROM {transitions} WHERE type IN ('member_added', 'member_replaced')
    UNION ALL
    SELECT `group`, shard, member_id, client_id, host, instance, offset, at_ms, 'ended', NULL, false, trigger,
        trigger IN ('session expired', 'sync timed out', 'rebalance timed out', 'new member expired',
            'revocation timed out', 'group full', 'loaded with more members than allowed')
            OR requested_by IS NOT NULL,
        at_ms - IF(trigger = 'session expired', coalesce(silent_ms, 0), 0)
    FROM {transitions} WHERE type = 'member_removed'
    UNION ALL
    SELECT `group`, shard, old_member_id, client_id, coalesce(old_host, host), instance, offset, at_ms,
        'ended', NULL, false, 'static member returned', false, at_ms - coalesce(old_silent_ms, 0)
    FROM {transitions} WHERE type = 'member_replaced'
    UNION ALL
    SELECT `group`, shard, member_id, client_id, host, instance, offset, at_ms, 'late', NULL, false, NULL,
        false, at_ms
    FROM {transitions} WHERE type = 'heartbeat_late'
), lives AS (
    SELECT `group`, shard, member_id,
        min_by(client_id, offset) AS client_id, min_by(host, offset) AS host,
        min_by(instance, offset) AS instance,
        min_by(struct(*), offset) FILTER (WHERE mark = 'began') AS began,
        -- A broker that dies may take a removal with it.
        max_by(struct(*), offset) FILTER (WHERE mark = 'ended') AS ended,
        count_if(mark = 'late') AS late
    FROM marks WHERE member_id IS NOT NULL GROUP BY ALL
), line AS (
    -- Sorted side by side: pairs of all ends and all rebalances of a group would be too many.
    SELECT `group`, shard, member_id, ended.offset AS offset, ended.at_ms AS at_ms, NULL AS began
    FROM lives WHERE ended IS NOT NULL
    UNION ALL
    SELECT `group`, shard, NULL, start_offset, NULL,
        struct(start_offset, end_offset, started_ms, rebalance_id, member_id, instance, diagnosis)
    FROM {rebalances}
), placed AS (
    SELECT `group`, shard, member_id,
        CASE WHEN during.end_offset >= offset THEN during
            -- Who was removed in the step that began it is told just before.
            WHEN next.started_ms = at_ms THEN next END AS r
    FROM (SELECT *,
            last(began, true) OVER (PARTITION BY shard, `group` ORDER BY offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS during,
            last(began, true) OVER (PARTITION BY shard, `group` ORDER BY offset DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS next
        FROM line)
    WHERE member_id IS NOT NULL
)
SELECT l.`group`, l.shard, l.member_id, l.client_id, l.host, l.instance,
    l.began.at_ms AS joined_ms, l.ended.heard_ms AS last_heard_ms, l.ended.at_ms AS ended_ms,
    l.ended.at_ms - l.began.at_ms AS duration_ms, l.ended.cause AS end_cause,
    IF(p.r.member_id = l.member_id
            OR l.ended.cause = 'static member returned' AND p.r.instance = l.instance,
        p.r.diagnosis, NULL) AS end_diagnosis,
    IF(l.ended IS NULL, NULL, l.ended.evicted) AS evicted,
    l.began.former AS former_member_id, int(l.late) AS late, p.r.rebalance_id AS end_rebalance_id,
    coalesce(l.began.took_over, false) AS took_over
FROM lives AS l LEFT JOIN placed AS p
ON p.`group` = l.`group` AND p.shard = l.shard AND p.member_id = l.member_id
"""

_OWNERSHIP: Final = """
WITH changes AS (
    SELECT `group`, shard, start_offset, rebalance_id, ended_ms, inline(moves)
    FROM {rebalances} WHERE outcome = 'completed' AND moves IS NOT NULL
), spans AS (
    SELECT *, lead(since_ms) OVER next AS close_ms, lead(to_member IS NULL) OVER next AS is_released
    FROM changes
    WINDOW next AS (PARTITION BY `group`, topic, partition ORDER BY shard, start_offset)
), held AS (
    SELECT p.*, coalesce(s.instance, p.to_member) AS seat
    FROM spans AS p LEFT JOIN {sessions} AS s ON s.`group` = p.`group` AND s.member_id = p.to_member
    WHERE p.to_member IS NOT NULL
), split AS (
    -- A static member that comes back has what it had, under another id.
    SELECT h.`group`, h.topic, h.partition, coalesce(s.member_id, h.to_member) AS member_id, s.client_id,
        s.host, s.instance,
        IF(s.took_over AND s.member_id != h.to_member, greatest(s.joined_ms, h.ended_ms), h.ended_ms)
            AS from_ms,
        least(h.close_ms, s.last_heard_ms) AS until_ms, h.rebalance_id, h.since_ms,
        coalesce(h.is_released AND (s.last_heard_ms IS NULL OR h.close_ms <= s.last_heard_ms), false)
            AS is_released
    FROM held AS h LEFT JOIN {sessions} AS s
    ON s.`group` = h.`group` AND coalesce(s.instance, s.member_id) = h.seat
        AND (s.member_id = h.to_member OR s.took_over AND s.joined_ms > h.ended_ms
            AND (h.close_ms IS NULL OR s.joined_ms < h.close_ms))
)
-- Who stopped before it was given, or at once, had it for no time; what came before was over all the same.
SELECT * EXCEPT (until_ms), IF(until_ms < from_ms, from_ms, until_ms) AS until_ms FROM split
"""

_LAG_SAMPLES: Final = """
SELECT `group`, at_ms, offset, 'commit' AS source, lag, recovered, lags
FROM {transitions} WHERE type = 'lag_at_commit'
UNION ALL
SELECT `group`, started_ms, offset, 'rebalance-began', lag_before, NULL, NULL
FROM {transitions} WHERE type = 'rebalance_completed' AND lag_before IS NOT NULL
UNION ALL
SELECT `group`, at_ms, offset, 'rebalance-ended', lag, NULL, NULL
FROM {transitions} WHERE type = 'rebalance_completed' AND lag IS NOT NULL
"""


def sessions(transitions: DataFrame, rebalances: DataFrame) -> DataFrame:
    """The table `member_sessions` with one more column, `took_over`: whether it is a static member under a
    new id."""
    session: Any = transitions.sparkSession
    found: DataFrame = session.sql(_SESSIONS, transitions=transitions, rebalances=rebalances)
    return found


def member_sessions(sessions: DataFrame) -> DataFrame:
    """The table `member_sessions`."""
    return sessions.select(*MEMBER_SESSIONS.names)


def ownership(rebalances: DataFrame, sessions: DataFrame) -> DataFrame:
    """The table `ownership` with two more columns: `is_released`, whether it was taken away and given to
    nobody, and `since_ms`, since when it had no owner when it was assigned. `sessions` has `took_over`."""
    session: Any = rebalances.sparkSession
    found: DataFrame = session.sql(_OWNERSHIP, rebalances=rebalances, sessions=sessions)
    return found.select(*OWNERSHIP.names, "is_released", "since_ms")


def lag_samples(transitions: DataFrame) -> DataFrame:
    """The table `lag_samples`."""
    session: Any = transitions.sparkSession
    found: DataFrame = session.sql(_LAG_SAMPLES, transitions=transitions)
    return found.select(*LAG_SAMPLES.names)
