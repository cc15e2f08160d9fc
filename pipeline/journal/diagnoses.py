"""What was behind each rebalance: the rules of docs/why.md, over its first start and what came around it.

A rule weighs facts of the step in which the rebalance began, of the ten minutes before, and of the half hour
after. The surest finding is the diagnosis; of two that are as sure the first counts. A rebalance under way is
told by how it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.journal.tables import REBALANCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BACK_MS: Final = 10 * 60_000
"""How far back late heartbeats, evictions and restarts count."""
_AHEAD_MS: Final = 30 * 60_000
"""How much later a client may come back and still be told to be the one that left."""
_SLOT_MS: Final = _BACK_MS + _AHEAD_MS
"""Entries are joined by slots of time, so that what that costs does not grow with the length of a journal."""

_BY_ADMIN: Final = r"(?i)removed by an? admin|administrator"
_BY_POLL_DEADLINE: Final = r"(?i)poll (timeout|interval|deadline)|max[._]poll[._]interval"
_BY_CLOSING: Final = r"(?i)\bclos(e|ed|ing)\b|unsubscribed|shut(s|ting)? ?down"

_STEPS: Final = """
-- What was recorded in the step in which it began, and what is known of the group from before.
WITH lately AS (
    SELECT *,
        last(protocol, true) OVER earlier AS protocol_then,
        last(IF(type IN ('assigned', 'leader_changed'), member_id, NULL), true) OVER earlier AS leader_then,
        last(IF(type = 'assigned', struct(at_ms, lost), NULL), true) OVER earlier AS assigned_then
    FROM {told}
    WINDOW earlier AS (
        PARTITION BY shard, `group` ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT r.rebalance_id, r.`group`, r.shard, r.started_ms, r.start_offset, r.member_id, r.client_id, r.host,
    r.instance, r.from_state, r.reason, r.cause,
    max_by(struct(t.silent_ms, t.connected, t.disconnected_ms, t.heartbeat_interval_ms, t.session_timeout_ms,
            t.requested_by, t.late, t.at_ms),
        struct(t.member_id <=> r.member_id, t.offset <= r.start_offset, t.offset))
        FILTER (WHERE t.in_step AND t.type = 'member_removed') AS removed,
    max_by(struct(t.topics_added, t.topics_removed, t.protocols_before, t.protocols_after, t.owned_changed),
        struct(t.member_id <=> r.member_id, t.offset <= r.start_offset, t.offset))
        FILTER (WHERE t.in_step AND t.type = 'metadata_changed') AS changed,
    max_by(t.former_member_id, t.offset)
        FILTER (WHERE t.in_step AND t.type = 'member_added' AND t.member_id = r.member_id) AS former_in_step,
    coalesce(bool_or(t.type = 'topics_grown'), false) AS has_grown,
    max_by(t.protocol_then, t.offset) FILTER (WHERE t.offset = r.start_offset) AS protocol,
    max_by(t.leader_then, t.offset) FILTER (WHERE t.offset = r.start_offset) AS leader,
    max_by(t.assigned_then, t.offset) FILTER (WHERE t.offset = r.start_offset) AS assigned
FROM (SELECT * EXCEPT (lag) FROM {made}) AS r
LEFT JOIN (
    SELECT l.*, b.start_ms = l.at_ms AND l.bounds_before <= 1 AND NOT l.is_bound AS in_step
    FROM lately AS l JOIN (
        SELECT shard, `group`, number, min_by(at_ms, offset) AS start_ms
        FROM {told} WHERE is_start GROUP BY ALL) AS b
    ON l.shard = b.shard AND l.`group` = b.`group` AND l.number = b.number
    WHERE NOT l.is_after
) AS t
ON t.`group` = r.`group` AND t.shard = r.shard AND t.number = r.number
GROUP BY ALL
"""

_AROUND: Final = f"""
-- What came in the ten minutes before, and in the half hour after.
WITH slots AS (
    SELECT rebalance_id, `group`, shard, started_ms, start_offset, member_id, client_id, host, instance,
        explode(sequence(
            (started_ms - {_BACK_MS}) DIV {_SLOT_MS}, (started_ms + {_AHEAD_MS}) DIV {_SLOT_MS})) AS slot
    FROM {{steps}}
), told AS (
    SELECT *, at_ms DIV {_SLOT_MS} AS slot FROM {{told}}
    WHERE type IN ('member_removed', 'member_disconnected', 'member_added', 'member_id_issued',
        'member_replaced', 'member_fenced', 'heartbeat_late', 'shard_loaded')
), pairs AS (
    SELECT r.rebalance_id, r.started_ms AS began_ms, r.member_id AS mine, r.instance AS my_instance,
        t.*,
        t.offset < r.start_offset AND t.at_ms >= r.started_ms - {_BACK_MS} AS earlier,
        t.offset > r.start_offset AND t.at_ms <= r.started_ms + {_AHEAD_MS} AS later,
        t.at_ms BETWEEN r.started_ms - {_BACK_MS} AND r.started_ms + {_BACK_MS} AS near,
        IF(t.instance IS NOT NULL OR r.instance IS NOT NULL, t.instance <=> r.instance,
            t.client_id = r.client_id AND t.host = r.host) AS same_client
    FROM slots AS r JOIN told AS t ON t.`group` = r.`group` AND t.shard = r.shard AND t.slot = r.slot
)
SELECT rebalance_id,
    count_if(earlier AND type = 'heartbeat_late' AND member_id = mine) AS late,
    min_by(struct(offset, at_ms, after_removal_ms), offset)
        FILTER (WHERE later AND type = 'member_disconnected' AND member_id = mine) AS closed,
    min_by(struct(offset, at_ms), offset) FILTER (WHERE later
        AND type IN ('member_id_issued', 'member_added') AND former_member_id = mine) AS returned,
    max_by(former_member_id, offset)
        FILTER (WHERE earlier AND type = 'member_id_issued' AND member_id = mine) AS former_issued,
    max_by(struct(at_ms, broker), offset) FILTER (WHERE earlier AND type = 'shard_loaded') AS moved,
    collect_set(member_id) FILTER (WHERE earlier AND type = 'member_removed' AND member_id != mine)
        AS removed_ids,
    max_by(struct(trigger IN ('session expired', 'sync timed out', 'rebalance timed out',
            'new member expired', 'group full') OR requested_by IS NOT NULL AS evicted), offset)
        FILTER (WHERE earlier AND type = 'member_removed' AND member_id != mine AND same_client)
        AS same_removed,
    size(collect_set(member_id) FILTER (WHERE earlier AND member_id != mine AND same_client
        AND type IN ('member_added', 'member_removed', 'heartbeat_late'))) AS namesakes,
    sort_array(collect_list(struct(offset, host, old_host, at_ms,
            coalesce(old_connected AND (old_silent_ms IS NULL OR old_silent_ms < 15000), false) AS alive))
        FILTER (WHERE near AND type = 'member_replaced' AND instance = my_instance)) AS replaced,
    array_union(
        collect_set(instance) FILTER (WHERE near AND type = 'member_replaced'
            AND NOT coalesce(old_connected AND (old_silent_ms IS NULL OR old_silent_ms < 15000), false)),
        array_intersect(
            collect_set(instance) FILTER (WHERE near AND type = 'member_added'),
            collect_set(instance) FILTER (WHERE near AND type = 'member_removed'
                AND trigger != 'group full')))
        AS restarted,
    count_if(near AND type = 'member_fenced' AND instance = my_instance) AS fenced
FROM pairs
GROUP BY rebalance_id
"""

_WEIGHED: Final = f"""
WITH facts AS (
    SELECT s.*, a.* EXCEPT (rebalance_id),
        s.instance IS NOT NULL AS static,
        IF(s.removed.disconnected_ms IS NOT NULL, false, s.removed.connected) AS connected,
        IF(a.closed IS NOT NULL AND (a.returned IS NULL OR a.closed.offset < a.returned.offset),
            greatest(coalesce(a.closed.after_removal_ms, a.closed.at_ms - s.started_ms), 0), NULL)
            AS closed_ms,
        coalesce(s.removed.silent_ms <= coalesce(2 * s.removed.heartbeat_interval_ms,
            coalesce(s.removed.session_timeout_ms, 30000) DIV 2), false) AS on_time,
        s.removed.disconnected_ms IS NULL AND s.removed.connected IS DISTINCT FROM true
            AND coalesce(s.started_ms - s.removed.silent_ms <= a.moved.at_ms + 1000, false) AS unheard,
        coalesce(s.former_in_step, a.former_issued) AS former,
        s.instance IS NOT NULL AND coalesce(array_contains(a.restarted, s.instance), false)
            AND size(a.restarted) >= 2 AS is_rolling,
        coalesce(size(s.changed.topics_added) > 0, false)
            OR coalesce(size(s.changed.topics_removed) > 0, false)
            AS has_topics_changed,
        coalesce(size(s.changed.protocols_before) > 0
            AND s.changed.protocols_before != s.changed.protocols_after, false) AS has_assignor_changed,
        (SELECT max(at_ms) FROM {{told}} WHERE type NOT IN ('shard_loaded', 'shard_unloaded')) AS now_ms
    FROM {{steps}} AS s LEFT JOIN {{around}} AS a ON s.rebalance_id = a.rebalance_id
), signs AS (
    SELECT *,
        IF(has_topics_changed OR has_assignor_changed
                OR coalesce(NOT contains(protocol, 'cooperative'), false), 0,
            int(coalesce(changed.owned_changed, false)) + int(coalesce(contains(reason, 'revoke'), false))
            + int(coalesce(assigned.lost > 0 AND assigned.at_ms >= started_ms - 60000, false))) AS follow_ups,
        coalesce(leader = member_id, false) AS is_leader,
        former IS NOT NULL AND coalesce(array_contains(removed_ids, former), false) AS is_known_back,
        former IS NULL AND coalesce(same_removed.evicted, false) AS is_likely_back,
        CASE
            WHEN exists(sequence(0, greatest(size(replaced) - 2, 0)), i -> coalesce(
                get(replaced, i + 1).host = get(replaced, i).old_host
                AND get(replaced, i).old_host != get(replaced, i).host, false)) THEN 'certain'
            WHEN fenced > 0 OR size(filter(replaced, r -> r.alive)) > 1 THEN 'certain'
            WHEN size(filter(replaced, r -> r.alive)) = 1 THEN 'likely'
        END AS duplicate
    FROM facts
)
SELECT rebalance_id, greatest(coalesce(late, 0), coalesce(removed.late, 0)) AS near_misses,
    CASE
    WHEN cause = 'session expired' THEN CASE
        WHEN connected AND returned IS NOT NULL THEN 'stalled certain'
        WHEN connected IS NOT DISTINCT FROM false AND NOT unheard AND NOT static THEN 'crashed likely'
        WHEN connected THEN 'stalled likely'
        WHEN unheard THEN 'crashed likely'
        WHEN is_rolling THEN 'rolling-restart likely'
        ELSE 'crashed possible' END
    WHEN cause = 'member left' THEN CASE
        WHEN removed.requested_by IS NOT NULL OR coalesce(reason RLIKE r'{_BY_ADMIN}', false)
            THEN 'evicted-by-admin certain'
        WHEN coalesce(reason RLIKE r'{_BY_POLL_DEADLINE}', false) THEN 'poll-deadline-missed certain'
        WHEN coalesce(reason RLIKE r'{_BY_CLOSING}', false) THEN 'clean-shutdown certain'
        WHEN closed_ms <= 10000 THEN 'clean-shutdown certain'
        WHEN closed_ms IS NOT NULL THEN 'clean-shutdown likely'
        WHEN returned IS NOT NULL THEN 'poll-deadline-missed likely'
        WHEN on_time AND now_ms - started_ms > 2000 THEN 'poll-deadline-missed likely'
        WHEN on_time THEN 'poll-deadline-missed possible'
        ELSE 'clean-shutdown possible' END
    WHEN cause = 'member joined' THEN CASE
        WHEN is_known_back THEN 'rejoined-after-eviction certain'
        WHEN NOT is_likely_back AND (from_state = 'Empty' OR same_removed IS NULL) THEN 'new-member certain'
        WHEN is_rolling THEN 'rolling-restart likely'
        WHEN is_likely_back AND namesakes > 1 THEN 'rejoined-after-eviction possible'
        WHEN is_likely_back THEN 'rejoined-after-eviction likely'
        ELSE 'new-member likely' END
    WHEN cause IN ('subscription or protocols changed', 'leader rejoined') THEN CASE
        WHEN cause != 'leader rejoined' AND has_topics_changed THEN 'subscription-changed certain'
        WHEN cause != 'leader rejoined' AND has_assignor_changed THEN 'assignor-changed certain'
        WHEN has_grown THEN 'topics-grown certain'
        WHEN follow_ups > 1 THEN 'cooperative-follow-up certain'
        WHEN follow_ups = 1 THEN 'cooperative-follow-up likely'
        WHEN cause = 'leader rejoined' AND coalesce(contains(reason, 'metadata'), false)
            THEN 'topics-grown likely'
        WHEN cause = 'leader rejoined' OR changed IS NOT NULL AND is_leader THEN 'leader-rejoined likely'
        WHEN changed IS NULL THEN 'subscription-changed possible'
        ELSE 'unknown possible' END
    WHEN cause = 'static member returned' THEN CASE
        WHEN duplicate = 'certain' THEN 'duplicate-instance-id certain'
        WHEN duplicate IS NOT NULL THEN 'duplicate-instance-id likely'
        WHEN is_rolling THEN 'rolling-restart likely'
        WHEN size(replaced) > 0 AND element_at(replaced, -1).alive THEN 'static-member-replaced possible'
        WHEN size(replaced) > 0 THEN 'static-member-replaced likely'
        ELSE 'unknown certain' END
    WHEN cause = 'sync timed out' THEN 'sync-timeout certain'
    WHEN cause IN ('group full', 'loaded with more members than allowed') THEN 'group-full certain'
    WHEN cause = 'new member expired' THEN 'slow-join certain'
    ELSE 'unknown certain' END AS found
FROM signs
"""

_REBALANCES: Final = f"""
SELECT {", ".join(f"`{each}`" for each in REBALANCES.names)}
FROM (
    SELECT made.*, split(found, ' ')[0] AS diagnosis, split(found, ' ')[1] AS certainty,
        int(weighed.near_misses) AS near_misses
    FROM {{made}} AS made JOIN {{weighed}} AS weighed ON made.rebalance_id = weighed.rebalance_id)
"""


def diagnosed(made: DataFrame, told: DataFrame) -> DataFrame:
    """The table `rebalances`, from what `rebalances.assembled` made of `told`."""
    session: Any = told.sparkSession
    steps = session.sql(_STEPS, made=made, told=told)
    around = session.sql(_AROUND, steps=steps, told=told)
    weighed = session.sql(_WEIGHED, steps=steps, around=around, told=told)
    found: DataFrame = session.sql(_REBALANCES, made=made, weighed=weighed)
    return found
