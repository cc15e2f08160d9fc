"""A smoke simulator: real brokers and simulated clients in virtual time, one seed per run.

What is real: connections, router, group handlers, runtime, shard hosts, the core, membership, topic
catalogue. What is simulated, each through a seam the product has: the clock (a loop in virtual time), the
store (memory, with latency, failures and crashes), the transport, and the clients. `python -m tests.simulator
--seed N` replays a run.
"""
