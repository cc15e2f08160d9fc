"""Bronze to `transitions`: the records of the journal, typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.journal.tables import MEMBER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Lists with elements of several types are read as lists of strings; `partitions` is a number in one type of
# entry and a list in others, so it is read as raw text.
_ENTRY: Final = f"""
    type string, at_ms bigint, broker int, `group` string, generation int, trigger string, reason string,
    member {MEMBER}, from_state string, to_state string, phase_ms bigint, after_ms bigint, late_ms bigint,
    silent_ms bigint, connected boolean, disconnected_ms bigint, after_removal_ms bigint,
    late int, heartbeat_interval_ms bigint, session_timeout_ms bigint, requested_by {MEMBER},
    former_member_id string, old_member_id string, old_client_host string, old_silent_ms bigint,
    old_connected boolean, topics_added array<string>, topics_removed array<string>,
    protocols_before array<string>, protocols_after array<string>, owned_changed boolean, protocol string,
    partitions string, kept int, moved int, lost int, moves array<array<string>>, truncated boolean,
    started_ms bigint, join_ms bigint, assignment_ms bigint, restarts int, members int,
    dropped array<{MEMBER}>, joins array<array<string>>, lag_before bigint, lag bigint, total bigint,
    recovered boolean, error string, committed_generation_id int, epoch bigint, from_broker int,
    from_silent_ms bigint, took_ms bigint, groups int
"""

_TRANSITIONS: Final = f"""
WITH read AS (
    SELECT partition AS shard, offset, from_json(CAST(value AS string), '{_ENTRY}') AS e
    FROM {{events}}
)
SELECT
    shard, offset, e.at_ms, e.type, e.broker, e.`group`, e.generation, e.trigger, e.reason,
    e.member.id AS member_id, e.member.client_id, e.member.host, e.member.instance,
    e.from_state, e.to_state, e.phase_ms, e.after_ms, e.late_ms, e.silent_ms, e.connected, e.disconnected_ms,
    e.late, e.after_removal_ms, e.heartbeat_interval_ms, e.session_timeout_ms, e.requested_by,
    e.former_member_id,
    e.old_member_id, ltrim('/', e.old_client_host) AS old_host, e.old_silent_ms, e.old_connected,
    e.topics_added, e.topics_removed, e.protocols_before, e.protocols_after, e.owned_changed, e.protocol,
    try_cast(e.partitions AS int) AS partitions, e.kept, e.moved, e.lost,
    transform(e.moves, m -> named_struct(
        'topic', get(m, 0), 'partition', try_cast(get(m, 1) AS int),
        'from_member', get(m, 2), 'to_member', get(m, 3))) AS moves,
    e.truncated, e.started_ms, e.join_ms, e.assignment_ms, e.restarts, e.members, e.dropped,
    from_json(get(get(e.joins, 0), 0), '{MEMBER}') AS slowest,
    try_cast(get(get(e.joins, 0), 1) AS bigint) AS slowest_ms,
    e.lag_before, coalesce(e.lag, e.total) AS lag,
    CASE WHEN e.type = 'lag_at_commit' THEN
        transform(from_json(e.partitions, 'array<array<string>>'), p -> named_struct(
            'topic', get(p, 0), 'partition', try_cast(get(p, 1) AS int),
            'committed_offset', try_cast(get(p, 2) AS bigint), 'lag', try_cast(get(p, 3) AS bigint)))
    END AS lags,
    e.recovered, e.error, e.committed_generation_id AS committed_generation, e.epoch, e.from_broker,
    e.from_silent_ms, e.took_ms, e.groups
FROM read
WHERE e.type IS NOT NULL AND e.at_ms IS NOT NULL
"""


def transitions(events: DataFrame) -> DataFrame:
    """The table `transitions`, batch or stream: one row for each record that is a journal entry. Other
    records, and fields that are not as published, are ignored."""
    session: Any = events.sparkSession
    found: DataFrame = session.sql(_TRANSITIONS, events=events)
    return found
