"""Under what the application keeps what its handlers work with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from muster.coordinator.server.brokers import Brokers
from muster.coordinator.web.feed import Feed
from muster.coordinator.web.lately import Lately
from muster.coordinator.web.tallies import Tallies
from muster.coordinator.web.trends import Trends


@dataclass(slots=True)
class Life:
    """Where the process is in its life."""

    stopping: bool = False
    """The brokers are about to stop, or are stopping."""


BROKERS: Final = web.AppKey("brokers", Brokers)
FEED: Final = web.AppKey("feed", Feed)
TALLIES: Final = web.AppKey("tallies", Tallies)
LIFE: Final = web.AppKey("life", Life)
LATELY: Final = web.AppKey("lately", Lately)
TRENDS: Final = web.AppKey("trends", Trends)
LOOKS: Final = web.AppKey("looks", asyncio.Semaphore)
"""Those who look at records, as many as may at a time."""
