"""The group coordinator's core: synchronous, with no clock, I/O, event loop or log of its own.

A `Shard` owns the groups of one coordinator partition. Every call into it is a step and takes a `Step`: the
time and the caller go in; rows to make durable, replies and events come out. Whoever runs shards makes the
rows durable before releasing the replies (`coordinator/runtime`).

This folder holds what groups of any kind share (offsets, retention, admin requests); each kind has a folder
of its own behind the protocol `group.Group`.
"""
