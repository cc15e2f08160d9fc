"""Bytes to Kafka messages and back. Pure: imports construct and nothing of the rest of muster."""
