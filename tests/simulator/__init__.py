"""A simulator: real brokers and clients in virtual time, one seed per run.

Real: connections, sessions, APIs, runtime, shard hosts, the cores of groups and transactions, membership,
topic catalogue, partition logs. Simulated, each through a seam the product has: the clock (a loop in virtual
time), the store (memory, with latency, failures and crashes), the transport, and most clients. Some clients
are muster's own, unmodified, in the same groups as the simulated ones. `python -m tests.simulator --seed N`
replays a run.
"""
