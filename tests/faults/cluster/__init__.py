"""Drills: three brokers over PostgreSQL, each a host of its own as far as the network knows, and what goes
wrong with them while clients work."""
