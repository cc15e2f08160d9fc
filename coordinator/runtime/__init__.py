"""Runs the pure core: clocks, a host per shard, and the runtime that routes requests to them."""
