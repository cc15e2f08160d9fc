"""The application's keys for the objects that its handlers use."""

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
    """The lifecycle state of the process."""

    stopping: bool = False
    """Whether the brokers are stopping or about to."""


BROKERS: Final = web.AppKey("brokers", Brokers)
FEED: Final = web.AppKey("feed", Feed)
TALLIES: Final = web.AppKey("tallies", Tallies)
LIFE: Final = web.AppKey("life", Life)
LATELY: Final = web.AppKey("lately", Lately)
TRENDS: Final = web.AppKey("trends", Trends)
LOOKS: Final = web.AppKey("looks", asyncio.Semaphore)
"""Limits concurrent looks at records."""
