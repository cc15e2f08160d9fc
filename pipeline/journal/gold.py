"""Gold tables: answers computed from the silver ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.journal import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_MS: Final = 3_600_000
_APART_MS: Final = 10 * 60_000
"""The longest time between restarts of one deploy."""
_AFTER_MS: Final = 5 * 60_000
"""Rebalances that begin within this time after a failover are counted with it."""
_FLAPPING_ENDS: Final = 3
_HANGING_MS: Final = 5 * 60_000
"""A rebalance under way for longer is hanging: this is the default of max.poll.interval.ms."""

_COST: Final = """
    percentile(duration_ms, 0.5) AS p50_ms, percentile(duration_ms, 0.95) AS p95_ms,
    max(duration_ms) AS max_ms, coalesce(sum(moved), 0) AS moved, coalesce(sum(bounced), 0) AS bounced,
    coalesce(sum(unowned_partition_ms), 0) AS unowned_partition_ms
"""

_CAUSES_PER_HOUR: Final = f"""
SELECT timestamp_millis(started_ms DIV {_HOUR_MS} * {_HOUR_MS}) AS hour, cause, diagnosis,
    count(*) AS rebalances, count(DISTINCT `group`) AS groups, {_COST}
FROM {{rebalances}} GROUP BY 1, 2, 3
"""

_COST_PER_CAUSE: Final = f"""
SELECT cause, diagnosis, count(*) AS rebalances, count(DISTINCT `group`) AS groups, {_COST},
    coalesce(sum(duration_ms), 0) AS duration_ms,
    coalesce(sum(greatest(lag - lag_before, 0)), 0) AS lag_growth,
    count_if(lag IS NOT NULL AND lag_before IS NOT NULL) AS lag_known,
    count(recovered_ms) AS recovered,
    percentile(recovery_ms, 0.5) AS recovery_p50_ms, percentile(recovery_ms, 0.95) AS recovery_p95_ms,
    max(recovery_ms) AS recovery_max_ms,
    coalesce(sum(commits_refused), 0) AS commits_refused
FROM {{rebalances}} GROUP BY cause, diagnosis
"""

_GROUP_HEALTH: Final = f"""
WITH known AS (
    SELECT `group`, min(at_ms) AS first_ms, count_if(type = 'heartbeat_late') AS near_misses,
        count_if(type = 'commit_refused') AS commits_refused,
        max_by(struct(to_state, at_ms), struct(shard, offset)) FILTER (WHERE type = 'state_changed') AS last
    FROM {{transitions}} WHERE `group` IS NOT NULL GROUP BY `group`
), clock AS (
    SELECT max(at_ms) AS now_ms FROM {{transitions}}
), phases AS (
    SELECT `group`, from_state AS state, phase_ms AS ms FROM {{transitions}} WHERE type = 'state_changed'
    UNION ALL
    SELECT `group`, last.to_state, now_ms - last.at_ms FROM known CROSS JOIN clock
), shares AS (
    SELECT `group`, try_divide(sum(ms) FILTER (WHERE state = 'Stable'),
        sum(ms) FILTER (WHERE state NOT IN ('Empty', 'Dead'))) AS stable_share
    FROM phases GROUP BY `group`
), costs AS (
    SELECT `group`, count(*) AS rebalances, bool_or(outcome = 'under way') AS under_way,
        max(started_ms) FILTER (WHERE outcome = 'under way') AS open_ms, {_COST},
        count(ended_ms) AS over, max_by(members, struct(shard, start_offset))
            FILTER (WHERE members IS NOT NULL) AS members
    FROM {{rebalances}} GROUP BY `group`
), tops AS (
    SELECT `group`, max_by(struct(diagnosis, times), struct(times, diagnosis)) AS top
    FROM (SELECT `group`, diagnosis, count(*) AS times FROM {{rebalances}} GROUP BY ALL) GROUP BY `group`
), evictions AS (
    SELECT `group`, count_if(evicted) AS evictions FROM {{sessions}} GROUP BY `group`
)
SELECT k.`group`, k.first_ms, now_ms AS last_ms, k.last.to_state AS state, c.members,
    coalesce(c.rebalances, 0) AS rebalances, coalesce(c.under_way, false) AS under_way,
    now_ms - c.open_ms AS under_way_ms, coalesce(now_ms - c.open_ms > {_HANGING_MS}, false) AS hanging,
    IF(now_ms - k.first_ms >= {tables.RATE_MIN_MS},
        coalesce(c.over, 0) * {_HOUR_MS} / (now_ms - k.first_ms), NULL) AS generations_per_hour,
    s.stable_share, coalesce(e.evictions, 0) AS evictions, k.near_misses, k.commits_refused,
    t.top.diagnosis AS top_diagnosis, t.top.times / c.rebalances AS top_diagnosis_share,
    c.p50_ms, c.p95_ms, c.max_ms, coalesce(c.moved, 0) AS moved, coalesce(c.bounced, 0) AS bounced,
    coalesce(c.unowned_partition_ms, 0) AS unowned_partition_ms
