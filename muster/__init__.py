"""Muster: a Kafka-wire-compatible broker whose heart is the consumer-group coordinator."""

from __future__ import annotations

__version__ = "0.1.0"
