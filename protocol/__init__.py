"""Converts bytes to Kafka messages and back. Pure: imports nothing else of muster but its build."""
