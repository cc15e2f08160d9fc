"""The group coordinator's core: synchronous, without clock, I/O, event loop or log of its own.

A `Shard` owns the groups of one coordinator partition. Every call into it is a step: it gets the time as an
argument and fills `Effects` (records to make durable, replies, events). Whoever runs shards makes the records
durable before it lets the replies go (`coordinator/runtime`).
"""
