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
), parted AS (
    -- A member of a consumer group keeps its id when it comes back. It may also replace itself, in one entry.
    SELECT *, last(IF(mark = 'late', NULL, mark), true) OVER (
        PARTITION BY shard, `group`, member_id ORDER BY offset, mark DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM marks WHERE member_id IS NOT NULL
), numbered AS (
    SELECT *, max(IF(mark = 'began' AND before = 'ended', offset, 0)) OVER (
        PARTITION BY shard, `group`, member_id ORDER BY offset, mark DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS life
    FROM parted
), lives AS (
    SELECT `group`, shard, member_id, life,
        min_by(client_id, offset) AS client_id, min_by(host, offset) AS host,
        min_by(instance, offset) AS instance,
        min_by(struct(*), offset) FILTER (WHERE mark = 'began') AS began,
        -- A broker that dies may take a removal with it.
        max_by(struct(*), offset) FILTER (WHERE mark = 'ended') AS ended,
        count_if(mark = 'late') AS late
    FROM numbered GROUP BY ALL
), line AS (
    -- Sorted side by side: pairs of all ends and all rebalances of a group would be too many.
    SELECT `group`, shard, member_id, life, ended.offset AS offset, ended.at_ms AS at_ms, NULL AS began
    FROM lives WHERE ended IS NOT NULL
    UNION ALL
    SELECT `group`, shard, NULL, NULL, start_offset, NULL,
        struct(start_offset, end_offset, started_ms, rebalance_id, member_id, instance, diagnosis)
    FROM {rebalances}
), placed AS (
    SELECT `group`, shard, member_id, life,
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
    coalesce(l.began.took_over, false) AS took_over, l.life, coalesce(l.instance, l.member_id) AS seat,
    row_number() OVER (PARTITION BY l.`group`, coalesce(l.instance, l.member_id)
        ORDER BY l.shard, l.began.offset, l.ended.offset NULLS LAST) AS turn
FROM lives AS l LEFT JOIN placed AS p
ON p.`group` = l.`group` AND p.shard = l.shard AND p.member_id = l.member_id AND p.life = l.life
"""

_OWNERSHIP: Final = """
WITH changes AS (
    SELECT `group`, shard, start_offset, end_offset, rebalance_id, started_ms, ended_ms, inline(moves)
    FROM {rebalances} WHERE outcome = 'completed' AND moves IS NOT NULL
), spans AS (
    -- Since when the next one had it from nobody, or from this one, is not always known.
    SELECT *, lead(coalesce(since_ms, IF(from_member IS NULL, started_ms, ended_ms))) OVER next AS close_ms,
        lead(to_member IS NULL) OVER next AS is_released
    FROM changes
    WINDOW next AS (PARTITION BY `group`, topic, partition ORDER BY shard, start_offset)
), given AS (
    -- Sorted side by side, here and below: pairs of all spans and all lives of a member would be too many.
    SELECT `group`, shard, member_id, life AS offset, struct(seat, turn) AS life, NULL AS span
    FROM {sessions}
    UNION ALL
    SELECT `group`, shard, to_member, end_offset, NULL, struct(*) FROM spans WHERE to_member IS NOT NULL
), held AS (
    SELECT span.*, life.seat, life.turn
    FROM (SELECT span, last(life, true) OVER (
            PARTITION BY shard, `group`, member_id ORDER BY offset, span IS NOT NULL
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS life
        FROM given)
    WHERE span IS NOT NULL
), seats AS (
    SELECT `group`, seat, joined_ms AS ms, turn, NULL AS span FROM {sessions}
    UNION ALL
    SELECT `group`, seat, coalesce(close_ms, 9223372036854775807), NULL, struct(*) FROM held
), spread AS (
    SELECT span.*, explode_outer(sequence(span.turn, greatest(span.turn, last_turn))) AS at_turn
    FROM (SELECT span, max(turn) OVER (PARTITION BY `group`, seat ORDER BY ms, span IS NULL
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS last_turn
        FROM seats)
    WHERE span IS NOT NULL
), split AS (
    -- A static member that comes back has what it had, under another id; and so has a member that comes back
    -- under its own before that was given to another.
    SELECT h.`group`, h.topic, h.partition, coalesce(s.member_id, h.to_member) AS member_id, s.client_id,
        s.host, s.instance,
        IF(h.at_turn > h.turn, greatest(s.joined_ms, h.ended_ms), h.ended_ms) AS from_ms,
        least(h.close_ms, s.last_heard_ms) AS until_ms, h.rebalance_id, h.since_ms,
        coalesce(h.is_released AND (s.last_heard_ms IS NULL OR h.close_ms <= s.last_heard_ms), false)
            AS is_released
    FROM spread AS h LEFT JOIN {sessions} AS s
    ON s.`group` = h.`group` AND s.seat = h.seat AND s.turn = h.at_turn
    WHERE h.at_turn IS NULL OR h.at_turn = h.turn OR s.took_over OR s.member_id = h.to_member
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
    """The table `member_sessions` with more columns: `took_over`, whether it took over from a static member;
    `life`, the offset from which on the member id means this row, 0 for its first; and `turn`, its number
    among the rows with the same `seat`: the instance or, without one, the member id."""
    session: Any = transitions.sparkSession
    found: DataFrame = session.sql(_SESSIONS, transitions=transitions, rebalances=rebalances)
    return found


def member_sessions(sessions: DataFrame) -> DataFrame:
    """The table `member_sessions`."""
    return sessions.select(*MEMBER_SESSIONS.names)


def ownership(rebalances: DataFrame, sessions: DataFrame) -> DataFrame:
    """The table `ownership` with two more columns: `is_released`, whether it was taken away and given to
    nobody, and `since_ms`, since when it had no owner when it was assigned. `sessions` is what the function
    `sessions` returns."""
    session: Any = rebalances.sparkSession
    found: DataFrame = session.sql(_OWNERSHIP, rebalances=rebalances, sessions=sessions)
    return found.select(*OWNERSHIP.names, "is_released", "since_ms")


def lag_samples(transitions: DataFrame) -> DataFrame:
    """The table `lag_samples`."""
    session: Any = transitions.sparkSession
    found: DataFrame = session.sql(_LAG_SAMPLES, transitions=transitions)
    return found.select(*LAG_SAMPLES.names)
