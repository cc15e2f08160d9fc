"""Bytes to Kafka messages and back. Pure: imports construct, and nothing else of muster."""
