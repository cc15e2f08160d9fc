"""The group coordinator's core: synchronous, without clock, I/O, event loop or log of its own.

A `Shard` owns the groups of one coordinator partition. Every call into it is a step, and is given a `Step`:
the time and who asks go in; rows to make durable, replies and events come out. Whoever runs shards makes the
rows durable before it lets the replies go (`coordinator/runtime`).

What is the same for groups of any kind stands here (offsets, retention, what admins ask); each kind has a
folder of its own behind the protocol `group.Group`.
"""
