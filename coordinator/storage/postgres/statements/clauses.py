"""Clauses that several statements share."""

from __future__ import annotations

from typing import Final

NOW: Final = (
    "SELECT COALESCE($1::bigint, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)) AS now_ms"
)
"""The time by the server's clock, unless the caller passes another as the first argument."""


def moving(changed: str) -> str:
    """The tail of a WITH that moves the revision if `changed` has rows. Counting them makes sure that all of
    `changed` is done before the one row that everybody wants is locked."""
    return (
        "moved AS (UPDATE muster.revision SET revision = revision + 1 "
        f"WHERE (SELECT count(*) FROM {changed}) > 0 RETURNING revision)"
    )


ATTEMPTS_MAX: Final = 5
"""Attempts at a change that another broker may make at the same moment."""
