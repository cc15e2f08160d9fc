"""Under what the application keeps what its handlers work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from muster.coordinator.observe.web.feed import Feed
from muster.coordinator.observe.web.tallies import Tallies
from muster.coordinator.server.brokers import Brokers


@dataclass(slots=True)
class Life:
    """Where the process is in its life."""

    stopping: bool = False
    """The brokers are about to stop, or are stopping."""


BROKERS: Final = web.AppKey("brokers", Brokers)
FEED: Final = web.AppKey("feed", Feed)
TALLIES: Final = web.AppKey("tallies", Tallies)
LIFE: Final = web.AppKey("life", Life)
