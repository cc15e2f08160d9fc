"""The tables of topic records; `record_statements` says what is in them."""

from __future__ import annotations

from typing import Final

RECORD_TABLES: Final = (
    """
    CREATE TABLE muster.logs (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        version bigint NOT NULL,
        start_offset bigint NOT NULL,
        next_offset bigint NOT NULL,
        cleaned_offset bigint NOT NULL,
        size_bytes bigint NOT NULL,
        PRIMARY KEY (topic_id, partition)
    )
    """,
    """
    CREATE TABLE muster.segments (
        segment_id uuid PRIMARY KEY,
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        state smallint NOT NULL,
        generation integer NOT NULL,
        base_offset bigint NOT NULL,
        next_offset bigint NOT NULL,
        size_bytes bigint NOT NULL,
        batch_count integer NOT NULL,
        first_timestamp bigint NOT NULL,
        newest_timestamp bigint NOT NULL,
        written_ms bigint NOT NULL,
        derived bytea
    )
    """,
    "CREATE INDEX segments_of_log ON muster.segments (topic_id, partition)",
    """
    CREATE TABLE muster.batches (
        segment_id uuid NOT NULL,
        base_offset bigint NOT NULL,
        next_offset bigint NOT NULL,
        newest_timestamp bigint NOT NULL,
        size_bytes integer NOT NULL,
        contents bytea NOT NULL,
        PRIMARY KEY (segment_id, base_offset)
    )
    """,
)
RECORD_TUNING: Final = (
    # Batches are compressed by their producers, or are not worth the time.
    "ALTER TABLE muster.batches ALTER COLUMN contents SET STORAGE EXTERNAL",
    # These rows are updated all the time: leave room for their next version beside them.
    "ALTER TABLE muster.logs SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, "
    "autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)",
)
"""A database that does not know these may refuse them."""