FROM known AS k CROSS JOIN clock
LEFT JOIN shares AS s ON s.`group` = k.`group`
LEFT JOIN costs AS c ON c.`group` = k.`group`
LEFT JOIN tops AS t ON t.`group` = k.`group`
LEFT JOIN evictions AS e ON e.`group` = k.`group`
"""

_UNAVAILABILITY: Final = """
WITH next AS (
    SELECT `group`, topic, partition, member_id, until_ms, rebalance_id AS this,
        is_released,
        lead(struct(from_ms, member_id, rebalance_id, since_ms)) OVER (
            PARTITION BY `group`, topic, partition ORDER BY from_ms, until_ms NULLS LAST) AS next,
        (SELECT max(at_ms) FROM {transitions}) AS now_ms
    FROM {owned}
), gaps AS (
    -- From the assignment on that gave it to nobody, as in `rebalances`: its owner may have gone before.
    SELECT *, IF(is_released, next.since_ms, until_ms) AS begun_ms FROM next
    -- What was given up, and not withheld from one for another, nobody subscribed to.
    WHERE NOT (is_released AND next.since_ms IS NULL)
)
SELECT n.`group`, n.topic, n.partition, n.begun_ms AS from_ms, n.next.from_ms AS until_ms,
    coalesce(n.next.from_ms, n.now_ms) - n.begun_ms AS gap_ms, n.member_id AS from_member,
    n.next.member_id AS to_member, r.rebalance_id, r.diagnosis
FROM gaps AS n LEFT JOIN {rebalances} AS r
ON r.rebalance_id = n.next.rebalance_id AND n.next.rebalance_id != n.this
WHERE n.begun_ms IS NOT NULL AND (n.next IS NULL OR n.next.from_ms > n.begun_ms)
"""

_FLAPPING: Final = f"""
WITH named AS (
    SELECT 'member' AS kind, coalesce(instance, concat(client_id, '@', host)) AS name, `group` AS owner, *
    FROM {{sessions}}
    UNION ALL
    SELECT 'host', host, NULL, * FROM {{sessions}}
), hours AS (
    SELECT *, count(ended_ms) OVER (
        PARTITION BY kind, name, owner ORDER BY ended_ms
        RANGE BETWEEN {_HOUR_MS} PRECEDING AND CURRENT ROW) AS in_hour
    FROM named
)
SELECT kind, name, owner AS `group`, count(DISTINCT `group`) AS groups, count(*) AS sessions,
    count(ended_ms) AS ends, count_if(evicted) AS evictions, sum(late) AS late,
    max(IF(ended_ms IS NULL, 0, in_hour)) AS ends_in_hour_max,
    max(IF(ended_ms IS NULL, 0, in_hour)) >= {_FLAPPING_ENDS} AS flapping,
    min(ended_ms) AS first_ms, max(ended_ms) AS last_ms
