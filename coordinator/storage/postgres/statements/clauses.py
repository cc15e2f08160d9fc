"""What several statements have in common."""

from __future__ import annotations

from typing import Final

NOW: Final = (
    "SELECT COALESCE($1::bigint, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)) AS now_ms"
)
"""The time by the server's clock, unless the caller has given another as the first argument."""


def moving(changed: str) -> str:
    """The tail of a WITH that moves the revision when `changed` has rows. It is counted, so that all of it is
    done before the one row everybody wants is locked."""
    return (
        "moved AS (UPDATE muster.revision SET revision = revision + 1 "
        f"WHERE (SELECT count(*) FROM {changed}) > 0 RETURNING revision)"
    )


ATTEMPTS_MAX: Final = 5
"""How often a change is tried that another broker may make at the same moment."""
