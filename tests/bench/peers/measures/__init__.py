"""The measures, a module each with `MEASURE`, in the order of the table."""

from __future__ import annotations

from typing import Final

from tests.bench.peers.measure import Measure
from tests.bench.peers.measures import heartbeats, memory, start

_MODULES: Final = (start, memory, heartbeats)
MEASURES: Final[dict[str, Measure]] = {module.MEASURE.name: module.MEASURE for module in _MODULES}
