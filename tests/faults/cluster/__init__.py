"""Drills: three brokers over PostgreSQL, each on a network host of its own, and the faults that strike them
while clients work."""