FROM hours GROUP BY kind, name, owner
"""

_DEPLOYS: Final = f"""
WITH turns AS (
    SELECT `group`, coalesce(instance, client_id) AS name, instance IS NOT NULL AS is_static, member_id,
        ended_ms, end_cause, coalesce(last_heard_ms, ended_ms) AS went_ms,
        lead(struct(joined_ms, member_id, former_member_id, took_over)) OVER (
            PARTITION BY `group`, coalesce(instance, client_id), instance IS NOT NULL
            ORDER BY coalesce(joined_ms, 0), ended_ms) AS next
    FROM {{sessions}}
), restarts AS (
    SELECT *, next.joined_ms AS back_ms FROM turns
    WHERE ended_ms IS NOT NULL AND next.joined_ms BETWEEN ended_ms AND ended_ms + {_APART_MS}
        -- A static member says nothing as it stops; one that joins again over its old connection did not.
        AND (is_static AND end_cause IN ('static member returned', 'session expired')
            OR NOT is_static AND end_cause = 'member left')
        AND next.member_id != member_id
        AND (next.took_over OR next.former_member_id IS DISTINCT FROM member_id)
), islands AS (
    SELECT *, count_if(starts) OVER (PARTITION BY `group`, is_static ORDER BY went_ms, member_id) AS island
    FROM (SELECT *, coalesce(went_ms - max(back_ms) OVER (PARTITION BY `group`, is_static
            ORDER BY went_ms, member_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > {_APART_MS}, true)
            AS starts
        FROM restarts)
), deploys AS (
    SELECT `group`, is_static, island, min(went_ms) AS started_ms, max(back_ms) AS ended_ms,
        sort_array(collect_set(name)) AS names, int(count(DISTINCT member_id)) AS turns
    FROM islands GROUP BY ALL
), line AS (
    -- Sorted side by side: what a deploy cost is what came to the sums between its beginning and its end.
    SELECT `group`, ended_ms AS ms, 0 AS turn, members, 0 AS rebalances, 0 AS moved, 0 AS bounced,
        0 AS unowned_partition_ms, NULL AS deploy
    FROM {{rebalances}} WHERE ended_ms IS NOT NULL
    UNION ALL SELECT `group`, started_ms, 1, NULL, 0, 0, 0, 0, struct(is_static, island) FROM deploys
    UNION ALL SELECT `group`, started_ms, 2, NULL, 1, coalesce(moved, 0), coalesce(bounced, 0),
        coalesce(unowned_partition_ms, 0), NULL FROM {{rebalances}}
    UNION ALL SELECT `group`, ended_ms, 3, NULL, 0, 0, 0, 0, struct(is_static, island) FROM deploys
), sums AS (
    SELECT `group`, turn, deploy, last(members, true) OVER until AS members,
        sum(rebalances) OVER until AS rebalances, sum(moved) OVER until AS moved,
        sum(bounced) OVER until AS bounced, sum(unowned_partition_ms) OVER until AS unowned_partition_ms
    FROM line
    WINDOW until AS (
        PARTITION BY `group` ORDER BY ms, turn ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), costs AS (
    SELECT `group`, deploy, max(members) FILTER (WHERE turn = 1) AS members,
        max(rebalances) - min(rebalances) AS rebalances, max(moved) - min(moved) AS moved,
        max(bounced) - min(bounced) AS bounced,
        max(unowned_partition_ms) - min(unowned_partition_ms) AS unowned_partition_ms
    FROM sums WHERE deploy IS NOT NULL GROUP BY `group`, deploy
), sized AS (
    SELECT d.*, c.* EXCEPT (`group`, deploy)
    FROM deploys AS d JOIN costs AS c
    ON c.`group` = d.`group` AND c.deploy.is_static = d.is_static AND c.deploy.island = d.island
)
SELECT *, ended_ms - started_ms AS duration_ms, int(size(names)) AS restarted
FROM sized WHERE size(names) >= 2 AND (members IS NULL OR 2 * size(names) >= members)
"""

_FAILOVER_IMPACT: Final = f"""
WITH shards AS (
    SELECT *, lag(struct(type, at_ms, offset, broker)) OVER (PARTITION BY shard ORDER BY offset) AS before
    FROM {{transitions}} WHERE type IN ('shard_loaded', 'shard_unloaded')
), loads AS (
    SELECT s.*, s.before.type = 'shard_unloaded' AS planned
    FROM shards AS s JOIN (SELECT shard, min(offset) AS first FROM {{transitions}} GROUP BY shard) AS f
    ON f.shard = s.shard
    WHERE s.type = 'shard_loaded' AND (s.from_broker IS NOT NULL OR s.offset > f.first)
), interrupted AS (
    SELECT l.shard, l.offset, count(*) AS rebalances_interrupted
    FROM (SELECT shard, offset, explode(IF(planned, array(offset, before.offset), array(offset))) AS at
        FROM loads) AS l
    JOIN {{rebalances}} AS r ON r.shard = l.shard AND r.end_offset = l.at AND r.outcome = 'interrupted'
    GROUP BY ALL
), followed AS (
    SELECT l.shard, l.offset, count(*) AS rebalances_after
    FROM (SELECT *, explode(sequence(at_ms DIV {_AFTER_MS}, at_ms DIV {_AFTER_MS} + 1)) AS slot
        FROM loads) AS l
    JOIN {{rebalances}} AS r ON r.shard = l.shard AND r.started_ms DIV {_AFTER_MS} = l.slot
        AND r.started_ms BETWEEN l.at_ms AND l.at_ms + {_AFTER_MS} AND r.start_offset > l.offset
    GROUP BY ALL
), told AS (
    -- Of each member that was put out unheard of: the load before.
    SELECT *, last(IF(type = 'member_removed', NULL, struct(type, offset, at_ms)), true) OVER (
        PARTITION BY shard ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS load
    FROM {{transitions}}
    WHERE type IN ('shard_loaded', 'shard_unloaded') OR type = 'member_removed'
        AND trigger = 'session expired' AND disconnected_ms IS NULL AND connected IS DISTINCT FROM true
), lost AS (
    SELECT shard, load.offset, count(*) AS members_lost FROM told
    WHERE type = 'member_removed' AND load.type = 'shard_loaded' AND at_ms - silent_ms <= load.at_ms + 1000
    GROUP BY ALL
)
SELECT l.shard, l.at_ms, l.broker, coalesce(l.from_broker, l.before.broker) AS from_broker, l.epoch,
    coalesce(l.planned, false) AS planned,
    IF(l.planned, l.at_ms - l.before.at_ms, l.from_silent_ms) AS unavailable_ms,
    l.took_ms, l.groups, coalesce(i.rebalances_interrupted, 0) AS rebalances_interrupted,
    coalesce(f.rebalances_after, 0) AS rebalances_after, coalesce(x.members_lost, 0) AS members_lost
FROM loads AS l
LEFT JOIN interrupted AS i ON i.shard = l.shard AND i.offset = l.offset
LEFT JOIN followed AS f ON f.shard = l.shard AND f.offset = l.offset
LEFT JOIN lost AS x ON x.shard = l.shard AND x.offset = l.offset
"""


def gold(silver: dict[str, DataFrame], sessions: DataFrame, owned: DataFrame) -> dict[str, DataFrame]:
    """All gold tables by name, from the silver ones by name, and the results of `lives.sessions` and
    `lives.ownership`."""
    queries = {
        tables.CAUSES_PER_HOUR: _CAUSES_PER_HOUR,
        tables.GROUP_HEALTH: _GROUP_HEALTH,
        tables.UNAVAILABILITY: _UNAVAILABILITY,
        tables.COST_PER_CAUSE: _COST_PER_CAUSE,
        tables.FLAPPING: _FLAPPING,
        tables.DEPLOYS: _DEPLOYS,
        tables.FAILOVER_IMPACT: _FAILOVER_IMPACT,
    }
    spark: Any = sessions.sparkSession
    given = {**silver, "sessions": sessions, "owned": owned}
    return {table.name: _typed(spark.sql(query, **given), table) for table, query in queries.items()}


def _typed(frame: DataFrame, table: tables.Table) -> DataFrame:
    return frame.selectExpr(
        *(f"CAST(`{each.name}` AS {each.type}) AS `{each.name}`" for each in table.columns)
    )
