"""A simulator: real brokers and clients in virtual time, one seed per run.

What is real: connections, sessions, group APIs, runtime, shard hosts, the core, membership, topic
catalogue, partition logs, transactions. What is simulated, each through a seam the product has: the clock (a loop in virtual time), the
store (memory, with latency, failures and crashes), the transport, and most clients. Some clients are
muster's own, unmodified, in the same groups as the simulated ones. `python -m tests.simulator
--seed N` replays a run.
"""
