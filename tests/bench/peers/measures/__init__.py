"""The measures, a module each with `MEASURE`, in the order of the table."""

from __future__ import annotations

from typing import Final

from tests.bench.peers.measure import Measure
from tests.bench.peers.measures import (
    commits,
    committing_groups,
    consumer_groups,
    consumer_heartbeats,
    end_to_end,
    failover,
    growth,
    heartbeats,
    many_groups,
    memory,
    offset_fetch,
    rebalance,
    records,
    start,
    tls,
    transactions,
    wide,
)

_MODULES: Final = (
    start,
    memory,
    heartbeats,
    consumer_heartbeats,
    commits,
    committing_groups,
    offset_fetch,
    wide,
    rebalance,
    consumer_groups,
    many_groups,
    records,
    transactions,
    tls,
    end_to_end,
    failover,
    growth,
)
MEASURES: Final[dict[str, Measure]] = {module.MEASURE.name: module.MEASURE for module in _MODULES}
