"""Cutting the entries of each group into rebalances.

A rebalance begins when the group leaves Stable or Empty for PreparingRebalance, and is over with
`rebalance_completed`, or is interrupted when the group goes, or its coordinator. What was recorded in the
same step just before its start (who was removed, what changed) belongs to it; what comes after its end and
before the next one is kept with it too, as what it led to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD: Final = """
WITH known AS (
    SELECT shard, `group`, min(offset) AS first, max(offset) AS last
    FROM {transitions} WHERE `group` IS NOT NULL GROUP BY shard, `group`
), loads AS (
    SELECT *, lag(offset) OVER here AS before, lead(offset) OVER here AS next
    FROM {transitions} WHERE `group` IS NULL
    WINDOW here AS (PARTITION BY shard ORDER BY offset)
)
SELECT * FROM {transitions} WHERE `group` IS NOT NULL
UNION ALL
-- What concerns a whole shard happened to each group that it has then: from the last that came before the
-- group's first entry to the first one after its last, or the cost would grow with the square of the time.
SELECT s.* EXCEPT (`group`, members, before, next), known.`group`, s.members
FROM loads AS s JOIN known ON s.shard = known.shard
    AND (s.next IS NULL OR s.next > known.first) AND (s.before IS NULL OR s.before < known.last)
"""

_NUMBERED: Final = """
WITH bounds AS (
    SELECT *,
        type IN ('state_changed', 'rebalance_completed', 'shard_loaded', 'shard_unloaded') AS is_bound,
        coalesce(to_state = 'PreparingRebalance', false) AS is_start,
        coalesce(to_state = 'PreparingRebalance' AND from_state IN ('Stable', 'Empty', 'Dead'), false)
            AS is_opener
    FROM {told}
), looked AS (
    SELECT *,
        last(IF(is_bound, struct(at_ms, type, is_opener), NULL), true) OVER (
            PARTITION BY shard, `group` ORDER BY offset DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS next_bound
    FROM bounds
), marked AS (
    SELECT *,
        NOT is_bound AND coalesce(next_bound.is_opener AND next_bound.at_ms = at_ms, false) AS is_before,
        type IN ('rebalance_completed', 'shard_loaded', 'shard_unloaded')
            OR coalesce(to_state = 'Dead', false)
            -- The entry that says it is completed is lost.
            OR coalesce(to_state IN ('Stable', 'Empty'), false)
               AND coalesce(next_bound.type, '') != 'rebalance_completed' AS is_closer
    FROM looked
), numbered AS (
    SELECT *,
        count_if(is_opener) OVER (
            PARTITION BY shard, `group` ORDER BY offset
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) + int(is_before) AS number
    FROM marked
)
SELECT * EXCEPT (next_bound),
    count_if(is_closer) OVER after > 0 AS is_after,
    count_if(is_bound) OVER after AS bounds_before
FROM numbered
WINDOW after AS (
    PARTITION BY shard, `group`, number ORDER BY offset
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""


def cut(transitions: DataFrame) -> DataFrame:
    """`numbered` of what `told` makes of `transitions`."""
    return numbered(told(transitions))


def told(transitions: DataFrame) -> DataFrame:
    """The entries of every group, those of its shard between them."""
    columns = [each for each in transitions.columns if each not in ("group", "members")]
    ordered = transitions.select(*columns, "group", "members")
    session: Any = transitions.sparkSession
    found: DataFrame = session.sql(_TOLD, transitions=ordered)
    return found


def numbered(told: DataFrame) -> DataFrame:
    """For each entry its `number`: of the rebalance of its group that it belongs to or follows, 0 before the
    first that has its beginning in sight; `is_after`: it follows; `is_start`: it began the rebalance, or
    began it anew; `bounds_before`: how many changes of state came before it in its rebalance."""
    session: Any = told.sparkSession
    found: DataFrame = session.sql(_NUMBERED, told=told)
    return found
