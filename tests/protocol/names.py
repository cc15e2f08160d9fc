"""Kafka's names for what we declare."""

from __future__ import annotations

import re


def snake_case(name: str) -> str:
    """ThrottleTimeMs -> throttle_time_ms."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
